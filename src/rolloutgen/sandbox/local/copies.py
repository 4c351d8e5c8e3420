"""The driver's half of a copy: blocking work on one end of a stream socket, in bounded memory."""

import os
import socket
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Final

from rolloutgen.errors import SandboxError, TransportError
from rolloutgen.sandbox.archive import MAX_MB, HostileArchiveError, pack, unpack

IDLE_SEC: Final = 60.0
"""A copy in which nothing moves for so long is lost."""

_CHUNK: Final = 1 << 20


class Sender:
    """Writes to the socket; counts."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.total = 0

    def write(self, data: bytes, /) -> int:
        self._end.sendall(data)
        self.total += len(data)
        return len(data)


def send(end: socket.socket, source: Path) -> int:
    """Pack ``source`` onto ``end`` and close the sending side; bytes sent. Raises OSError of either."""
    end.settimeout(IDLE_SEC)
    sender = Sender(end)
    try:
        pack(os.fspath(source), sender)
    except HostileArchiveError as error:
        raise ValueError(f"{source}: too large to copy into a sandbox: {error}") from error
    end.shutdown(socket.SHUT_WR)
    return sender.total


def receive(end: socket.socket, spool: IO[bytes]) -> int:
    """Write what arrives to ``spool`` until its end; bytes received. Raises SandboxError above the size limit."""
    end.settimeout(IDLE_SEC)
    limit = (MAX_MB + 1024) << 20
    total = 0
    while data := end.recv(_CHUNK):
        total += len(data)
        if total > limit:
            raise SandboxError(f"the sandbox sent more than {MAX_MB} MiB")
        spool.write(data)
    return total


def new_spool(target: Path) -> IO[bytes]:
    """A nameless file on the file system of ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=target.parent)


def extract(spool: IO[bytes], target: Path, what: str) -> None:
    """Check the archive and write it.

    Raises SandboxError for a hostile one, TransportError for one that is cut off, or that cannot be written here.
    """
    try:
        unpack(spool, target)
    except HostileArchiveError as error:
        raise SandboxError(f"{what}: refused what the sandbox sent: {error}") from error
    except (tarfile.TarError, EOFError) as error:
        raise TransportError(f"{what}: the archive arrived broken: {error}") from error
    except OSError as error:
        raise TransportError(f"{what}: could not be written here: {error}") from error
