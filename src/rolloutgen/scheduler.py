"""Which trial runs next, and when: slots, retries, shared pauses, cancellation.

It is handed "run one attempt" and knows neither sandboxes nor Harbor nor disks. Work comes from a lazy iterator: at
any time there are at most ``n_concurrent`` tasks, and exactly that many attempts run while work remains and no
shared pause holds it back. An error of the trial itself is tried again after a short, growing delay, while
other work goes on in its slot. An exception of the attempt function or of the observer is a bug and ends the run.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from rolloutgen.backoff import SharedBackoff, Ticket, growing
from rolloutgen.errors import RunFailedError
from rolloutgen.models import Outcome, Trial

FIRST_RETRY_SEC: Final = 1.0
LONGEST_RETRY_SEC: Final = 60.0


class Observer(Protocol):
    """Who watches; called on the event loop, so quick and never blocking."""

    def started(self, trial: Trial) -> None: ...

    def finished(self, trial: Trial, outcome: Outcome, *, retry: bool) -> None:
        """``retry``: the trial has no verdict yet and is tried again in this launch."""

    def paused(self, reason: str, sec: float) -> None:
        """No new attempts for ``sec`` seconds, since ``reason`` hits all alike."""

    def resumed(self) -> None: ...


@dataclass(frozen=True, slots=True, order=True)
class _Work:
    """A trial that may start at ``due``; ``used`` attempts of it are charged so far."""

    due: float
    order: int
    trial: Trial = field(compare=False)
    used: int = field(compare=False)


class Scheduler:
    """Runs every trial of one launch. ``attempts_used`` says how many attempts earlier launches charged to a trial."""

    def __init__(
        self,
        run: Callable[[Trial], Awaitable[Outcome]],
        *,
        n_concurrent: int,
        attempts_per_trial: int,
        attempts_used: Callable[[Trial], int],
        stall_timeout_sec: float,
        observer: Observer,
    ) -> None:
        self._run = run
        self._n_concurrent = n_concurrent
        self._attempts_per_trial = attempts_per_trial
        self._attempts_used = attempts_used
        self._observer = observer
        self._backoff = SharedBackoff(stall_timeout_sec)
        self._stall_timeout_sec = stall_timeout_sec
        self._fresh: Iterator[Trial] = iter(())
        self._again: list[_Work] = []
        self._order = itertools.count()
        self._n_running = 0
        self._held_back = False
        self._stopped = False
        self._failed = ""
        self._change = asyncio.Event()
        self._last_shared = ""

    def stop(self) -> None:
        """Start no further attempt; ``run_all`` returns when the running ones have ended."""
        self._stopped = True
        self._change.set()

    def fail(self, reason: str) -> None:
        """As ``stop``, for something that no attempt can live without: ``run_all`` ends with RunFailedError."""
        self._failed = self._failed or reason
        self.stop()

    async def run_all(self, trials: Iterator[Trial]) -> None:
        """Run ``trials`` to the end of their attempts. Raises RunFailedError on a stall, and after ``fail``.

        Cancelling it cancels the running attempts once, and waits until each has cleaned up; after ``fail`` that is its
        end all the same, for the failure came first.
        """
        self._fresh = trials
        try:
            async with asyncio.TaskGroup() as group:
                while (work := await self._next()) is not None:
                    self._n_running += 1
                    ticket = self._backoff.enter(self._now())
                    group.create_task(self._attempt(work, ticket))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several
        except asyncio.CancelledError:
            if not self._failed:
                raise
        if self._failed:
            raise RunFailedError(self._failed)

    async def _attempt(self, work: _Work, ticket: Ticket) -> None:
        self._observer.started(work.trial)
        try:
            outcome = await self._run(work.trial)
        finally:
            self._n_running -= 1
            self._change.set()
        pause_sec = self._backoff.leave(ticket, self._now(), shared=outcome.shared)
        self._observer.finished(work.trial, outcome, retry=self._plan_retry(work, outcome))
        if pause_sec is not None:
            self._held_back = True
            self._last_shared = f"{outcome.cause}: {outcome.message}"
            self._observer.paused(self._last_shared, pause_sec)

    def _plan_retry(self, work: _Work, outcome: Outcome) -> bool:
        """Queue the trial again unless it has its verdict or has used up its attempts."""
        if outcome.is_verdict:
            return False
        used, due = work.used, self._now()
        if outcome.charged:
            due += growing(FIRST_RETRY_SEC, LONGEST_RETRY_SEC, used)
            used += 1
        if used >= self._attempts_per_trial:
            return False
        heapq.heappush(self._again, _Work(due, next(self._order), work.trial, used))
        return True

    async def _next(self) -> _Work | None:
        """The next trial, as soon as a slot is free and it may start; None when there is no more."""
        while not self._stopped:
            self._change.clear()
            now = self._now()
            if self._backoff.stalled(now, self._n_running):
                raise RunFailedError(f"nothing could run for {self._stall_timeout_sec:g} s; last: {self._last_shared}")
            wait_sec = self._wait_sec(now)
            if wait_sec <= 0:
                work = self._take(now)
                if work is not None:
                    return work
                if not (self._again or self._n_running):
                    return None
                wait_sec = self._again[0].due - now if self._again else math.inf
            await self._changed(wait_sec)
        return None

    def _wait_sec(self, now: float) -> float:
        """Seconds until an attempt may start; infinite: not before another one ends."""
        wait_sec = self._backoff.wait_sec(now, self._n_running)
        if self._held_back and self._backoff.is_open:
            self._held_back = False
            self._observer.resumed()
        return wait_sec if wait_sec > 0 or self._n_running < self._n_concurrent else math.inf

    def _take(self, now: float) -> _Work | None:
        """A retry that is due, else a fresh trial, else None. Retries first: their instance's image is still here."""
        if self._again and self._again[0].due <= now:
            return heapq.heappop(self._again)
        for trial in self._fresh:
            used = self._attempts_used(trial)
            if used < self._attempts_per_trial:
                return _Work(now, next(self._order), trial, used)
        return None

    async def _changed(self, at_most_sec: float) -> None:
        """Wait until an attempt ends or ``stop`` is called, at most so long."""
        timeout = None if math.isinf(at_most_sec) else at_most_sec
        try:
            async with asyncio.timeout(timeout):
                await self._change.wait()
        except TimeoutError:
            pass

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
