"""What a RESULTS_DIR holds, as the outcomes tell it: the truth of a resume (C9-C16).

A trial is done when its outcome.json holds a verdict, and nothing else counts. Where the disk is slow
(a network file system answers late, but many at once) folders are read by threads; what is kept is one Record a trial.
"""

import gc
import os
import resource
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import batched, chain
from pathlib import Path
from typing import Final

from rolloutgen.errors import Finding, Level, StoreError
from rolloutgen.models import Instance, Trial
from rolloutgen.paths import RESERVED, ResultsPaths, encode_id
from rolloutgen.results.instance import Problem, Results, read_results

_THREADS: Final = 32
_CHUNK: Final = 64
"""Instances read at a time."""
_SHOWN: Final = 10


_NOTHING: Final = Results()

_KINDS: Final[Mapping[Problem, tuple[Level, str, str]]] = {
    "torn": (Level.WARN, "outcome.json that cannot be read; such an attempt has no verdict", ""),
    "odd": (Level.FATAL, "no folder, where one of ours should be", "move it away: links are not followed"),
    "foreign": (
        Level.FATAL,
        "outcome.json of another instance or trial than its folder's",
        "move the folder to where it belongs, or away",
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The state of one run. ``results`` holds the instances that have any, by their position in ``instances``.

    ``strangers``: folders of instances that are not in the shard (C15); ``extra_trials``: trials past N_TRIALS (C12);
    ``findings``: what people should know, or must mend (``FATAL``) before the run goes on.
    """

    instances: Sequence[Instance]
    n_trials: int
    results: Mapping[int, Results]
    strangers: tuple[str, ...]
    extra_trials: int
    findings: tuple[Finding, ...]
    n_done: int
    n_pass: int
    charged: Mapping[tuple[str, int], int]

    @property
    def n_planned(self) -> int:
        return len(self.instances) * self.n_trials

    @property
    def n_owed(self) -> int:
        return self.n_planned - self.n_done

    @property
    def n_fail(self) -> int:
        return self.n_done - self.n_pass

    def of(self, position: int) -> Results:
        return self.results.get(position, _NOTHING)

    def owed_positions(self) -> Iterator[int]:
        """Positions of the instances that owe a trial."""
        return (p for p in range(len(self.instances)) if len(self.of(p).done) < self.n_trials)

    def owed(self) -> Iterator[Trial]:
        """Planned trials without a verdict, instance by instance, made on demand; also those out of attempts."""
        for position in self.owed_positions():
            instance, done = self.instances[position], self.of(position).done
            yield from (Trial(instance, number) for number in range(self.n_trials) if number not in done)

    def attempts_used(self, trial: Trial) -> int:
        """Charged attempts without a verdict, over all launches."""
        return self.charged.get((trial.instance.instance_id, trial.number), 0)

    def n_exhausted(self, attempts_per_trial: int) -> int:
        """Owed trials that have used up their attempts."""
        return sum(used >= attempts_per_trial for used in self.charged.values())

    @property
    def digests(self) -> dict[str, str]:
        """Instance id -> digest of the task that gave its verdicts."""
        found: dict[str, str] = {}
        for results in self.results.values():
            found.update((r.instance_id, r.task_digest) for r in results.done.values() if r.task_digest)
        return found


def scan(
    paths: ResultsPaths, instances: Sequence[Instance], n_trials: int, *, repair: bool, slow_waits: float = 1
) -> Scan:
    """Read every outcome of the shard. ``repair``: also complete the renames that a kill prevented (needs the lock).

    The disk is slow where one instance takes ``slow_waits`` waits. Raises StoreError where it cannot be read.
    """
    try:
        present = _present(paths.root)
        with _paused_gc():
            chunks = batched(_wanted(instances, present), _CHUNK)
            results = dict(_read_all(chunks, _reader(paths.root, n_trials, repair), slow_waits))
    except OSError as error:
        raise StoreError(f"{paths.root} could not be read: {error}") from error
    strangers = sorted(name for name, is_folder in present.items() if is_folder)
    return _assemble(instances, n_trials, results, tuple(strangers))


def _present(root: Path) -> dict[str, bool]:
    """Name -> whether it is a folder (no link), of everything in RESULTS_DIR but files of ours."""
    try:
        with os.scandir(root) as entries:
            visible = (e for e in entries if not e.name.startswith(".") and e.name not in RESERVED)
            return {e.name: e.is_dir(follow_symlinks=False) for e in visible}
    except FileNotFoundError:
        return {}


type _Found = tuple[int, str, str, bool]
"""Position, id, folder name, whether it is a folder."""


def _wanted(instances: Iterable[Instance], present: dict[str, bool]) -> Iterator[_Found]:
    """The instances of the shard that are in ``present``; takes their names out of it."""
    if not present:
        return
    for position, instance in enumerate(instances):
        name = encode_id(instance.instance_id)
        is_folder = present.pop(name, None)
        if is_folder is not None:
            yield position, instance.instance_id, name, is_folder


type _Read = Callable[[Iterable[_Found]], list[tuple[int, Results]]]


def _read_all(chunks: Iterator[tuple[_Found, ...]], read: _Read, slow_waits: float) -> Iterator[tuple[int, Results]]:
    """One chunk after the other, until one shows that the disk lets us wait: then many at once.

    Where files come out of memory, threads only quarrel over the interpreter, and take twice the time.
    """
    for chunk in chunks:
        before = _waits()
        yield from read(chunk)
        if _waits() - before >= slow_waits * len(chunk):
            break
    with ThreadPoolExecutor(_THREADS, "scan") as pool:
        yield from chain.from_iterable(pool.map(read, chunks))


def _waits() -> int:
    """How often this thread gave the processor away to wait for something; a busy machine does not count."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _reader(root: Path, n_trials: int, repair: bool) -> _Read:
    def read(chunk: Iterable[_Found]) -> list[tuple[int, Results]]:
        return [(p, read_results(f"{root}/{name}", i, n_trials, ok, repair)) for p, i, name, ok in chunk]

    return read


def _assemble(
    instances: Sequence[Instance], n_trials: int, results: Mapping[int, Results], strangers: tuple[str, ...]
) -> Scan:
    values = results.values()
    extra = sum(found.extra_trials for found in values)
    charged = {
        (instances[position].instance_id, number): unfinished.charged
        for position, found in results.items()
        for number, unfinished in found.unfinished.items()
        if unfinished.charged
    }
    return Scan(
        instances=instances,
        n_trials=n_trials,
        results=results,
        strangers=strangers,
        extra_trials=extra,
        findings=tuple(_findings(values, strangers, extra, n_trials)),
        n_done=sum(len(found.done) for found in values),
        n_pass=sum(found.n_pass for found in values),
        charged=charged,
    )


def _findings(
    values: Iterable[Results], strangers: Sequence[str], extra_trials: int, n_trials: int
) -> Iterator[Finding]:
    problems: defaultdict[Problem, list[str]] = defaultdict(list)
    for found in values:
        for kind, text in found.problems:
            problems[kind].append(text)
    for kind, texts in sorted(problems.items()):
        level, message, mend = _KINDS[kind]
        yield Finding(level, "RESULTS_DIR", f"{message}: {_named(texts)}", mend=mend)
    if strangers:
        message = f"{len(strangers)} folders belong to no instance of this shard and count for nothing"
        yield Finding(Level.WARN, "RESULTS_DIR", f"{message}: {_named(strangers)}")
    if extra_trials:
        message = f"{extra_trials} trials beyond N_TRIALS={n_trials} are left alone and do not count"
        yield Finding(Level.WARN, "N_TRIALS", message)


def _named(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _paused_gc() -> Iterator[None]:
    """Hundreds of thousands of small objects that all stay: looking for garbage among them again and again is waste."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
