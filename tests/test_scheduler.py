"""The scheduler against scripted attempts, in virtual time: slots, retries, pauses, stalls, cancellation."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rolloutgen.backoff import PROBE_SEC
from rolloutgen.errors import RunFailedError, StoreError
from rolloutgen.models import Instance, Outcome, Times, Trial
from rolloutgen.outcomes import Cause, Result
from rolloutgen.scheduler import Scheduler
from virtual_time import run_virtual

Script = Callable[[Trial, int], "Step"]


@dataclass(frozen=True)
class Step:
    """What an attempt does: lasts so long, then ends so. ``cause`` None: a pass."""

    sec: float = 1.0
    cause: Cause | None = None


@dataclass
class World:
    """Scripted attempts, and what was seen of them."""

    script: Script = lambda _trial, _attempt: Step()
    running: int = 0
    most: int = 0
    attempts: dict[Trial, int] = field(default_factory=dict)
    order: list[Trial] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[tuple[Trial, Outcome, bool]] = field(default_factory=list)
    busy_sec: float = 0.0
    pauses: list[float] = field(default_factory=list)
    n_resumed: int = 0

    async def attempt(self, trial: Trial) -> Outcome:
        self.attempts[trial] = self.attempts.get(trial, 0) + 1
        step = self.script(trial, self.attempts[trial])
        self.running += 1
        self.most = max(self.most, self.running)
        begun = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(step.sec)
        finally:
            self.running -= 1
            self.busy_sec += asyncio.get_running_loop().time() - begun
        return outcome(step.cause)

    def started(self, trial: Trial) -> None:
        self.order.append(trial)
        self.starts.append(asyncio.get_running_loop().time())

    def finished(self, trial: Trial, result: Outcome, *, retry: bool) -> None:
        self.ends.append((trial, result, retry))

    def paused(self, reason: str, sec: float) -> None:
        assert reason
        self.pauses.append(sec)

    def resumed(self) -> None:
        self.n_resumed += 1

    def scheduler(
        self, n_concurrent: int = 4, *, tries: int = 3, used: int = 0, stall_timeout_sec: float = 1800.0
    ) -> Scheduler:
        return Scheduler(
            self.attempt,
            n_concurrent=n_concurrent,
            attempts_per_trial=tries,
            attempts_used=lambda _trial: used,
            stall_timeout_sec=stall_timeout_sec,
            observer=self,
        )

    @property
    def verdicts(self) -> int:
        return sum(result.is_verdict for _, result, _ in self.ends)


def outcome(cause: Cause | None) -> Outcome:
    result = Result.PASS if cause is None else Result.ERROR
    return Outcome(result, Times("", ""), "digest", cause=cause, message="scripted" if cause else "")


def trials(n_instances: int, n_trials: int = 1) -> Iterator[Trial]:
    for index in range(n_instances):
        instance = Instance(f"i{index}", Path(f"/tasks/i{index}"))
        yield from (Trial(instance, number) for number in range(n_trials))


def seconds(trial: Trial, _attempt: int) -> Step:
    """Uneven lengths, 1 to 7 s."""
    return Step(1.0 + (int(trial.instance.instance_id[1:]) * 37 + trial.number) % 7)


async def timed(run: Callable[[], object]) -> float:
    begun = asyncio.get_running_loop().time()
    await run()  # type: ignore[misc]  # a coroutine function
    return asyncio.get_running_loop().time() - begun


def test_a19_never_more_than_n_concurrent_and_that_many_while_work_remains() -> None:
    world = World(seconds)
    took = run_virtual(timed(lambda: world.scheduler(8).run_all(trials(300, 2))))
    assert world.most == 8
    assert world.verdicts == 600
    longest = 7.0  # only the very end may leave slots idle
    assert world.busy_sec >= 8 * (took - longest)


def test_c17_more_slots_than_threads_fill_at_once_with_slow_starts() -> None:
    world = World(lambda _trial, _attempt: Step(500.0))
    run_virtual(world.scheduler(200).run_all(trials(500)))
    assert world.most == 200
    assert world.starts[:200] == [world.starts[0]] * 200
    assert world.verdicts == 500


def test_a19_no_waves_a_slot_is_refilled_while_a_long_attempt_goes_on() -> None:
    world = World(lambda trial, _attempt: Step(1000.0 if trial.instance.instance_id == "i0" else 1.0))
    took = run_virtual(timed(lambda: world.scheduler(2).run_all(trials(900))))
    assert took == pytest.approx(1000.0)


def test_work_is_pulled_lazily_and_instance_by_instance() -> None:
    pulled: list[Trial] = []

    def source() -> Iterator[Trial]:
        for trial in trials(1000, 4):
            pulled.append(trial)
            yield trial

    world = World()

    async def main() -> None:
        running = asyncio.create_task(world.scheduler(10).run_all(source()))
        await asyncio.sleep(5.5)
        assert len(pulled) == 60  # six rounds of ten: nothing is pulled before its slot is free
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run_virtual(main())
    assert [trial.number for trial in world.order[:8]] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_after_a_failure_from_outside_nothing_starts_and_the_run_has_failed() -> None:
    """The model server is gone for good: what runs comes to its end, and none of it is tried again here."""
    world = World(lambda _trial, _attempt: Step(2.0, Cause.MODEL_DOWN))

    async def main() -> None:
        scheduler = world.scheduler(4)
        running = asyncio.create_task(scheduler.run_all(trials(100)))
        await asyncio.sleep(1.0)
        scheduler.fail("the model server is gone for good")
        scheduler.fail("something later")
        with pytest.raises(RunFailedError, match="the model server is gone for good"):
            await running

    run_virtual(main())
    assert (len(world.starts), len(world.ends), world.running) == (4, 4, 0)


@pytest.mark.parametrize(("failed", "error"), [(True, RunFailedError), (False, asyncio.CancelledError)])
def test_a_signal_after_a_failure_cancels_the_attempts_and_the_failure_stays(
    failed: bool, error: type[BaseException]
) -> None:
    world = World(lambda _trial, _attempt: Step(1000.0))

    async def main() -> None:
        scheduler = world.scheduler(4)
        running = asyncio.create_task(scheduler.run_all(trials(100)))
        await asyncio.sleep(1.0)
        if failed:
            scheduler.fail("gone")
        await asyncio.sleep(1.0)
        running.cancel()
        with pytest.raises(error):
            await running
        assert asyncio.get_running_loop().time() < 100

    run_virtual(main())
    assert world.running == 0


def test_c16_a_charged_error_is_tried_again_and_the_second_attempt_counts() -> None:
    world = World(lambda _trial, attempt: Step(1.0, Cause.TRANSPORT if attempt == 1 else None))
    run_virtual(world.scheduler().run_all(trials(3)))
    assert set(world.attempts.values()) == {2}
    assert [retry for _, _, retry in world.ends].count(True) == 3
    assert world.verdicts == 3
    assert world.pauses == []


def test_attempts_are_counted_and_an_exhausted_trial_stays_without_a_verdict() -> None:
    world = World(lambda _trial, _attempt: Step(1.0, Cause.REWARD_MISSING))
    run_virtual(world.scheduler(tries=3).run_all(trials(5)))
    assert set(world.attempts.values()) == {3}
    assert world.verdicts == 0
    assert [retry for _, _, retry in world.ends].count(False) == 5


def test_attempts_of_earlier_launches_count() -> None:
    world = World(lambda _trial, _attempt: Step(1.0, Cause.REWARD_MISSING))
    run_virtual(world.scheduler(tries=3, used=2).run_all(trials(2)))
    assert set(world.attempts.values()) == {1}
    world = World()
    run_virtual(world.scheduler(tries=3, used=3).run_all(trials(2)))
    assert world.attempts == {}


def test_other_work_goes_on_while_a_retry_waits() -> None:
    world = World(lambda trial, attempt: Step(0.1, Cause.TRANSPORT if trial.number == 0 and attempt < 3 else None))
    run_virtual(world.scheduler(1).run_all(trials(1, 200)))
    first_retry = world.order.index(world.order[0], 1)
    assert first_retry > 3
    assert world.verdicts == 200


def test_c4_one_shared_pause_for_all_trials_then_a_probe_then_all() -> None:
    outage_ends = 20.0

    def script(_trial: Trial, _attempt: int) -> Step:
        down = asyncio.get_running_loop().time() < outage_ends
        return Step(0.5 if down else 10.0, Cause.REGISTRY_LIMIT if down else None)

    world = World(script)
    run_virtual(world.scheduler(80, tries=1).run_all(trials(200)))
    assert world.verdicts == 200  # not charged: with one attempt a trial, none is lost
    assert 1 <= len(world.pauses) <= 4
    assert all(later > earlier for earlier, later in zip(world.pauses, world.pauses[1:], strict=False))
    probes = [start for start in world.starts if 1.0 < start < outage_ends]
    assert len(probes) == len(world.pauses) - 1
    assert world.n_resumed == 1


def test_a_probe_that_goes_on_lets_the_others_in() -> None:
    def script(_trial: Trial, attempt: int) -> Step:
        return Step(1.0, Cause.SANDBOX_BUSY) if attempt == 1 else Step(5000.0)

    world = World(script)
    took = run_virtual(timed(lambda: world.scheduler(10).run_all(trials(10))))
    assert world.verdicts == 10
    assert took < 5000.0 + PROBE_SEC + 60.0
    assert len(world.pauses) == 1


def test_nothing_but_shared_causes_for_the_stall_limit_ends_the_run() -> None:
    world = World(lambda _trial, _attempt: Step(1.0, Cause.MODEL_DOWN))
    with pytest.raises(RunFailedError, match="model_down: scripted"):
        run_virtual(world.scheduler(20, stall_timeout_sec=1800.0).run_all(trials(50)))
    assert max(world.pauses) > 200.0
    assert world.starts[-1] <= 1801.0
    assert world.running == 0


def test_a_long_attempt_that_could_still_end_well_is_no_stall() -> None:
    def script(trial: Trial, attempt: int) -> Step:
        if trial.instance.instance_id == "i0":
            return Step(4000.0)
        return Step(1.0, Cause.SANDBOX_BUSY if asyncio.get_running_loop().time() < 3000.0 and attempt < 99 else None)

    world = World(script)
    run_virtual(world.scheduler(4, stall_timeout_sec=1800.0).run_all(trials(4)))
    assert world.verdicts == 4


def test_stop_dispatches_nothing_more_and_lets_the_running_ones_end() -> None:
    world = World()

    async def main() -> None:
        scheduler = world.scheduler(3)
        running = asyncio.create_task(scheduler.run_all(trials(50)))
        await asyncio.sleep(1.5)
        scheduler.stop()
        await running

    run_virtual(main())
    assert world.verdicts == 6
    assert world.running == 0


def test_cancelling_waits_for_every_cleanup_even_when_asked_twice() -> None:
    cleaned: list[Trial] = []

    async def attempt(trial: Trial) -> Outcome:
        try:
            await asyncio.sleep(1000.0)
        finally:
            await asyncio.sleep(20.0)
            cleaned.append(trial)
        return outcome(None)

    world = World()
    scheduler = Scheduler(
        attempt,
        n_concurrent=5,
        attempts_per_trial=1,
        attempts_used=lambda _trial: 0,
        stall_timeout_sec=1800.0,
        observer=world,
    )

    async def main() -> None:
        running = asyncio.create_task(scheduler.run_all(trials(50)))
        await asyncio.sleep(10.0)
        running.cancel()
        await asyncio.sleep(1.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run_virtual(main())
    assert len(cleaned) == 5


def test_a_bug_or_a_failed_write_ends_the_run_loudly() -> None:
    async def attempt(_trial: Trial) -> Outcome:
        await asyncio.sleep(1.0)
        raise StoreError("disk full")

    world = World()
    scheduler = Scheduler(
        attempt,
        n_concurrent=5,
        attempts_per_trial=1,
        attempts_used=lambda _trial: 0,
        stall_timeout_sec=1800.0,
        observer=world,
    )
    with pytest.raises(StoreError, match="disk full"):
        run_virtual(scheduler.run_all(trials(50)))


def test_a_failing_observer_ends_the_run_loudly() -> None:
    class Broken(World):
        def finished(self, trial: Trial, result: Outcome, *, retry: bool) -> None:
            raise ZeroDivisionError(trial, result, retry)

    with pytest.raises(ZeroDivisionError):
        run_virtual(Broken().scheduler().run_all(trials(5)))
