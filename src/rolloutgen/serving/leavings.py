"""What a server leaves beside its processes when it is killed: temporary files (sockets) and shared memory.

Both are known before: temporary files go to a folder named after the launch, and shared memory is what its processes
have mapped, by name and inode, so that nothing of anybody else is ever removed.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rolloutgen.processes import Process

_SHARED: Final = "/dev/shm/"  # noqa: S108  # only looked at
_BASE_MAX: Final = 30
"""Sockets lie in the folder, and the whole path of one must fit in 107 bytes."""

Shared = tuple[str, int]
"""Path and inode of a shared memory object."""


def temporary_folder(launch_id: str, caller: Mapping[str, str] = os.environ) -> Path:
    """The folder for all temporary files of the launch's server; the same for every call with the same TMPDIR."""
    base = caller.get("TMPDIR") or "/tmp"  # noqa: S108  # the folder in it is made for its owner alone
    return Path(base if len(base) <= _BASE_MAX and Path(base).is_dir() else "/tmp") / f"rolloutgen-{launch_id}"  # noqa: S108


def make_temporary_folder(launch_id: str) -> None:
    """Raises OSError where the name is taken by somebody else."""
    folder = temporary_folder(launch_id)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")


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
    """Remove what is left of both, once the processes are gone; returns the paths removed."""
    removed = []
    for path, inode in shared:
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:  # noqa: PTH116  # a name, not a path of ours
                os.unlink(path)  # noqa: PTH108
                removed.append(path)
    folder = temporary_folder(launch_id)
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(str(folder))
    return removed
