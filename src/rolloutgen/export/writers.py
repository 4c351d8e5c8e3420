"""Where rows go: JSON lines or parquet, row after row; of a large corpus only a piece is in memory."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson

from rolloutgen.results.durable import replacing

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_BYTES: Final = 8 << 20
"""Of JSON: so much makes up a row group."""

type Kind = str | list[Kind] | dict[str, Kind]
"""The type of a column: ``string``, ``int64``, ``double``, ``bool``; ``[kind]``: a list; a mapping: a struct."""


def write(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, Kind], output: Path) -> int:
    """Write ``output`` whole or not at all, as its ending says (``.parquet``, else JSON lines); returns how many rows.

    Raises StoreError.
    """
    with replacing(output) as file:
        return write_parquet(rows, schema, file) if output.suffix == ".parquet" else write_lines(rows, schema, file)


def write_lines(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, Kind], file: BinaryIO) -> int:
    number = 0
    for number, row in enumerate(rows, start=1):  # noqa: B007 - how many there were
        file.write(orjson.dumps({name: row[name] for name in schema}, option=orjson.OPT_APPEND_NEWLINE))
    return number


def write_parquet(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, Kind], file: BinaryIO) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.schema([(name, _arrow(kind)) for name, kind in schema.items()])
    number, group, size = 0, list[Mapping[str, Any]](), 0
    with pq.ParquetWriter(file, arrow, compression="zstd") as writer:
        for number, row in enumerate(rows, start=1):  # noqa: B007 - how many there were
            group.append(row)
            size += len(orjson.dumps(row))
            if size >= _GROUP_BYTES:
                writer.write_table(_table(group, arrow))
                group, size = [], 0
        if group:
            writer.write_table(_table(group, arrow))
    return number


def _table(rows: Sequence[Mapping[str, Any]], schema: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


def _arrow(kind: Kind) -> "pa.DataType":
    import pyarrow as pa

    if isinstance(kind, str):
        return pa.type_for_alias(kind)
    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0]))
    return pa.struct([(name, _arrow(inner)) for name, inner in kind.items()])
