"""Who a process is, whether it still lives, which processes belong to a launch, and how they end.

A process is known by its pid, its start time and the boot it ran in: a pid alone names whoever has it now. What belongs
to a launch is proven by the mark ``ROLLOUTGEN_LAUNCH=<launch_id>`` that its processes carry in their environment.
vLLM's engines overwrite theirs when they set their title, so a session is proven by any member: a pid is not given
out again while it names a session, so all that are in session N now are of one and the same session. Linux only.
"""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

MARK: Final = "ROLLOUTGEN_LAUNCH"
"""Name of the environment variable that every process of a launch is started with; its value is the launch id."""

_POLL_SEC: Final = 0.05
_WATCH_SEC: Final = 1.0
_KILL_SEC: Final = 5.0


@cache
def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def raise_fd_limit() -> None:
    """Up to the hard limit, for this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Stat(NamedTuple):
    state: str
    session: int
    start_time: int


def _stat(pid: int) -> _Stat | None:
    """Fields 3, 6 and 22 of /proc/PID/stat; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(fields[0].decode(), int(fields[3]), int(fields[19]))


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told from all others. ``start_time`` is in clock ticks since the boot ``boot_id``."""

    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process that has ``pid`` now; None where there is none, or a zombie."""
        stat = _stat(pid)
        return cls(pid, stat.start_time, boot_id()) if stat and stat.state not in "ZX" else None

    @classmethod
    def me(cls) -> "Process":
        found = cls.of(os.getpid())
        assert found is not None
        return found

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "Process":
        """From the JSON of ``dataclasses.asdict``. Raises KeyError or ValueError where it is not one."""
        return cls(int(str(record["pid"])), int(str(record["start_time"])), str(record["boot_id"]))

    def alive(self) -> bool:
        """Whether this very process runs (a zombie does not)."""
        return Process.of(self.pid) == self

    def signal(self, signum: int) -> bool:
        """Send a signal to this very process and to no other; False where it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError:
            return self._signal_by_pid(signum)
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(fd, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def _signal_by_pid(self, signum: int) -> bool:
        """For kernels and sandboxes without pidfd."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, signum)
                return True
        return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # names are all it needs


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def marked(launch_id: str) -> list[Process]:
    """Every live process of this machine that carries the mark of the launch."""
    mark = f"{MARK}={launch_id}".encode()
    found = (Process.of(pid) for pid in _pids() if _carries(pid, mark))
    return [process for process in found if process is not None]


def session(leader: Process, launch_id: str, known: Sequence[Process] = ()) -> list[Process]:
    """The live members of the session that ``leader`` led for the launch; empty where that cannot be proven.

    Proof is the leader itself, a member that carries the launch's mark, or one of ``known``: processes that were seen
    in this session before.
    """
    if leader.boot_id != boot_id():
        return []
    stats = {pid: _stat(pid) for pid in _pids()}
    members = [
        Process(pid, stat.start_time, boot_id())
        for pid, stat in stats.items()
        if stat is not None and stat.session == leader.pid and stat.state not in "ZX"
    ]
    mark = f"{MARK}={launch_id}".encode()
    proofs = {leader, *known}
    proven = any(member in proofs or _carries(member.pid, mark) for member in members)
    return members if proven else []


def belongings(
    launch_id: str, sessions: Sequence[Process], known: Sequence[Process] = (), *, with_marked: bool = True
) -> Callable[[], Sequence[Process]]:
    """What is left of a launch, for ``end_all``: its ``sessions`` (their leaders) and, if wanted, all that is marked.

    Never the caller itself. Remembers what it found, so that a session stays proven when its marked members are gone.
    """
    seen = set(known)

    def find() -> Sequence[Process]:
        found = {member for leader in sessions for member in session(leader, launch_id, tuple(seen))}
        if with_marked:
            found.update(marked(launch_id))
        seen.update(found)
        return [process for process in found if process.pid != os.getpid()]

    return find


async def gone(process: Process) -> None:
    """Return when ``process`` is dead: at once where the kernel tells, within a second where it must be asked."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:
        while process.alive():  # noqa: ASYNC110  # nothing tells of it here
            await asyncio.sleep(_WATCH_SEC)
        return
    loop = asyncio.get_running_loop()
    died = asyncio.Event()
    loop.add_reader(fd, died.set)
    try:
        if process.alive():
            await died.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def end_all(
    find: Callable[[], Sequence[Process]], grace_sec: float, hurry: asyncio.Event | None = None
) -> list[Process]:
    """TERM to all that ``find`` names, then, after ``grace_sec`` or when ``hurry`` is set, KILL until none is left.

    ``find`` is asked again and again, since a process may start others. Returns those that outlived even that.
    """
    for process in find():
        process.signal(signal.SIGTERM)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_sec
    while (left := find()) and loop.time() < deadline and not (hurry and hurry.is_set()):  # noqa: ASYNC110  # likewise
        await asyncio.sleep(_POLL_SEC)
    deadline = loop.time() + _KILL_SEC
    while left and loop.time() < deadline:
        for process in left:
            process.signal(signal.SIGKILL)
        await asyncio.sleep(_POLL_SEC)
        left = find()
    return list(left)
