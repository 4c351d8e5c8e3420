"""Which sandboxes a run gets: BACKEND by its name, and what of this machine they must not see."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from rolloutgen.config import repository
from rolloutgen.sandbox.base import Network, SandboxBackend
from rolloutgen.settings import Settings

_SYSTEM: Final = "bin boot dev etc lib lib32 lib64 opt proc run sbin sys tmp usr usr/local var"
_SHOWN_ANYWAY: Final = frozenset({Path("/"), *(Path("/", name) for name in _SYSTEM.split())})
"""A sandbox needs these, has its own, or sees nothing of ours in them."""
_HIDDEN_MAX: Final = 64
"""So many folders of tasks are hidden one by one; each costs every sandbox a mount."""


def make_backend(settings: Settings, launch_id: str, task_folders: Collection[Path] = ()) -> SandboxBackend:
    """The backend that the settings name; ``launch_id`` marks what it starts, tasks lie in ``task_folders``."""
    return _BACKENDS[settings.backend](settings, launch_id, task_folders)


def _local(settings: Settings, launch_id: str, task_folders: Collection[Path]) -> SandboxBackend:
    from rolloutgen.sandbox.local.backend import LocalBackend

    return LocalBackend(
        launch_id=launch_id,
        images=settings.local_images,
        hidden=sorted(hidden_paths(settings, task_folders)),
        egress=Network(settings.sandbox_egress),
        exec_output_max_mb=settings.exec_output_max_mb,
        start_timeout_sec=settings.sandbox_start_timeout_sec,
    )


_BACKENDS: Final[Mapping[str, Callable[[Settings, str, Collection[Path]], SandboxBackend]]] = {"local": _local}


def hidden_paths(settings: Settings, task_folders: Collection[Path]) -> set[Path]:
    """Results, tasks with their solutions and tests, the model, this program and the user's own files."""
    return {path for path in _private(settings, task_folders) if path not in _SHOWN_ANYWAY}


def _private(settings: Settings, task_folders: Collection[Path]) -> Iterator[Path]:
    yield from (repository(), Path.home(), settings.results_dir, settings.output_index, settings.index_file.parent)
    yield from (path for path in (settings.model_path, settings.instances_file) if path is not None)
    yield from _few(task_folders)


def _few(folders: Collection[Path]) -> Collection[Path]:
    """``folders``, or so few of their parents that each sandbox can be set up without them."""
    parts = [folder.parts for folder in folders]
    depth = max(map(len, parts), default=0)
    while len(found := {Path(*names[:depth]) for names in parts}) > _HIDDEN_MAX:
        depth -= 1
    return found
