"""What comes out of a sandbox is hostile: every trick of an archive, against the real unpacker."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutgen.sandbox.archive import HostileArchiveError, pack, unpack


def _archive(*members: tarfile.TarInfo, data: bytes = b"") -> io.BytesIO:
    spool = io.BytesIO()
    with tarfile.open(fileobj=spool, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return spool


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


HOSTILE = {
    "absolute name": [_member("/etc/cron.d/x")],
    "climbing name": [_member("./a/../../x")],
    "name twice": [_member("./a"), _member("a")],
    "file below a link": [_member("./a", tarfile.SYMTYPE, "b"), _member("./a/x")],
    "hard link": [_member("./b"), _member("./a", tarfile.LNKTYPE, "b")],
    "character device": [_member("./a", tarfile.CHRTYPE)],
    "block device": [_member("./a", tarfile.BLKTYPE)],
    "fifo": [_member("./a", tarfile.FIFOTYPE)],
    "unknown kind": [_member("./a", b"Z")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_member_is_refused_before_anything_is_written(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    honest = _member("./aaa")
    with pytest.raises(HostileArchiveError):
        unpack(_archive(honest, *members), tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", ["/etc", "..", "b/../../c", ""])
def test_link_that_leads_outside_is_left_out(tmp_path: Path, link: str) -> None:
    """``b/../../c``: b may be a link itself. What an agent links for its own use must not cost its verdict."""
    members = [_member("./a", tarfile.SYMTYPE, link), _member("./reward.txt")]
    unpack(_archive(_member(".", tarfile.DIRTYPE), *members), tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["reward.txt"]


def test_file_below_a_link_that_is_left_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostileArchiveError):
        unpack(_archive(_member("./a", tarfile.SYMTYPE, "/etc"), _member("./a/x")), tmp_path / "target")


def test_claimed_size_is_refused(tmp_path: Path) -> None:
    giant = _member("./giant")
    giant.size = 1 << 40
    spool = io.BytesIO(giant.tobuf() + bytes(10240))
    with pytest.raises((HostileArchiveError, tarfile.ReadError)):
        unpack(spool, tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_giant_extended_header_is_refused(tmp_path: Path) -> None:
    """Python reads one into memory as a whole: a way to end the driver."""
    header = _member("./x", tarfile.XHDTYPE)
    header.size = 1 << 30
    with pytest.raises(HostileArchiveError, match="header"):
        unpack(io.BytesIO(header.tobuf() + bytes(10240)), tmp_path / "target")


@pytest.mark.parametrize("cut", [100, 512, 700, 1500])
def test_archive_that_is_cut_off_is_an_error(tmp_path: Path, cut: int) -> None:
    member = _member("./a")
    member.size = 2000
    data = _archive(member, data=b"x" * 2000).getvalue()[:cut]
    with pytest.raises((tarfile.TarError, EOFError)):
        unpack(io.BytesIO(data), tmp_path / "target")


def test_existing_link_at_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    target = tmp_path / "target"
    target.mkdir()
    (target / "a").symlink_to(outside)
    unpack(_archive(_member(".", tarfile.DIRTYPE), _member("./a")), target)
    assert outside.read_text() == "mine"
    assert not (target / "a").is_symlink()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/nowhere")], ids=["fifo", "dangling link"])
def test_packing_what_is_no_file_is_an_error(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd")
    with pytest.raises(OSError, match="odd"):
        pack(str(tmp_path / "odd"), io.BytesIO())
