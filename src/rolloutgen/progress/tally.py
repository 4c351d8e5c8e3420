"""Counting a run while it goes on: what is done, how fast, and when it may end.

A ``Snapshot`` is what everybody shows: the bar, the digest in the log, ``progress.json``, ``rolloutgen status``.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from rolloutgen.models import SCHEMA_VERSION, Outcome
from rolloutgen.outcomes import ErrorKind, Result
from rolloutgen.progress.spent import spent


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a run; counts are trials, except ``n_errors`` and ``running`` (attempts of this launch).

    ``n_given_up``: trials that have used up their attempts. ``per_hour`` and ``eta_sec`` are None while
    there is too little to tell from; ``paused`` is why new attempts are held back (empty: they are not).
    ``spent``: seconds of this launch's attempts by kind (``spent``).
    """

    at: str
    n_planned: int
    n_pass: int
    n_fail: int
    n_errors: int
    n_given_up: int
    running: int
    per_hour: float | None
    eta_sec: float | None
    paused: str
    spent: Mapping[str, float]

    @property
    def n_done(self) -> int:
        return self.n_pass + self.n_fail

    @property
    def n_owed(self) -> int:
        return self.n_planned - self.n_done

    def line(self) -> str:
        """For people: ``13/48 trials done (7 pass, 6 fail), 16 running, 240/h, about 9 min left``."""
        parts = [f"{self.n_done}/{self.n_planned} trials done ({self.n_pass} pass, {self.n_fail} fail)"]
        if self.n_errors:
            parts.append(f"{self.n_errors} attempts without a verdict")
        if self.n_given_up:
            parts.append(f"{self.n_given_up} trials given up")
        parts.append(f"{self.running} running")
        if self.per_hour is not None:
            parts.append(f"{self.per_hour:.0f}/h")
        if self.n_owed > self.n_given_up:
            parts.append(
                "time left not known yet" if self.eta_sec is None else f"about {for_people(self.eta_sec)} left"
            )
        if self.paused:
            parts.append(f"new attempts paused: {self.paused}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, object]:
        return {"schema_version": SCHEMA_VERSION} | {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Raises KeyError where a field is missing."""
        return cls(**{name: record[name] for name in cls.__slots__})


class Tally:
    """The counts of one launch. ``clock`` gives monotonic seconds, ``utc`` the time for people.

    The rate is that of the last trials that ended, up to two rounds of all slots, and counts the time since the last
    one: when everything stands still the time left grows. It is unknown until one round of slots has ended.
    """

    def __init__(
        self,
        *,
        n_planned: int,
        n_pass: int,
        n_fail: int,
        n_given_up: int = 0,
        n_concurrent: int,
        clock: Callable[[], float],
        utc: Callable[[], str],
    ) -> None:
        self._n_planned = n_planned
        self._n_pass, self._n_fail = n_pass, n_fail
        self._clock, self._utc = clock, utc
        self._round = max(4, n_concurrent)
        self._ends: deque[float] = deque([clock()], maxlen=2 * self._round + 1)
        self._n_given_up = n_given_up
        self._n_errors = self._running = 0
        self._spent: Counter[str] = Counter()
        self.paused = ""

    def started(self) -> None:
        self._running += 1

    def finished(self, outcome: Outcome, *, retry: bool) -> None:
        self._running -= 1
        self._n_pass += outcome.result is Result.PASS
        self._n_fail += outcome.result is Result.FAIL
        self._n_errors += not outcome.is_verdict
        if outcome.kind is not ErrorKind.INFERENCE:  # what a gateway that died knew of its time died with it
            self._spent.update(spent(outcome.times))
        if not retry:
            self._n_given_up += not outcome.is_verdict
            self._ends.append(self._clock())

    def snapshot(self) -> Snapshot:
        left = self._n_planned - self._n_pass - self._n_fail - self._n_given_up
        per_sec = self._per_sec()
        eta_sec = left / per_sec if per_sec and not self.paused else None
        return Snapshot(
            at=self._utc(),
            n_planned=self._n_planned,
            n_pass=self._n_pass,
            n_fail=self._n_fail,
            n_errors=self._n_errors,
            n_given_up=self._n_given_up,
            running=self._running,
            per_hour=per_sec * 3600 if per_sec else None,
            eta_sec=eta_sec,
            paused=self.paused,
            spent={kind: round(sec, 3) for kind, sec in self._spent.items()},
        )

    def _per_sec(self) -> float | None:
        n_ended = len(self._ends) - 1
        elapsed = self._clock() - self._ends[0]
        return n_ended / elapsed if n_ended >= self._round and elapsed > 0 else None


def for_people(sec: float) -> str:
    """``45 s``, ``9 min``, ``3 h 20 min``, ``2 d 4 h``: the two largest units at most."""
    minutes, seconds = divmod(round(sec), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"
