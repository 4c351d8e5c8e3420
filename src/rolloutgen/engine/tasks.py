"""Harbor tasks, parsed and hashed once, in a worker thread, and shared by the trials of their instance.

Harbor itself reads, checks and hashes the task again for every trial, on the event loop: seconds where tests/ is large.
"""

import asyncio
import os
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, override

from harbor.models.task.config import TaskConfig
from harbor.models.task.file_filter import TaskFileFilter
from harbor.models.task.paths import TaskPaths
from harbor.models.task.task import Task
from harbor.utils.file_selection import FileSelection

from rolloutgen.engine.dockerfile import last_workdir
from rolloutgen.errors import AttemptError, StoreError
from rolloutgen.outcomes import Cause
from rolloutgen.results.digests import task_digest

_KEPT: Final = 256
"""Tasks in memory: the trials of an instance run near each other, so few are needed at a time."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A parsed task and the digest of its folder (see ``digests.task_digest``)."""

    task: Task
    digest: str


class TaskCache:
    """Loads each task once while it is in use."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loads: OrderedDict[Path, asyncio.Future[LoadedTask]] = OrderedDict()

    async def get(self, folder: Path) -> LoadedTask:
        """Raises AttemptError where the folder is no task that can be run here."""
        load = self._loads.get(folder)
        if load is None:
            load = asyncio.get_running_loop().run_in_executor(self._executor, _load, folder)
            self._loads[folder] = load
            while len(self._loads) > _KEPT:
                self._loads.popitem(last=False)
        self._loads.move_to_end(folder)
        try:
            return await asyncio.shield(load)
        except Exception:
            self._loads.pop(folder, None)
            raise


class _SelectedOnce(TaskFileFilter):
    """Harbor's choice of the files that are copied into a sandbox, made when the task is loaded.

    Harbor walks the same folders four times for every trial, with every rule of .harborignore. A folder of plain files
    is taken whole after one look; any other is left to Harbor, once.
    """

    def __init__(self, task_dir: Path) -> None:
        super().__init__(task_dir)
        self._selections: dict[Path, FileSelection] = {}
        self._whole: list[Path] = []
        for folder in (self.task_dir / "tests", self.task_dir / "solution"):
            if is_plain(folder):
                self._whole.append(folder)
                names = tuple(Path(name) for name in os.listdir(folder))  # noqa: PTH208 - names are what is wanted
                self._selections[folder] = FileSelection(folder, names, includes_all_entries=True)

    @override
    def select(self, source_dir: Path) -> FileSelection:
        if source_dir not in self._selections:
            self._selections[source_dir] = super().select(source_dir)
        return self._selections[source_dir]

    @override
    def is_excluded(self, path: Path) -> bool:
        return path.parent not in self._whole and path not in self._whole and super().is_excluded(path)


def is_plain(folder: Path) -> bool:
    """Whether ``folder`` holds regular files and folders alone, and no .harborignore: nothing in it needs a rule."""
    try:
        waiting = [os.fspath(folder)]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False) or entry.name == TaskFileFilter.IGNORE_FILENAME:
                        return False
    except OSError:
        return False
    return not folder.is_symlink()


class _Task(Task):
    """Harbor's task, whose trees are looked through in full only where they are not plain."""

    @staticmethod
    @override
    def _validate_input_paths(
        config: TaskConfig, paths: TaskPaths, *, file_filter: TaskFileFilter | None = None
    ) -> None:
        if not (_is_plain_or_missing(paths.tests_dir) and _is_plain_or_missing(paths.solution_dir)):
            Task._validate_input_paths(config, paths, file_filter=file_filter)  # noqa: SLF001 - the one that is overridden


def _is_plain_or_missing(folder: Path) -> bool:
    return not os.path.lexists(folder) or is_plain(folder)


def _load(folder: Path) -> LoadedTask:
    try:
        task = _Task(folder)
        _require_single_step(task)
        task.file_filter = _SelectedOnce(task.task_dir)
        for needed in (task.paths.tests_dir, task.paths.solution_dir):
            if needed.is_dir():
                task.file_filter.select(needed)
        dockerfile_workdir(task.paths.environment_dir)
        return LoadedTask(task, task_digest(folder))
    except (OSError, ValueError, RuntimeError, StoreError) as error:
        raise AttemptError(Cause.INTERNAL, f"{folder} cannot be run as a task: {error}") from error


def _require_single_step(task: Task) -> None:
    if task.has_steps:
        raise ValueError("it has [[steps]], and tasks of several steps are not supported")


@lru_cache(maxsize=1024)
def dockerfile_workdir(environment_dir: Path) -> str | None:
    """The last WORKDIR of the environment's Dockerfile (None: there is none). Read once, when the task is loaded."""
    path = environment_dir / "Dockerfile"
    return last_workdir(path.read_text(errors="replace")) if path.is_file() else None
