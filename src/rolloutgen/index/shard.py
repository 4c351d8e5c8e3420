"""The shard: the instances of one node, in the order of the index."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, overload

import pyarrow as pa

from rolloutgen.errors import Finding, FindingsError, Level
from rolloutgen.index.table import Index, named
from rolloutgen.models import Instance

_PART: Final = 65_536


class Instances(Sequence[Instance]):
    """Instances made on demand from two text arrays, so that a million of them cost no more than their text."""

    def __init__(self, ids: pa.Array, task_paths: pa.Array) -> None:
        self._ids = ids
        self._task_paths = task_paths

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, position: int) -> Instance: ...
    @overload
    def __getitem__(self, position: slice) -> "Instances": ...
    def __getitem__(self, position: int | slice) -> "Instance | Instances":
        if isinstance(position, slice):
            return Instances(self._ids[position], self._task_paths[position])
        return Instance(self._ids[position].as_py(), Path(self._task_paths[position].as_py()))

    def __iter__(self) -> Iterator[Instance]:
        # in pieces: asking Arrow for one value after the other takes many times longer
        for start in range(0, len(self), _PART):
            paths = self._task_paths[start : start + _PART].to_pylist()
            yield from map(Instance, self._ids[start : start + _PART].to_pylist(), map(Path, paths))

    def ids(self) -> Iterator[str]:
        """The ids alone, in order."""
        for start in range(0, len(self), _PART):
            yield from self._ids[start : start + _PART].to_pylist()


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The rows of ``index`` that this node measures; ``warnings`` are findings of INSTANCES_FILE for people."""

    index: Index
    instances: Instances
    warnings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.instances)


def select(index: Index, instances_file: Path | None) -> Shard:
    """The shard that ``instances_file`` names (None: the whole index). Raises FindingsError.

    One id a line, UTF-8; blank lines and lines that begin with ``#`` are ignored. A line is read as the longest of
    these that is an id of the index: the line itself, without blanks around it, without a trailing `` # comment``.
    """
    if instances_file is None:
        return Shard(index, Instances(index.ids, index.task_paths), index.warnings)
    rows = {name: row for row, name in enumerate(index.ids.to_pylist())}
    wanted, unknown, twice = _look_up(_lines(instances_file), rows)
    if unknown or not wanted:
        problem = f"{len(unknown)} ids are not in the index: {named(unknown)}" if unknown else "names no instance"
        mend = f"ids must stand in {index.path}; one a line"
        raise FindingsError([Finding(Level.FATAL, "INSTANCES_FILE", problem, str(instances_file), mend)])
    take = pa.array(sorted(wanted), pa.int64())
    again = f"{len(twice)} ids stand in it more than once: {named(twice)}"
    warning = Finding(Level.WARN, "INSTANCES_FILE", again, str(instances_file))
    instances = Instances(index.ids.take(take), index.task_paths.take(take))
    return Shard(index, instances, index.warnings + ((warning,) if twice else ()))


def _lines(path: Path) -> list[str]:
    """The lines that are neither blank nor a comment, without their ends."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        finding = Finding(Level.FATAL, "INSTANCES_FILE", f"cannot be read as UTF-8 text: {error}", str(path))
        raise FindingsError([finding]) from error
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _look_up(lines: list[str], rows: Mapping[str, int]) -> tuple[set[int], list[str], list[str]]:
    """(rows that are named, unknown ids, ids named again), in the order of the file."""
    wanted: set[int] = set()
    unknown: list[str] = []
    twice: dict[str, None] = {}
    for line in lines:
        name = next((form for form in _forms(line) if form in rows), None)
        if name is None:
            unknown.append(line.strip())
        elif rows[name] in wanted:
            twice[name] = None
        else:
            wanted.add(rows[name])
    return wanted, list(dict.fromkeys(unknown)), list(twice)


def _forms(line: str) -> Iterator[str]:
    yield line
    yield line.strip()
    for position in range(len(line) - 1, 0, -1):
        if line[position] == "#" and line[position - 1].isspace():
            yield line[:position].strip()
