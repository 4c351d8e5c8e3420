"""The contract of ``Sandbox.upload`` and ``download``, for every backend."""

import asyncio
import hashlib
import os
import stat
from pathlib import Path

import pytest

from rolloutgen.errors import SandboxError, TransportError
from rolloutgen.sandbox.base import Sandbox

from .conftest import MakeSandbox


def _tree(root: Path) -> dict[str, tuple[int, bytes | str]]:
    """Name -> (mode, content, or target of a link)."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = (0, str(path.readlink()))
        elif path.is_file():
            found[name] = (mode, path.read_bytes())
        else:
            found[name] = (0, "folder")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub" / "bytes").write_bytes(bytes(range(256)))
    (root / "sub" / "bytes").chmod(0o640)
    (root / "sub" / "name with ünïcode\nand newline").write_text("x")
    (root / ("long" * 40)).write_text("long name")
    (root / "link").symlink_to("sub/bytes")
    (root / "sub" / "up").symlink_to("../run.sh")
    return root


async def test_folder_there_and_back(sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    await sandbox.upload(folder, "/deep/er/in")
    result = await sandbox.exec(
        "/deep/er/in/run.sh; stat -c '%u %g %a' /deep/er/in/run.sh; cat /deep/er/in/link | wc -c"
    )
    assert result.stdout == b"ran\n0 0 755\n256\n"
    await sandbox.download("/deep/er/in", tmp_path / "a" / "back")
    assert _tree(tmp_path / "a" / "back") == _tree(folder)


async def test_file_there_and_back(sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    await sandbox.upload(folder / "run.sh", "/new/place/other.sh")
    assert (await sandbox.exec("/new/place/other.sh")).stdout == b"ran\n"
    await sandbox.download("/new/place/other.sh", tmp_path / "x" / "y.sh")
    assert (tmp_path / "x" / "y.sh").read_bytes() == (folder / "run.sh").read_bytes()


async def test_upload_into_a_folder_that_exists_adds_and_replaces(sandbox: Sandbox, folder: Path) -> None:
    await sandbox.exec("mkdir -p /t/sub; echo old > /t/run.sh; ln -sf /etc/passwd /t/link; echo kept > /t/sub/kept")
    await sandbox.upload(folder, "/t")
    result = await sandbox.exec("/t/run.sh; cat /t/sub/kept; readlink /t/link; head -c 4 /etc/passwd")
    assert result.stdout == b"ran\nkept\nsub/bytes\nroot"


async def test_missing_source(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await sandbox.download("/not/there", tmp_path / "back")
    with pytest.raises(ValueError, match="does not exist"):
        await sandbox.upload(tmp_path / "nowhere", "/x")
    assert not (tmp_path / "back").exists()


async def test_upload_where_no_file_can_be_is_told(sandbox: Sandbox, folder: Path) -> None:
    with pytest.raises(TransportError, match="upload"):
        await sandbox.upload(folder, "/dev/null/x")
    assert (await sandbox.exec("true")).exit_status == 0


@pytest.mark.parametrize(
    "plant",
    [
        "ln -s /etc/passwd /x/absolute",
        "ln -s ../../etc/passwd /x/climbs",
        "mkdir /x/a && ln -s a/../../etc /x/through",
        "mkdir -p /x/a/b && ln -s ../.. /x/a/b/top && ln -s a/b/top/../etc /x/chained",
    ],
)
async def test_links_that_lead_outside_are_left_out(sandbox: Sandbox, tmp_path: Path, plant: str) -> None:
    assert (await sandbox.exec(f"mkdir /x; echo one > /x/0; {plant}")).exit_status == 0
    back = tmp_path / "back"
    await sandbox.download("/x", back)
    assert (back / "0").read_text() == "one\n"
    links = [path for path in back.rglob("*") if path.is_symlink()]
    assert all(path.resolve().is_relative_to(back.resolve()) for path in links)


async def test_special_files_never_arrive(sandbox: Sandbox, tmp_path: Path) -> None:
    """A fifo must not make the copy wait, and nothing but files, folders and links comes out."""
    await sandbox.exec("mkdir /x; mkfifo /x/fifo; mknod /x/device c 1 3; echo one > /x/file; chmod 4777 /x/file")
    async with asyncio.timeout(60):
        await sandbox.download("/x", tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["file"]
    assert stat.S_IMODE((tmp_path / "back" / "file").stat().st_mode) == 0o777 & ~_umask()


async def test_sparse_giant_is_refused_in_bounded_time(sandbox: Sandbox, tmp_path: Path) -> None:
    """One command can make a file that claims a terabyte."""
    await sandbox.exec("mkdir /x; truncate -s 1T /x/giant")
    with pytest.raises(SandboxError, match="MiB"):
        await sandbox.download("/x", tmp_path / "back")
    assert list(tmp_path.iterdir()) == []


async def test_links_in_the_sandbox_lead_an_upload_nowhere_but_there(sandbox: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    await sandbox.exec(f"mkdir -p {outside.parent}; ln -s {outside} /tests")
    (tmp_path / "file").write_text("x")
    await sandbox.upload(tmp_path / "file", "/logs/../tests/file")
    assert list(outside.iterdir()) == []


@pytest.mark.slow
async def test_half_a_gigabyte_each_way(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    sandbox = await make_sandbox(memory_mb=4096, storage_mb=1500)
    big = tmp_path / "big"
    with big.open("wb") as file:
        for _ in range(500):
            file.write(os.urandom(1 << 20))
    await sandbox.upload(big, "/app/big")
    await sandbox.download("/app/big", tmp_path / "back")
    assert _digest(big) == _digest(tmp_path / "back")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
