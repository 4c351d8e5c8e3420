"""What a server leaves beside its processes when it is killed: temporary files (sockets) and shared memory.

Both are known before: temporary files go to a folder named after the launch, and shared memory is what its processes
have mapped, by name and inode, so that nothing of anybody else is ever removed. The gateway's socket lies in the
launch's folder too, so the server has one of its own in it: the server is restarted beneath a gateway that goes on.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rolloutgen.processes import Process

_SHARED: Final = "/dev/shm/"  # noqa: S108  # only looked at
_BASE_MAX: Final = 25
"""Sockets lie in the folder, and the whole path of one must fit in 107 bytes."""
_SERVERS: Final = "vllm"

Shared = tuple[str, int]
"""Path and inode of a shared memory object."""


def temporary_folder(launch_id: str, caller: Mapping[str, str] = os.environ) -> Path:
    """The folder for all temporary files of the launch; the same for every call with the same TMPDIR."""
    base = caller.get("TMPDIR") or "/tmp"  # noqa: S108  # the folder in it is made for its owner alone
    return Path(base if len(base) <= _BASE_MAX and Path(base).is_dir() else "/tmp") / f"rolloutgen-{launch_id}"  # noqa: S108


def server_folder(launch_id: str, caller: Mapping[str, str] = os.environ) -> Path:
    """The server's part of the launch's temporary folder: its TMPDIR."""
    return temporary_folder(launch_id, caller) / _SERVERS


def make_temporary_folder(launch_id: str) -> None:
    """With the server's part in it. Raises OSError where the name is taken by somebody else."""
    folder = temporary_folder(launch_id)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    server_folder(launch_id).mkdir(mode=0o700, exist_ok=True)


def shared_memory(members: Iterable[Process]) -> set[Shared]:
    """What these processes have mapped of /dev/shm."""
    found: set[Shared] = set()
    for member in members:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{member.pid}/maps").read_text().splitlines()
            fields = (line.split(maxsplit=5) for line in lines if _SHARED in line)
            names = ((path, int(inode)) for *_, inode, path in fields if path.startswith(_SHARED))
            found.update((path, inode) for path, inode in names if not path.endswith(" (deleted)"))
    return found


def remove_leavings(launch_id: str, shared: Iterable[Shared]) -> list[str]:
    """Remove what is left of a launch, once its processes are gone; returns the paths removed."""
    return [*_remove_shared(shared), *_remove_folder(temporary_folder(launch_id))]


def remove_servers_leavings(launch_id: str, shared: Iterable[Shared]) -> None:
    """Remove what one server left; the launch's folder goes too, unless others have something in it."""
    _remove_shared(shared)
    folder = temporary_folder(launch_id)
    if folder.is_dir() and not folder.is_symlink():
        _remove_folder(server_folder(launch_id))
        with contextlib.suppress(OSError):
            folder.rmdir()


def _remove_shared(shared: Iterable[Shared]) -> list[str]:
    removed = []
    for path, inode in shared:
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:  # noqa: PTH116  # a name, not a path of ours
                os.unlink(path)  # noqa: PTH108
                removed.append(path)
    return removed


def _remove_folder(folder: Path) -> list[str]:
    if not folder.is_dir() or folder.is_symlink():
        return []
    shutil.rmtree(folder, ignore_errors=True)
    return [str(folder)]
