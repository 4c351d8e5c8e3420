"""Ports on 127.0.0.1: which one is free, and who has one that is not."""

import random
import socket
from pathlib import Path
from typing import Final

from rolloutgen.serving.command import HOST

_LOW, _HIGH = 20_000, 32_000
"""Below the range from which Linux takes the ports of outgoing connections, so that none of those gets in the way."""
_TRIES: Final = 1_000
_LISTEN: Final = "0A"


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody listens on. Raises OSError where none can be found."""
    for port in random.sample(range(_LOW, _HIGH), _TRIES):
        if is_free(port):
            return port
    raise OSError(f"no free port between {_LOW} and {_HIGH} on {HOST}")


def owner(port: int) -> str:
    """Who listens on ``port``, for people: ``pid 123 (python server.py)``; empty where that cannot be seen."""
    inodes = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in _rows(Path(table))
        if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port
    }
    for folder in Path("/proc").glob("[0-9]*"):
        if inodes & _links(folder / "fd"):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
            return f"pid {folder.name} ({words[:80]})"
    return ""


def _rows(table: Path) -> list[list[str]]:
    try:
        return [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []


def _links(folder: Path) -> set[str]:
    found = set()
    try:
        for path in folder.iterdir():
            found.add(str(path.readlink()))
    except OSError:
        pass
    return found
