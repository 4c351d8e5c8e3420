"""OUTPUT_INDEX: the selected rows of the index, in its order, valid wherever the file lies (A5, A26, C19).

Schema, metadata and every other value stay as they are. The same outcomes give the same bytes. The index is read again
in parts and written in row groups of its own size, so memory follows one row group and not the file.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rolloutgen.errors import StoreError
from rolloutgen.index import schema
from rolloutgen.index.shard import Shard
from rolloutgen.index.table import Index, absolute, named, text
from rolloutgen.index.views import stored_schema, without_views
from rolloutgen.results.durable import replacing

_BATCH: Final = 65_536
"""Rows read at a time."""


def write_filtered(shard: Shard, selected: Collection[str], output: Path) -> int:
    """Write the rows whose id is in ``selected`` (ids of the shard), and return how many.

    Raises StoreError where the index lacks a selected id by now or gives it another task, cannot be read any more, or
    ``output`` cannot be written; an older ``output`` then stands as it was.
    """
    source = shard.index.path
    if output.exists() and output.samefile(source):
        raise StoreError(f"OUTPUT_INDEX is INDEX_FILE itself: {output}")
    wanted = pa.array(selected, pa.large_string())
    try:
        with pq.ParquetFile(source) as file, replacing(output) as target:
            written = _write(file, _Wanted(wanted, _tasks_of(wanted, shard.index), source), target)
            if written != len(wanted):
                raise StoreError(
                    f"{source} has changed: {len(wanted)} rows are selected, {written} of them are left in it"
                )
    except pa.ArrowException as error:
        raise StoreError(f"{source} could not be filtered: {error}") from error
    return written


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """Selected ids, the task that was measured for each (an absolute path), and the index that they are taken from."""

    ids: pa.Array
    tasks: pa.Array
    source: Path


def _tasks_of(ids: pa.Array, index: Index) -> pa.Array:
    return index.task_paths.take(pc.index_in(ids, index.ids))


def _write(file: pq.ParquetFile, wanted: _Wanted, target: BinaryIO) -> int:
    written = 0
    asked, plain = file.schema_arrow, without_views(file.schema_arrow)
    has_views = plain != asked
    with pq.ParquetWriter(target, plain, store_schema=not has_views, **_layout(file)) as writer:
        if has_views:
            writer.add_key_value_metadata(stored_schema(asked))
        for group in _groups(_kept(file, plain, wanted), _group_rows(file)):
            writer.write_table(group, row_group_size=len(group))
            written += len(group)
    return written


def _layout(file: pq.ParquetFile) -> dict[str, object]:
    """How the file is laid out on disk: codec, and the name of list items, which readers see in the schema."""
    groups = file.metadata.num_row_groups
    codec = file.metadata.row_group(0).column(0).compression if groups else "SNAPPY"
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    plain = any(".list.item" in path for path in paths)
    return {"compression": "NONE" if codec == "UNCOMPRESSED" else codec, "use_compliant_nested_type": not plain}


def _group_rows(file: pq.ParquetFile) -> int:
    meta = file.metadata
    return max((meta.row_group(i).num_rows for i in range(meta.num_row_groups)), default=1)


def _kept(file: pq.ParquetFile, plain: pa.Schema, wanted: _Wanted) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(_BATCH):
        ids = text(pc.struct_field(batch[schema.EXTRA_INFO], schema.INSTANCE_ID))
        kept = batch.cast(plain).filter(pc.is_in(ids, wanted.ids))
        if len(kept):
            _check_tasks(kept, wanted)
            yield _absolute_paths(kept, wanted.source.parent)


def _check_tasks(kept: pa.RecordBatch, wanted: _Wanted) -> None:
    """The rows must still name the tasks that were measured: the file is read again, hours later."""
    ids, paths = (text(pc.struct_field(kept[schema.EXTRA_INFO], n)) for n in (schema.INSTANCE_ID, schema.TASK_PATH))
    measured = wanted.tasks.take(pc.index_in(ids, wanted.ids))
    others = ids.filter(pc.fill_null(pc.not_equal(absolute(paths, wanted.source.parent), measured), True))
    if len(others):
        raise StoreError(f"{wanted.source} has changed: it names other tasks now for {named(others.to_pylist())}")


def _groups(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Tables of ``rows`` rows (the last one less): where batches end does not show in the file."""
    pending: list[pa.RecordBatch] = []
    waiting = 0
    for batch in batches:
        pending.append(batch)
        waiting += len(batch)
        while waiting >= rows:
            table = pa.Table.from_batches(pending)
            yield table.slice(0, rows)
            pending = table.slice(rows).to_batches()
            waiting -= rows
    if waiting:
        yield pa.Table.from_batches(pending)


def _absolute_paths(batch: pa.RecordBatch, folder: Path) -> pa.RecordBatch:
    """Relative task paths, and message contents equal to them, become absolute."""
    extra = batch[schema.EXTRA_INFO]
    paths = text(pc.struct_field(extra, schema.TASK_PATH))
    if pc.all(pc.starts_with(paths, "/")).as_py():
        return batch
    moved = absolute(paths, folder)
    batch = _with_column(batch, schema.EXTRA_INFO, _with_field(extra, schema.TASK_PATH, moved))
    return _with_column(batch, schema.PROMPT, _messages(batch[schema.PROMPT], paths, moved))


def _messages(prompts: pa.Array, old: pa.Array, new: pa.Array) -> pa.Array:
    """``prompts`` (a list of messages a row) with each content equal to the row's ``old`` path replaced by ``new``."""
    messages, rows = _flat(prompts)
    content = text(pc.struct_field(messages, "content"))
    same = pc.fill_null(pc.equal(content, old.take(rows)), False)
    return _relist(prompts, _with_field(messages, "content", pc.if_else(same, new.take(rows), content)))


def _flat(prompts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """All messages in one array, and the row of each."""
    if pa.types.is_fixed_size_list(prompts.type):
        size = prompts.type.list_size
        messages = prompts.values.slice(prompts.offset * size, len(prompts) * size)
        return messages, pa.array(np.repeat(np.arange(len(prompts)), size))
    offsets = prompts.offsets.to_numpy()
    messages = prompts.values.slice(offsets[0], offsets[-1] - offsets[0])
    return messages, pa.array(np.repeat(np.arange(len(prompts)), np.diff(offsets)))


def _relist(prompts: pa.Array, messages: pa.Array) -> pa.Array:
    """``prompts`` with other messages, as many and in the same places."""
    missing = prompts.is_null()
    if pa.types.is_fixed_size_list(prompts.type):
        return pa.FixedSizeListArray.from_arrays(messages, type=prompts.type, mask=missing)
    kind = pa.LargeListArray if pa.types.is_large_list(prompts.type) else pa.ListArray
    offsets = prompts.offsets.to_numpy()
    moved = pa.array(offsets - offsets[0], prompts.offsets.type)
    return kind.from_arrays(moved, messages, type=prompts.type, mask=missing)


def _with_field(structs: pa.Array, name: str, values: pa.Array) -> pa.Array:
    """``structs`` with one text field replaced; its type, the other fields and the nulls stay."""
    fields = [structs.type.field(i) for i in range(structs.type.num_fields)]
    children = [_as(values, f.type) if f.name == name else pc.struct_field(structs, [i]) for i, f in enumerate(fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=structs.is_null())


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return values.cast(kind.value_type).dictionary_encode().cast(kind)
    return values.cast(kind)


def _with_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    index = batch.schema.get_field_index(name)
    return batch.set_column(index, batch.schema.field(index), values)
