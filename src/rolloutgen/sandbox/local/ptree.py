"""Find and kill a whole tree of processes, seen from the init of its pid namespace."""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

_FREEZE_ROUNDS: Final = 20
_KILL_ROUNDS: Final = 400
_PAUSE_SEC: Final = 0.005


def kill_tree(root: int) -> bool:
    """Kill everything below ``root``, then itself; False where something would not die in about 2 s.

    First all are stopped, until no new one appears, so that none forks away while it is killed. ``root`` goes last:
    while it lives, nothing below it can slip away to the init.
    """
    clean = _kill_below(root)
    _signal({root}, signal.SIGKILL)
    return clean and _wait_for_death(root)


def _wait_for_death(pid: int) -> bool:
    """Once it is a zombie, its own zombies are the init's, to be reaped."""
    for _ in range(_KILL_ROUNDS):
        if all(other != pid or not alive for other, _, alive in _processes()):
            return True
        time.sleep(_PAUSE_SEC)
    return False


def _kill_below(root: int) -> bool:
    stopped: set[int] = set()
    for _ in range(_FREEZE_ROUNDS):
        new = set(descendants(root)) - stopped
        if not new:
            break
        _signal(new, signal.SIGSTOP)
        stopped |= new
    for _ in range(_KILL_ROUNDS):
        left = set(descendants(root))
        if not left:
            return True
        _signal(left, signal.SIGKILL)
        time.sleep(_PAUSE_SEC)
    return False


def descendants(root: int) -> Iterator[int]:
    """The living processes below ``root``, without itself; a zombie's children count."""
    children = defaultdict(list)
    for pid, parent, alive in _processes():
        children[parent].append((pid, alive))
    todo = [root]
    while todo:
        for pid, alive in children[todo.pop()]:
            todo.append(pid)
            if alive:
                yield pid


def _processes() -> Iterator[tuple[int, int, bool]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                yield int(name), int(fields[1]), fields[0] not in (b"Z", b"X")


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
