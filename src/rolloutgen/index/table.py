"""INDEX_FILE, read and validated: the pointer fields in memory, everything else left on disk.

Memory: the text of ids and task paths, about 100 bytes a row; other columns are read again, part by part, when the
filtered index is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rolloutgen.errors import Finding, FindingsError, Level
from rolloutgen.index import schema

_SHOWN: Final = 10
"""So many ids are named in one finding; the rest is counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """A valid index. ``ids`` and ``task_paths`` are large_string arrays, a row each; task paths are absolute."""

    path: Path
    ids: pa.Array
    task_paths: pa.Array
    warnings: tuple[Finding, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Index":
        """Raises FindingsError with every problem. A relative task path is taken from the folder of ``path``."""
        path = path.absolute()
        columns = _pointers(path)
        wrong = [_fatal(path, problem) for problem in _row_problems(columns)]
        if wrong:
            raise FindingsError(wrong)
        ids, task_paths = columns[schema.INSTANCE_ID], absolute(columns[schema.TASK_PATH], path.parent)
        empty = Finding(Level.WARN, "INDEX_FILE", f"{path} has no rows: nothing can be measured")
        return cls(path, ids, task_paths, () if len(ids) else (empty,))

    def __len__(self) -> int:
        return len(self.ids)


def absolute(task_paths: pa.Array, folder: Path) -> pa.Array:
    """Task paths (large_string) with the relative ones put below ``folder``; nulls stay."""
    base, slash = (pa.scalar(part, pa.large_string()) for part in (str(folder), "/"))
    below = pc.binary_join_element_wise(base, task_paths, slash)
    return pc.if_else(pc.starts_with(task_paths, "/"), task_paths, below)


def text(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A text column of any kind as one plain large_string array."""
    if isinstance(array, pa.ChunkedArray):
        chunks = [text(chunk) for chunk in array.chunks]
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.large_string())


def named(ids: list[str], total: int | None = None) -> str:
    """The first ids and how many more there are, for people."""
    more = (len(ids) if total is None else total) - _SHOWN
    return ", ".join(repr(i) for i in ids[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _pointers(path: Path) -> dict[str, pa.Array]:
    """The pointer fields by name. Raises FindingsError: not readable, not parquet, or another schema."""
    try:
        with pq.ParquetFile(path) as file:
            wrong = [_fatal(path, f"column {name!r} {problem}") for name, problem in schema.problems(file.schema_arrow)]
            if wrong:
                raise FindingsError(wrong)
            table = file.read(columns=[f"{schema.EXTRA_INFO}.{name}" for name in schema.POINTERS])
    except FileNotFoundError as error:
        raise FindingsError([_fatal(path, "does not exist")]) from error
    except (OSError, pa.ArrowException) as error:
        raise FindingsError([_fatal(path, f"cannot be read as parquet ({error})")]) from error
    extra = table[schema.EXTRA_INFO]
    return {name: text(pc.struct_field(extra, name)) for name in schema.POINTERS}


def _row_problems(columns: dict[str, pa.Array]) -> Iterator[str]:
    """Every kind of bad row, with the first examples."""
    broken = [name for name, values in columns.items() if not _is_utf8(values)]
    if broken:
        yield from (f"{schema.EXTRA_INFO}.{name} holds text that is not UTF-8" for name in broken)
        return
    ids, paths, sources = (columns[name] for name in (schema.INSTANCE_ID, schema.TASK_PATH, schema.DATA_SOURCE))
    for name, values in ((schema.INSTANCE_ID, ids), (schema.TASK_PATH, paths)):
        bad = _rows(pc.or_kleene(pc.is_null(values), pc.equal(values, "")))
        if bad:
            yield f"{schema.EXTRA_INFO}.{name} is null or empty in {len(bad)} rows: {named_rows(bad)}"
    bad = _rows(pc.match_substring(paths, "\0"))
    if bad:
        yield f"{schema.EXTRA_INFO}.{schema.TASK_PATH} holds a NUL in {len(bad)} rows: {named_rows(bad)}"
    bad = _rows(pc.fill_null(pc.not_equal(sources, "harbor"), True))
    if bad:
        yield f"{schema.EXTRA_INFO}.{schema.DATA_SOURCE} is not 'harbor' in {len(bad)} rows: {named_rows(bad)}"
    yield from _duplicates(ids, paths)


def _duplicates(ids: pa.Array, paths: pa.Array) -> Iterator[str]:
    """C18: one id must be one row."""
    valid = ids.drop_null()
    if pc.count_distinct(valid).as_py() == len(valid):
        return
    counts = pc.value_counts(valid)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    for name in twice[:_SHOWN].to_pylist():
        where = pc.filter(paths, pc.fill_null(pc.equal(ids, name), False))
        yield f"instance id {name!r} stands in {len(where)} rows, with task paths {named(where.to_pylist())}"
    if len(twice) > _SHOWN:
        yield f"{len(twice) - _SHOWN} more instance ids stand in several rows"


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _rows(mask: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found


def named_rows(rows: list[int]) -> str:
    more = len(rows) - _SHOWN
    return ", ".join(str(row) for row in rows[:_SHOWN]) + (f" and {more} more" if more > 0 else "") + " (from 0)"


def _fatal(path: Path, problem: str) -> Finding:
    return Finding(Level.FATAL, "INDEX_FILE", f"{path}: {problem}", mend="mend the file, or name another one")
