"""What task folders say without Harbor: is everything there, which image, which network.

Folders are looked at concurrently, in threads, a bounded number at a time; what is kept is bounded too.
"""

import itertools
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutgen.models import Instance
from rolloutgen.sandbox.base import Network

_AT_ONCE: Final = 32
_BATCH: Final = 1024
_KEEP: Final = 10

_WANTED: Final = ("instruction.md", "tests")
"""Without these a task cannot be tried or scored."""
_COMPOSE: Final = ("docker-compose.yaml", "docker-compose.yml")
_MEMORY: Final = {"memory_mb", "memory"}
_NEEDS: Final = {"public": Network.OPEN, "allowlist": Network.OPEN, "no-network": Network.NONE}


@dataclass(frozen=True, slots=True)
class Task:
    """One task folder. ``problem`` says what is wrong with it (empty: nothing); ``network`` is what it states that
    it needs (None: it says nothing); ``limited``: it limits its sandbox's memory."""

    instance_id: str
    problem: str
    image: str | None = None
    network: Network | None = None
    limited: bool = False


@dataclass(slots=True)
class TaskFacts:
    """All of them together. ``problems`` and ``needs_open`` name the first ten; the counts are whole."""

    n_tasks: int = 0
    n_problems: int = 0
    problems: list[str] = field(default_factory=list)
    images: dict[str | None, int] = field(default_factory=dict)
    n_needs_open: int = 0
    needs_open: list[str] = field(default_factory=list)
    n_unlimited: int = 0

    def add(self, task: Task) -> None:
        self.n_tasks += 1
        if task.problem:
            self.n_problems += 1
            _keep(self.problems, f"{task.instance_id}: {task.problem}")
            return
        self.n_unlimited += not task.limited
        self.images[task.image] = self.images.get(task.image, 0) + 1
        if task.network is Network.OPEN:
            self.n_needs_open += 1
            _keep(self.needs_open, task.instance_id)


def _keep(names: list[str], name: str) -> None:
    if len(names) < _KEEP:
        names.append(name)


def look(instances: Iterable[Instance]) -> TaskFacts:
    """Look at every folder; blocking."""
    facts = TaskFacts()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="tasks") as executor:
        for batch in itertools.batched(instances, _BATCH):
            for task in executor.map(look_at, batch):
                facts.add(task)
    return facts


def look_at(instance: Instance) -> Task:
    folder = instance.task_path
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "has no task.toml" if folder.is_dir() else "is not a folder"
        return Task(instance.instance_id, f"{folder} {what}")
    except (OSError, ValueError) as error:
        return Task(instance.instance_id, f"{folder}/task.toml: {error}")
    if config.get("steps"):
        return Task(instance.instance_id, f"{folder} has [[steps]]: tasks of several steps cannot be measured yet")
    missing = [name for name in _WANTED if not (folder / name).exists()]
    if missing:
        return Task(instance.instance_id, f"{folder} has no {', '.join(missing)}")
    if any((folder / "environment" / name).exists() for name in _COMPOSE):
        return Task(instance.instance_id, f"{folder} needs several services (docker compose), which no backend offers")
    limited = not _MEMORY.isdisjoint(_table(config, "environment"))
    return Task(instance.instance_id, "", _image(config), _network(config), limited)


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name)
    return table if isinstance(table, dict) else {}


def _image(config: Mapping[str, Any]) -> str | None:
    image = _table(config, "environment").get("docker_image")
    return image if isinstance(image, str) else None


def _network(config: Mapping[str, Any]) -> Network | None:
    """The most that any phase states; a task that says nothing about the network is taken to need none."""
    stated = []
    for name in ("environment", "agent", "verifier"):
        table = _table(config, name)
        stated.append(_NEEDS.get(str(table.get("network_mode"))))
        if table.get("allow_internet") is True:
            stated.append(Network.OPEN)
    if Network.OPEN in stated:
        return Network.OPEN
    return Network.NONE if Network.NONE in stated else None
