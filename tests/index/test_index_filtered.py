"""OUTPUT_INDEX: exactly the selected rows, valid wherever it lies, nothing else changed (A5, A22, A26, A27, C19)."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutgen.errors import StoreError
from rolloutgen.index import Index, Shard, select, write_filtered
from samples import row, write_index

FIELDS = ("harbor_task_path", "instance_id", "data_source")
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])


def whole(path: Path) -> Shard:
    return select(Index.read(path), None)


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return found


def schema(path: Path) -> pa.Schema:
    return pq.ParquetFile(path).schema_arrow


def same_schema(a: Path, b: Path) -> bool:
    """Types, names of list items, nullability, metadata of the file and of every field."""
    same: bool = schema(a).equals(schema(b), check_metadata=True)
    return same and str(schema(a)) == str(schema(b))


def test_real_input(humaneval: Path, tmp_path: Path) -> None:
    """A5, A26: selected rows in order; relative paths absolute, in prompt too; the rest untouched; valid elsewhere."""
    source, output = humaneval / "index.parquet", tmp_path / "elsewhere" / "out.parquet"
    output.parent.mkdir()
    assert write_filtered(whole(source), {"humaneval_7", "humaneval_3"}, output) == 2
    expected = []
    for old in rows(source):
        info = old["extra_info"]
        if info["instance_id"] in ("humaneval_3", "humaneval_7"):
            path = str(humaneval / info["harbor_task_path"])
            info = {**info, "harbor_task_path": path}
            expected.append({**old, "prompt": [{"role": "user", "content": path}], "extra_info": info})
    assert rows(output) == expected
    assert same_schema(source, output)
    assert all(instance.task_path.is_dir() for instance in whole(output).instances)


def test_only_contents_equal_to_the_relative_path_change(tmp_path: Path) -> None:
    system = {"role": "system", "content": "solve tasks/a"}
    untouched = row("c", "/abs/c")
    source = write_index(
        tmp_path / "i.parquet",
        [
            {**row("a"), "prompt": [system, {"role": "user", "content": "tasks/a"}, {"role": "user", "content": None}]},
            {**row("b"), "prompt": None},
            untouched,
            {**row("d"), "prompt": []},
            {**row("e"), "prompt": [{"role": "user", "content": "tasks/a"}, None]},
        ],
    )
    write_filtered(whole(source), set("abcde"), tmp_path / "o.parquet")
    a, b, c, d, e = rows(tmp_path / "o.parquet")
    here = str(tmp_path / "tasks/a")
    assert a["prompt"] == [system, {"role": "user", "content": here}, {"role": "user", "content": None}]
    assert (b["prompt"], d["prompt"]) == (None, [])
    assert b["extra_info"]["harbor_task_path"] == str(tmp_path / "tasks/b")
    assert c == untouched
    assert e["prompt"] == [{"role": "user", "content": "tasks/a"}, None]


def odd_table() -> pa.Table:
    """Columns of many kinds beside the pointers, with metadata on file and field."""
    n = 6
    base = pa.Table.from_pylist([row(f"id{i}") for i in range(n)])
    text = [pa.array([f"tasks/id{i}" for i in range(n)]), pa.array([f"id{i}" for i in range(n)])]
    info = [
        text[0].dictionary_encode(),
        text[1].cast(pa.large_string()),
        pa.array(["harbor"] * n).cast(pa.string_view()),
    ]
    extra_fields = [pa.field(name, v.type, metadata={"of": name}) for name, v in zip(FIELDS, info, strict=True)]
    extra_fields.append(pa.field("level", pa.int32(), nullable=False))
    reward = pa.StructArray.from_arrays([pa.array(["rule"] * n), pa.nulls(n)], ["style", "ground_truth"])
    columns: dict[str, Any] = {
        "when": pa.array(range(n), pa.timestamp("ns", "UTC")),
        "kind": pa.array(list("ababab")).dictionary_encode(),
        "view": pa.array(list("abcdef"), pa.string_view()),
        "tags": pa.array([[("k", 1)], [], None, [("l", None)], [], []], pa.map_(pa.string(), pa.int16())),
        "raw": pa.array([b"\xff", b""] * 3, pa.binary_view()),
        "small": pa.array([1, None] * 3, pa.int8()),
        "nan": pa.array([float("nan"), None] * 3, pa.float32()),
        "price": pa.array([None] * n, pa.decimal128(9, 2)),
        "prompt": base["prompt"].combine_chunks().cast(pa.large_list(MESSAGE)),
        "reward_model": reward,
        "extra_info": pa.StructArray.from_arrays([*info, pa.array(range(n), pa.int32())], fields=extra_fields),
    }
    fields = [pa.field(name, values.type, metadata={"column": name}) for name, values in columns.items()]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields, {"made": "by hand", "pandas": "{}"}))


@pytest.mark.parametrize("compliant", [True, False], ids=["element", "item"])
def test_schema_and_values_of_every_kind_stay(tmp_path: Path, compliant: bool) -> None:
    """A26: the same Arrow schema, metadata included."""
    source, output = tmp_path / "i.parquet", tmp_path / "o.parquet"
    pq.write_table(odd_table(), source, use_compliant_nested_type=compliant)
    assert write_filtered(whole(source), {"id1", "id4", "id5"}, output) == 3
    assert same_schema(source, output)
    pointers = ["prompt", "extra_info"]
    others = pq.ParquetFile(source).read().drop_columns(pointers).slice(1, 1)
    kept = pq.ParquetFile(output).read().drop_columns(pointers)
    assert kept.slice(0, 1).to_pylist() == others.to_pylist()
    info = rows(output)[2]
    assert info["extra_info"] == {**dict.fromkeys(FIELDS), **info["extra_info"]}
    assert info["extra_info"]["level"] == 5
    assert info["prompt"][0]["content"] == info["extra_info"]["harbor_task_path"] == str(tmp_path / "tasks/id5")


def test_fixed_size_prompts_move_too(tmp_path: Path) -> None:
    source, output = tmp_path / "i.parquet", tmp_path / "o.parquet"
    table = pa.Table.from_pylist([row(name) for name in "abc"])
    prompts = table["prompt"].combine_chunks().cast(pa.list_(MESSAGE, 1))
    pq.write_table(table.set_column(table.schema.get_field_index("prompt"), "prompt", prompts), source)
    write_filtered(whole(source), {"b"}, output)
    assert rows(output)[0]["prompt"] == [{"role": "user", "content": str(tmp_path / "tasks/b")}]
    assert same_schema(source, output)


def test_nothing_selected_is_an_empty_index_with_the_full_schema(tmp_path: Path) -> None:
    """C19; the file is a valid INDEX_FILE."""
    source, output = tmp_path / "i.parquet", tmp_path / "o.parquet"
    pq.write_table(odd_table(), source)
    assert write_filtered(whole(source), set(), output) == 0
    assert same_schema(source, output)
    assert len(whole(output)) == 0
    assert write_filtered(whole(output), set(), tmp_path / "again.parquet") == 0


@settings(deadline=None, max_examples=30)
@given(chosen=st.sets(st.integers(0, 99)), group=st.integers(1, 60))
def test_any_selection_over_any_row_groups(
    tmp_path_factory: pytest.TempPathFactory, chosen: set[int], group: int
) -> None:
    """Exactly the selected rows in the index's order, by the same bytes each time, in groups no larger than before."""
    folder = tmp_path_factory.mktemp("any")
    source = write_index(folder / "i.parquet", [row(f"id{i}") for i in range(100)], row_group_size=group)
    shard, ids = whole(source), {f"id{i}" for i in chosen}
    assert write_filtered(shard, ids, folder / "o.parquet") == len(ids)
    assert [r["extra_info"]["instance_id"] for r in rows(folder / "o.parquet")] == [f"id{i}" for i in sorted(chosen)]
    write_filtered(shard, sorted(ids), folder / "p.parquet")
    assert (folder / "o.parquet").read_bytes() == (folder / "p.parquet").read_bytes()
    assert pq.ParquetFile(folder / "o.parquet").metadata.num_row_groups == -(-len(ids) // group)


@pytest.mark.parametrize("codec", ["NONE", "ZSTD", "GZIP"])
def test_the_codec_stays(tmp_path: Path, codec: str) -> None:
    source = write_index(tmp_path / "i.parquet", map(row, "ab"), compression=codec)
    write_filtered(whole(source), {"a"}, tmp_path / "o.parquet")
    column = pq.ParquetFile(tmp_path / "o.parquet").metadata.row_group(0).column(0)
    assert column.compression == codec.replace("NONE", "UNCOMPRESSED")


def test_shards_concatenate_by_pandas_empty_ones_included(tmp_path: Path) -> None:
    """A27, A22: two nodes' filtered indexes and an empty one, as the documentation's line has it."""
    shards = []
    for node, (ids, chosen) in enumerate([("abc", {"a", "c"}), ("de", set()), ("fg", {"g"})]):
        folder = tmp_path / f"data{node}"
        folder.mkdir()
        source = write_index(folder / "i.parquet", map(row, ids))
        write_filtered(whole(source), chosen, tmp_path / f"node{node}.parquet")
        shards.append(tmp_path / f"node{node}.parquet")
    merged = tmp_path / "merged.parquet"
    pd.concat([pd.read_parquet(p) for p in shards], ignore_index=True).to_parquet(merged)
    assert [(i.instance_id, i.task_path) for i in whole(merged).instances] == [
        ("a", tmp_path / "data0/tasks/a"),
        ("c", tmp_path / "data0/tasks/c"),
        ("g", tmp_path / "data2/tasks/g"),
    ]


def test_a_pandas_index_survives(tmp_path: Path) -> None:
    """An index that pandas wrote, with an index of its own, is read by pandas as before."""
    frame = pd.DataFrame([row(name) for name in "abc"], index=pd.Index([10, 20, 30], name="n"))
    frame.to_parquet(tmp_path / "i.parquet")
    write_filtered(whole(tmp_path / "i.parquet"), {"b", "c"}, tmp_path / "o.parquet")
    assert list(pd.read_parquet(tmp_path / "o.parquet").index) == [20, 30]
    assert same_schema(tmp_path / "i.parquet", tmp_path / "o.parquet")
    plain = pd.DataFrame([row(name, n=np.int8(1)) for name in "abc"])
    plain.to_parquet(tmp_path / "j.parquet")
    write_filtered(whole(tmp_path / "j.parquet"), {"c"}, tmp_path / "o.parquet")
    assert list(pd.read_parquet(tmp_path / "o.parquet").index) == [0]


def test_an_index_that_changed_meanwhile_is_loud_and_leaves_the_old_output(tmp_path: Path) -> None:
    source, output = write_index(tmp_path / "i.parquet", map(row, "abc")), tmp_path / "o.parquet"
    shard = whole(source)
    write_filtered(shard, {"a"}, output)
    before = output.read_bytes()
    write_index(source, map(row, "ab"))
    with pytest.raises(StoreError, match="has changed"):
        write_filtered(shard, {"b", "c"}, output)
    assert output.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["i.parquet", "o.parquet"]


def test_an_index_that_names_another_task_meanwhile_is_loud(tmp_path: Path) -> None:
    """What was measured is not what the row says now."""
    shard = whole(write_index(tmp_path / "i.parquet", map(row, "abc")))
    write_index(tmp_path / "i.parquet", [row("c"), row("b", "tasks/other"), row("a")])
    assert write_filtered(shard, {"a", "c"}, tmp_path / "o.parquet") == 2
    with pytest.raises(StoreError, match="other tasks now for 'b'"):
        write_filtered(shard, {"a", "b"}, tmp_path / "o.parquet")


def test_the_index_itself_is_never_overwritten(tmp_path: Path) -> None:
    source = write_index(tmp_path / "i.parquet", map(row, "abc"))
    (tmp_path / "link.parquet").symlink_to(source)
    before = source.read_bytes()
    for output in (source, tmp_path / "link.parquet"):
        with pytest.raises(StoreError, match="INDEX_FILE itself"):
            write_filtered(whole(source), {"a"}, output)
    assert source.read_bytes() == before


def test_a_folder_that_is_not_there_is_loud(tmp_path: Path) -> None:
    source = write_index(tmp_path / "i.parquet", map(row, "abc"))
    with pytest.raises(StoreError, match="could not be written"):
        write_filtered(whole(source), {"a"}, tmp_path / "none" / "o.parquet")
