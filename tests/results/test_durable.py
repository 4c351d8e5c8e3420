"""Files that are written whole or not at all."""

from pathlib import Path

import pytest

from rolloutgen.errors import StoreError
from rolloutgen.results.durable import replace, replacing, sync_folder, temporary


class StopHereError(Exception):
    pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def write_half(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"half")
        raise StopHereError


def test_a_block_that_raises_leaves_no_trace(tmp_path: Path) -> None:
    replace(tmp_path / "a", b"old")
    with pytest.raises(StopHereError):
        write_half(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_what_a_kill_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """Also when it is a link to somewhere else: it is never written through."""
    (tmp_path / "other").write_bytes(b"other")
    temporary(tmp_path / "a").symlink_to(tmp_path / "other")
    replace(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "other").read_bytes() == b"other"
    assert names(tmp_path) == ["a", "other"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    replace(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_refusal_of_the_disk_is_loud(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="none/a could not be written"):
        replace(tmp_path / "none" / "a", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="folder could not be written"):
        replace(tmp_path / "folder", b"")
    assert names(tmp_path) == ["folder"]
    with pytest.raises(StoreError, match="could not be written"), replacing(Path("/dev/full").parent / "full" / "x"):
        pass


def test_a_file_system_that_syncs_no_folders_is_no_error() -> None:
    """As some network file systems; /proc is one that every machine has."""
    sync_folder(Path("/proc"))
