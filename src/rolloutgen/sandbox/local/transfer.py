"""Both ends of a copy inside the sandbox: unpack what the driver sends, pack what it asks for.

Runs in a fork with a command's rights and the sandbox's own root: no symbolic link leads anywhere else.
"""

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from typing import IO, Any, cast

from rolloutgen.sandbox.archive import HostileArchiveError, pack


def upload(channel: int, target: str) -> int:
    """Unpack the archive that arrives on ``channel`` at ``target``; bytes received."""
    with os.fdopen(channel, "rb") as stream:
        counted = _Counted(stream.read)
        with tarfile.open(fileobj=cast("IO[bytes]", counted), mode="r|") as archive:
            for member in archive:
                _place(archive, member, target)
        while counted.read(1 << 16):
            pass  # the padding behind the archive's end belongs to its length
        return counted.total


def download(channel: int, source: str) -> int:
    """Pack ``source`` onto ``channel``; bytes sent. Raises FileNotFoundError."""
    with os.fdopen(channel, "wb") as stream:
        counted = _Counted(stream.write)
        pack(source, counted)
        return counted.total


def reporting(report: int, work: Callable[[], int]) -> Callable[[], None]:
    """``work``, with its result or its error written to ``report`` as JSON."""

    def run() -> None:
        try:
            answer: dict[str, Any] = {"bytes": work()}
        except FileNotFoundError as error:
            answer = {"error": str(error), "missing": True}
        except HostileArchiveError as error:
            answer = {"error": str(error), "hostile": True}
        except (OSError, tarfile.TarError, EOFError) as error:
            answer = {"error": str(error) or type(error).__name__, "errno": getattr(error, "errno", None)}
        os.write(report, json.dumps(answer).encode()[:4096])

    return run


def parse_report(data: bytes) -> dict[str, Any]:
    """The answer to the driver: what the fork reported, or that it was killed before it could."""
    try:
        return dict(json.loads(data))
    except ValueError:
        return {"error": "the copying process was killed"}


class _Counted:
    """One direction of a stream, with its bytes counted."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call
        self.total = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._call(size)
        self.total += len(data)
        return data

    def write(self, data: bytes) -> int:
        written: int = self._call(data)
        self.total += written
        return written


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
    path = os.path.normpath(os.path.join(target, member.name)) if member.name != "file" or member.isdir() else target
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        if member.name != ".":
            os.chmod(path, member.mode)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path) and not os.path.isdir(path):
        os.unlink(path)
    if member.issym():
        os.symlink(member.linkname, path)
        return
    source = archive.extractfile(member)
    if source is not None:
        with open(path, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        os.chmod(path, member.mode)
