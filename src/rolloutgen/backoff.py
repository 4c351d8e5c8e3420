"""The pause that all trials share while a cause hits them alike (a server down, a registry's limit, quota).

A state machine without a clock of its own; times are seconds of one monotonic clock, handed in::

    open --shared cause--> paused --time is up--> probing (one attempt is let in)
    probing --the probe ends well, or lasts PROBE_SEC--> open
    probing --the probe meets a shared cause--> paused, longer than before

The pauses grow until an attempt that began after the last one ends with anything but a shared cause.
"""

import math
import random
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

FIRST_PAUSE_SEC: Final = 5.0
LONGEST_PAUSE_SEC: Final = 300.0
PROBE_SEC: Final = 60.0
"""A probe that still runs after so long has started well: most attempts last longer than anybody wants to wait."""


def growing(first_sec: float, longest_sec: float, step: int) -> float:
    """``first_sec`` doubled ``step`` times, at most ``longest_sec``, spread by up to a quarter either way."""
    spread = random.uniform(0.75, 1.25)  # noqa: S311  # spreads load; nothing secret
    return min(first_sec * 2.0 ** min(step, 30), longest_sec) * spread


class _State(Enum):
    OPEN = auto()
    PAUSED = auto()
    PROBING = auto()


@dataclass(frozen=True, slots=True)
class Ticket:
    """What an attempt was let in as: ``pauses`` begun before it, and whether it is the probe."""

    pauses: int
    probe: bool


class SharedBackoff:
    """One a scheduler. The caller asks ``wait_sec`` before each attempt, then ``enter``, and ``leave`` at its end."""

    def __init__(self, stall_timeout_sec: float) -> None:
        self._stall_timeout_sec = stall_timeout_sec
        self._state = _State.OPEN
        self._pauses = 0
        self._step = 0
        self._until = 0.0
        self._trouble_since: float | None = None

    @property
    def is_open(self) -> bool:
        return self._state is _State.OPEN

    def wait_sec(self, now: float, n_running: int) -> float:
        """Seconds until an attempt may start (0: now), or until it is worth asking again."""
        if self._state is _State.PROBING and now >= self._until:
            self._state = _State.OPEN
        if self._state is _State.OPEN or (self._state is _State.PAUSED and now >= self._until):
            return 0.0
        return max(0.0, min(self._until, self._stall_at(n_running)) - now)

    def stalled(self, now: float, n_running: int) -> bool:
        """Whether nothing but shared causes came for the whole limit, and no attempt runs that could end better."""
        return now >= self._stall_at(n_running)

    def enter(self, now: float) -> Ticket:
        """An attempt starts."""
        probe = self._state is _State.PAUSED
        if probe:
            self._state, self._until = _State.PROBING, now + PROBE_SEC
        return Ticket(self._pauses, probe)

    def leave(self, ticket: Ticket, now: float, *, shared: bool) -> float | None:
        """An attempt ended; returns the seconds of the pause that this begins, None if it begins none.

        While new attempts are held back anyway, only the probe tells something new: 80 attempts that meet
        the same outage make one pause (C4).
        """
        if not shared:
            self._trouble_since = None
            if ticket.pauses == self._pauses:
                self._step = 0
                self._state = _State.OPEN
            return None
        if self._trouble_since is None:
            self._trouble_since = now
        if not (self.is_open or ticket.probe):
            return None
        pause_sec = growing(FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC, self._step)
        self._state, self._until = _State.PAUSED, now + pause_sec
        self._pauses += 1
        self._step += 1
        return pause_sec

    def _stall_at(self, n_running: int) -> float:
        could_end_better = n_running - (self._state is _State.PROBING)
        if self._trouble_since is None or self.is_open or could_end_better > 0:
            return math.inf
        return self._trouble_since + self._stall_timeout_sec
