"""Tar between this machine and a sandbox. What comes from a sandbox is hostile, and is checked before anything is
written.

The form: a folder is a member ``.`` and then its contents (``./a/b``); a single file is one member named ``file``.
"""

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol, cast

MAX_MEMBERS: Final = 100_000
MAX_MB: Final = 4096
"""Of all files of one archive together, in MiB."""

_CHUNK: Final = 1 << 20


class Writable(Protocol):
    """All that ``pack`` needs of a stream."""

    def write(self, data: bytes, /) -> int: ...


class HostileArchiveError(Exception):
    """A member that no honest packer makes, or more than the limits allow."""


def pack(source: str, out: Writable) -> None:
    """Write ``source`` (a file, or a folder's contents) to ``out``: streamed, owned by root, links kept, no special
    files.

    Raises OSError for what cannot be read or is neither, and for a file that shrinks meanwhile; HostileArchiveError
    where more than MAX_MB would come together (a sparse file claims a terabyte for nothing).
    """
    status = os.stat(source)
    with tarfile.open(
        fileobj=cast("IO[bytes]", _Sink(out)), mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK
    ) as archive:
        packer = _Packer(archive)
        if stat.S_ISDIR(status.st_mode):
            archive.addfile(_member(".", status, source))
            packer.folder(source, ".")
        elif stat.S_ISREG(status.st_mode):
            packer.file(source, "file", follow=True)
        else:
            raise OSError(f"{source} is neither a file nor a folder")


def unpack(spool: IO[bytes], target: Path) -> None:
    """Check every member of the archive in ``spool`` (seekable), then write it to ``target``.

    A file goes to the path ``target``, a folder's contents into the folder ``target``. Symbolic links that lead outside
    are left out. Raises HostileArchiveError before anything is written; tarfile.TarError and EOFError for an archive
    that is cut off.
    """
    spool.seek(0)
    with tarfile.open(fileobj=cast("IO[bytes]", _Guarded(spool)), mode="r:") as archive:
        members = list(_checked(archive))
        for member in members:
            _write(archive, member, target)


class _Sink:
    """The file object that tarfile wants of an output stream."""

    def __init__(self, out: Writable) -> None:
        self._out = out

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            view = view[self._out.write(bytes(view)) :]
        return len(data)


class _Guarded:
    """Reads of an archive, none larger than a chunk: a header of gigabytes would be read into memory at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _CHUNK:
            raise HostileArchiveError(f"a header of {size} bytes")
        return self._file.read(size)


def _member(name: str, status: os.stat_result, path: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(status.st_mode)
    member.mtime = int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
    else:
        member.size = status.st_size
    return member


class _Packer:
    """Adds to an archive, and keeps count."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._total = 0

    def folder(self, path: str, name: str) -> None:
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            inner = f"{name}/{entry.name}"
            if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                self._archive.addfile(_member(inner, entry.stat(follow_symlinks=False), entry.path))
            if entry.is_dir(follow_symlinks=False):
                self.folder(entry.path, inner)
            elif entry.is_file(follow_symlinks=False):
                self.file(entry.path, inner)

    def file(self, path: str, name: str, *, follow: bool = False) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
        with os.fdopen(os.open(path, flags), "rb") as file:
            member = _member(name, os.fstat(file.fileno()), path)
            self._total += member.size
            _check_total(self._total)
            self._archive.addfile(member, file)


def _check_total(size: int) -> None:
    if size > MAX_MB << 20:
        raise HostileArchiveError(f"more than {MAX_MB} MiB")


def _checked(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    total = 0
    links: set[str] = set()
    seen: set[str] = set()
    for count, member in enumerate(archive):
        if count >= MAX_MEMBERS:
            raise HostileArchiveError(f"more than {MAX_MEMBERS} members")
        total += member.size
        _check_total(total)
        _check_kind(member)
        name = _check_name(member.name, seen, links)
        if member.issym():
            links.add(name)
            if _leads_outside(name, member.linkname):
                continue  # an agent's harmless link to a system's file must not cost a verdict
        yield member


def _check_kind(member: tarfile.TarInfo) -> None:
    if member.issparse() or not (member.isreg() or member.isdir() or member.issym()):
        raise HostileArchiveError(f"{member.name!r} is not a plain file, folder or symbolic link")


def _check_name(raw: str, seen: set[str], links: set[str]) -> str:
    name = str(PurePosixPath(raw))
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise HostileArchiveError(f"{raw!r} leads outside")
    if name in seen:
        raise HostileArchiveError(f"{raw!r} comes twice")
    seen.add(name)
    if any("/".join(parts[:depth]) in links for depth in range(1, len(parts))):
        raise HostileArchiveError(f"{raw!r} lies below a symbolic link")
    return name


def _leads_outside(name: str, link: str) -> bool:
    """``..`` only ahead of names: behind one it could climb out of a folder that is itself a link."""
    parts = PurePosixPath(link).parts
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    depth = len(PurePosixPath(name).parts) - 1
    return link.startswith("/") or "\0" in link or not link or climbs > depth or ".." in parts[climbs:]


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    path = target if member.name in (".", "file") else target / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    if member.issym():
        path.symlink_to(member.linkname)
        return
    source = archive.extractfile(member)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, member.mode & 0o777 | 0o600), "wb") as file:
        shutil.copyfileobj(source or _empty(), file, _CHUNK)


def _empty() -> IO[bytes]:
    return open(os.devnull, "rb")
