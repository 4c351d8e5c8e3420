"""INDEX_FILE and INSTANCES_FILE: every problem at once, and the shard in the order of the index."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolloutgen.errors import FindingsError, Level
from rolloutgen.index import Index, select
from samples import row, write_index


def problems(path: Path) -> list[str]:
    with pytest.raises(FindingsError) as raised:
        Index.read(path)
    assert all(finding.level is Level.FATAL for finding in raised.value.findings)
    return [finding.message for finding in raised.value.findings]


def changed(name: str, **extra_info: Any) -> dict[str, Any]:
    one = row(name)
    return {**one, "extra_info": {**one["extra_info"], **extra_info}}


def test_relative_task_paths_are_taken_from_the_indexs_folder(tmp_path: Path) -> None:
    index = Index.read(write_index(tmp_path / "i.parquet", [row("a"), row("b", "/tasks/b")]))
    assert [(i.instance_id, i.task_path) for i in select(index, None).instances] == [
        ("a", tmp_path / "tasks/a"),
        ("b", Path("/tasks/b")),
    ]


def test_real_indexes_are_valid(humaneval: Path, quixbugs: Path) -> None:
    for folder, rows in ((humaneval, 164), (quixbugs, 29)):
        shard = select(Index.read(folder / "index.parquet"), None)
        assert len(shard) == rows
        assert all(instance.task_path.is_dir() for instance in shard.instances)


def test_missing_and_wrong_columns_are_told_at_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["text"], "extra_info": [{"instance_id": 7}]}), tmp_path / "i.parquet")
    told = "\n".join(problems(tmp_path / "i.parquet"))
    for part in (
        "'prompt' must be a list",
        "'reward_model' is missing",
        "'harbor_task_path' is missing",
        "'data_source' is missing",
        "'instance_id' must be text; it is int64",
    ):
        assert part in told


def test_bad_rows_are_told_at_once_by_kind_and_number(tmp_path: Path) -> None:
    rows = [
        row("fine"),
        changed("", harbor_task_path=None),
        changed("x", instance_id=None, data_source="other"),
        {**row("y"), "extra_info": None},
        changed("nul", harbor_task_path="a\0b"),
    ]
    told = problems(write_index(tmp_path / "i.parquet", rows))
    assert len(told) == 4
    assert "instance_id is null or empty in 3 rows: 1, 2, 3" in told[0]
    assert "harbor_task_path is null or empty in 2 rows: 1, 3" in told[1]
    assert "NUL in 1 rows: 4" in told[2]
    assert "data_source is not 'harbor' in 2 rows: 2, 3" in told[3]


def test_duplicate_ids_are_named_with_their_paths(tmp_path: Path) -> None:
    """C18."""
    rows = [row("a"), row("b", "one/b"), row("b", "other/b"), row("c")]
    told = problems(write_index(tmp_path / "i.parquet", rows))
    assert len(told) == 1
    for part in ("'b'", "2 rows", "'one/b'", "'other/b'"):
        assert part in told[0]


def test_only_the_first_duplicates_are_named(tmp_path: Path) -> None:
    rows = [row(f"id{number}") for number in range(30)] * 2
    told = problems(write_index(tmp_path / "i.parquet", rows))
    assert len(told) == 11
    assert "20 more" in told[-1]


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    )
    good = pa.array(["harbor"])
    extra = pa.StructArray.from_arrays([good, bad, good], ["harbor_task_path", "instance_id", "data_source"])
    table = pa.Table.from_pylist([row("a")]).set_column(2, "extra_info", extra)
    pq.write_table(table, tmp_path / "i.parquet")
    assert "instance_id holds text that is not UTF-8" in problems(tmp_path / "i.parquet")[0]


def test_no_file_is_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / "i.parquet"
    assert problems(path) == [f"{path}: does not exist"]


@pytest.mark.parametrize("content", [b"", b"no parquet"], ids=["empty", "other"])
def test_what_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "i.parquet"
    path.write_bytes(content)
    assert "cannot be read as parquet" in problems(path)[0]


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=["large", "view", "dictionary"],
)
def test_other_kinds_of_text_and_extra_columns_are_fine(tmp_path: Path, kind: pa.DataType) -> None:
    names = ("harbor_task_path", "instance_id", "data_source")
    values = [pa.array(column).cast(kind) for column in (["t/a", "t/b"], ["a", "b"], ["harbor", "harbor"])]
    extra = pa.StructArray.from_arrays([*values, pa.array([1, 2])], [*names, "difficulty"])
    table = pa.Table.from_pylist([row("a", level=1), row("b", level=2)]).set_column(2, "extra_info", extra)
    pq.write_table(table, tmp_path / "i.parquet")
    assert list(select(Index.read(tmp_path / "i.parquet"), None).instances.ids()) == ["a", "b"]


def test_an_empty_index_is_valid(tmp_path: Path) -> None:
    """A5: what is written for an empty selection (C19) is an INDEX_FILE too."""
    index = Index.read(write_index(tmp_path / "i.parquet", []))
    assert len(index) == 0
    assert [finding.level for finding in index.warnings] == [Level.WARN]


def test_instances_are_a_sequence(tmp_path: Path) -> None:
    shard = select(Index.read(write_index(tmp_path / "i.parquet", map(row, "abcd"))), None)
    assert shard.instances[-1].instance_id == "d"
    assert [i.instance_id for i in shard.instances[1:3]] == ["b", "c"]
    assert list(shard.instances) == [shard.instances[position] for position in range(4)]
    with pytest.raises(IndexError):
        shard.instances[4]


def chosen(folder: Path, ids: list[str], text: str | bytes) -> list[str]:
    index = Index.read(write_index(folder / "i.parquet", map(row, ids)))
    (folder / "shard.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(select(index, folder / "shard.txt").instances.ids())


def test_the_shard_keeps_the_indexs_order(tmp_path: Path) -> None:
    """A10: one id a line, `#` comments and blanks ignored."""
    assert chosen(tmp_path, list("abcd"), "# the shard\n\nd\n  # more\nb") == ["b", "d"]


@pytest.mark.parametrize("text", [b"\xef\xbb\xbfa\r\nc\r\n", b" a \n\tc\n", b"a # good\nc\t# too\n", b"c\na"])
def test_lines_are_read_kindly(tmp_path: Path, text: bytes) -> None:
    assert chosen(tmp_path, list("abc"), text) == ["a", "c"]


def test_an_id_with_a_hash_or_blanks_wins_over_a_comment(tmp_path: Path) -> None:
    ids = ["a", "a #1", "b#2", " c", "d\u2028e"]
    assert chosen(tmp_path, ids, "a #1 # first\nb#2\n c\nd\u2028e\n") == ids[1:]


def test_unknown_ids_are_fatal_first_ten_and_count(tmp_path: Path) -> None:
    with pytest.raises(FindingsError) as raised:
        chosen(tmp_path, ["a"], "a\n" + "".join(f"no{number}\n" for number in range(25)) + "no3\n")
    (finding,) = raised.value.findings
    assert finding.level is Level.FATAL
    assert "25 ids" in finding.message
    assert "'no9' and 15 more" in finding.message
    assert "'no10'" not in finding.message
    assert finding.where == str(tmp_path / "shard.txt")


def test_an_id_twice_is_a_warning(tmp_path: Path) -> None:
    index = Index.read(write_index(tmp_path / "i.parquet", map(row, "abc")))
    (tmp_path / "shard.txt").write_text("b\na\nb\n")
    shard = select(index, tmp_path / "shard.txt")
    assert list(shard.instances.ids()) == ["a", "b"]
    assert [finding.level for finding in shard.warnings] == [Level.WARN]
    assert "'b'" in shard.warnings[0].message


@pytest.mark.parametrize(
    "text", [None, b"", b"# nothing\n\n", b"\xff\xfea\x00"], ids=["absent", "empty", "comments", "utf16"]
)
def test_a_file_that_names_nothing_is_refused(tmp_path: Path, text: bytes | None) -> None:
    index = Index.read(write_index(tmp_path / "i.parquet", map(row, "abc")))
    if text is not None:
        (tmp_path / "shard.txt").write_bytes(text)
    with pytest.raises(FindingsError) as raised:
        select(index, tmp_path / "shard.txt")
    assert [(f.subject, f.where) for f in raised.value.findings] == [("INSTANCES_FILE", str(tmp_path / "shard.txt"))]
