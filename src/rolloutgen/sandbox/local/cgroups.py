"""Limits by cgroup, version 2 or 1, whichever the machine lets us use; each controller that is missing is told apart.

A launch owns one folder ``rolloutgen-<launch_id>`` per hierarchy, with one folder per sandbox in it. Only the commands
of a sandbox are in there, not its init: a sandbox that meets its limit stays able to run the next command.
"""

import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

V1: Final = 1
V2: Final = 2
CONTROLLERS: Final = ("memory", "pids", "cpu")
PIDS_MAX: Final = 2048
"""Processes and threads of one sandbox."""

_CPU_PERIOD_USEC: Final = 100_000
_REMOVE_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use: ``memory_mb`` in MiB, ``cpus`` in cores (None: no limit)."""

    memory_mb: int | None = None
    cpus: float | None = None
    pids: int = PIDS_MAX

    def wanted(self) -> dict[str, float]:
        amounts = {"memory": self.memory_mb, "pids": self.pids, "cpu": self.cpus}
        return {name: amount for name, amount in amounts.items() if amount is not None}


@dataclass(slots=True)
class Group:
    """The folders of one sandbox: controller -> folder (one folder for all under version 2)."""

    version: int = V2
    folders: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def open_members(self) -> list[int]:
        """Descriptors of the membership files; writing ``0`` to each moves the writer in."""
        return [os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in sorted(self._distinct())]

    def oom_kills(self) -> int:
        """Processes killed by the memory limit so far; 0 where nothing counts them."""
        folder = self.folders.get("memory")
        name = "memory.events" if self.version == V2 else "memory.oom_control"
        if folder is None:
            return 0
        with suppress(OSError):
            words = Path(folder, name).read_text().split()
            return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
        return 0

    def describe(self) -> dict[str, str]:
        kept = dict.fromkeys(self.folders, f"cgroup v{self.version}")
        return kept | {name: f"none ({why})" for name, why in self.refused.items()}

    def remove(self) -> bool:
        """Try to remove the folders, and the launch's when it is empty; False where members are left."""
        left = [folder for folder in self._distinct() if not _remove_folder(folder)]
        for folder in self._distinct():
            with suppress(OSError):
                os.rmdir(os.path.dirname(folder))
        return not left

    def _distinct(self) -> set[str]:
        return set(self.folders.values())


def create(launch_id: str, name: str, limits: Limits) -> Group:
    """A new group with ``limits``; a controller that cannot be had stands in ``refused`` with its reason."""
    group = Group()
    parents = _parents()
    for controller, amount in limits.wanted().items():
        found = parents.get(controller)
        if found is None:
            group.refused[controller] = "no writable cgroup has this controller"
            continue
        version, parent = found
        group.version = version
        folder = f"{parent}/{launch_folder(launch_id)}/{name}"
        try:
            _make(folder, version)
            _write_limit(folder, version, controller, amount)
        except OSError as error:
            group.refused[controller] = f"{parent}: {error.strerror}"
            _remove_folder(folder)
        else:
            group.folders[controller] = folder
    return group


def launch_folder(launch_id: str) -> str:
    return f"rolloutgen-{launch_id}"


def sweep_cgroups(launch_id: str) -> list[str]:
    """Kill what a launch that is dead left in its groups, remove them, and return the folders that were removed."""
    removed = []
    for _, mount in _mounts():
        for launch in list(_find(mount, launch_folder(launch_id))):
            removed += [folder for folder in (*_children(launch), launch) if _clear(folder)]
    return removed


def _mounts() -> list[tuple[int, str]]:
    """(version, mount point) of every hierarchy that could hold groups of ours."""
    found = []
    for _, version, mount, options in _mount_table():
        if version == V2 or set(CONTROLLERS) & set(options):
            found.append((version, mount))
    return found


def _mount_table() -> Iterator[tuple[str, int, str, list[str]]]:
    """(path of the mount inside its hierarchy, version, mount point, options) of each cgroup mount."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            head, _, tail = line.partition(" - ")
            kind, _, options = tail.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                words = head.split()
                yield words[3], V2 if kind == "cgroup2" else V1, words[4], options.split(",")


def _own_paths() -> dict[str, str]:
    """Controller (empty: version 2) -> path of this process in that hierarchy."""
    paths: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _parents() -> dict[str, tuple[int, str]]:
    """Controller -> (version, folder to make groups in), for those that this process may use."""
    own = _own_paths()
    found: dict[str, tuple[int, str]] = {}
    for root, version, mount, options in _mount_table():
        for controller in CONTROLLERS:
            if version == V1 and controller not in options:
                continue
            path = own.get(controller if version == V1 else "", "/")
            inner = "/" if path == root else path.removeprefix(root if root != "/" else "")
            for parent in (mount + inner.rstrip("/"), mount):
                if controller not in found and _offers(parent, version, controller):
                    found[controller] = (version, parent)
    return found


def _offers(parent: str, version: int, controller: str) -> bool:
    if not os.access(parent, os.W_OK):
        return False
    if version == V1:
        return True
    with suppress(OSError):
        return controller in Path(parent, "cgroup.subtree_control").read_text().split()
    return False


def _make(folder: str, version: int) -> None:
    launch = os.path.dirname(folder)
    for _ in range(10):  # another sandbox's end may remove the empty launch folder between the two steps
        with suppress(FileExistsError):
            os.mkdir(launch)
        if version == V2:
            usable = Path(launch, "cgroup.controllers").read_text().split()
            wanted = " ".join(f"+{name}" for name in CONTROLLERS if name in usable)
            Path(launch, "cgroup.subtree_control").write_text(wanted)
        try:
            os.mkdir(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            continue
        return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)


def _write_limit(folder: str, version: int, controller: str, amount: float) -> None:
    if controller == "memory":
        limit = str(int(amount) << 20)
        _write(folder, "memory.max" if version == V2 else "memory.limit_in_bytes", limit)
        with suppress(OSError):  # absent where the kernel does not account swap
            _write(folder, *(("memory.swap.max", "0") if version == V2 else ("memory.memsw.limit_in_bytes", limit)))
    elif controller == "pids":
        _write(folder, "pids.max", str(int(amount)))
    else:
        quota = str(max(1000, int(amount * _CPU_PERIOD_USEC)))
        _write(folder, *(("cpu.max", f"{quota} {_CPU_PERIOD_USEC}") if version == V2 else ("cpu.cfs_quota_us", quota)))


def _write(folder: str, name: str, text: str) -> None:
    descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _find(top: str, name: str) -> Iterator[str]:
    for folder, names, _ in os.walk(top):
        if name in names:
            names.remove(name)
            yield os.path.join(folder, name)


def _children(folder: str) -> Iterable[str]:
    with suppress(OSError):
        return [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    return []


def _clear(folder: str) -> bool:
    for _ in range(_REMOVE_ROUNDS):
        with suppress(OSError):
            for pid in Path(folder, "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        if _remove_folder(folder):
            return True
        time.sleep(0.02)
    return False


def _remove_folder(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
