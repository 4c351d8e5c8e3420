"""Files that are written whole or not at all: temporary file, fsync, rename, fsync of the folder.

Every function raises StoreError where the disk refuses; the old file then stands as it was.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rolloutgen.errors import StoreError


def temporary(path: Path) -> Path:
    """Where ``path`` grows: beside it, hidden, always the same name, so that a kill leaves one file at most."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which becomes ``path`` at the end of the block, or leaves no trace when the block raises.

    A symbolic link at ``path`` is followed, as by a plain write.
    """
    target = Path(os.path.realpath(path))
    beside = temporary(target)
    try:
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise StoreError(f"{path} could not be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in ``folder`` survive a power cut, where the file system can. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync no folders
            raise
    finally:
        os.close(descriptor)
