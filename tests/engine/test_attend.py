"""The agent's time: what counts against its limit, and how it ends; in virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rolloutgen.engine.attend import WAITS_MAX_SEC, TimeUpError, attend
from rolloutgen.errors import InferenceError
from rolloutgen.gateway.report import Report
from rolloutgen.outcomes import Cause
from virtual_time import run_virtual

GONE = InferenceError("the gateway is gone", Cause.MODEL_DOWN)


@dataclass
class Model:
    """A model whose waits are told by the clock: ``held`` gives those so far at a moment."""

    held: Callable[[float], float] = lambda _now: 0.0
    gone_at: float = 1e9
    suspect_sec: float = 0.0
    looks: int = 0
    noted: list[InferenceError] = field(default_factory=list)
    at: float = 0.0

    async def report(self) -> Report:
        self.looks += 1
        waited = self.held(asyncio.get_running_loop().time())
        return Report(held_sec=waited / 2, queued_sec=waited / 2, suspect_sec=self.suspect_sec)

    async def lost(self) -> InferenceError:
        await asyncio.sleep(self.gone_at)
        return GONE

    def run(self, agent_sec: float, limit_sec: float | None) -> float:
        """When the attempt's agent had ended, one that wants to work for ``agent_sec``."""
        return run_virtual(self._run(agent_sec, limit_sec))

    async def _run(self, agent_sec: float, limit_sec: float | None) -> float:
        ended = asyncio.Event()

        async def agent() -> None:
            try:
                await asyncio.sleep(agent_sec)
            finally:
                await asyncio.sleep(0.01)  # it tidies up
                ended.set()

        try:
            await attend(agent(), self, limit_sec, self.noted.append)
        finally:
            assert ended.is_set()
            self.at = asyncio.get_running_loop().time()
        return self.at


def test_an_agent_that_ends_in_time_is_never_asked_about() -> None:
    model = Model()
    assert model.run(9.9, 10.0) == pytest.approx(9.9, abs=0.1)
    assert model.looks == 0
    assert model.run(1e6, None) == pytest.approx(1e6, abs=0.1)


def test_c1_the_limit_ends_the_agent() -> None:
    model = Model(suspect_sec=3.0)
    with pytest.raises(TimeUpError, match=r"timed out after 10\.0 seconds") as caught:
        model.run(1e6, 10.0)
    assert model.at == pytest.approx(10.0, abs=0.1)
    assert caught.value.lost_sec == 3.0


@pytest.mark.parametrize("waited", [0.5, 25.0, 3600.0])
def test_the_deadline_moves_by_what_the_agent_waited_for_the_model(waited: float) -> None:
    """Both kinds of waits, exactly; here they lie in the agent's first second."""
    model = Model(lambda now: min(now, waited) if now < 1 else waited)
    with pytest.raises(TimeUpError):
        model.run(1e6, 10.0)
    assert model.at == pytest.approx(10.0 + waited, abs=0.1)
    assert Model(lambda _now: waited).run(9.0 + waited, 10.0) == pytest.approx(9.0 + waited, abs=0.1)


@pytest.mark.parametrize("begin", [1.0, 9.999])
def test_a_wait_that_goes_on_at_the_deadline_is_watched_without_haste(begin: float) -> None:
    """A server that is away for an hour: the deadline moves along, and the gateway is not asked a million times."""
    model = Model(lambda now: min(3600.0, max(0.0, now - begin)))
    with pytest.raises(TimeUpError):
        model.run(1e6, 10.0)
    assert model.at == pytest.approx(3610.0, abs=0.3)
    assert model.looks <= 3600 / 0.2 + 2


def test_no_agent_waits_for_ever() -> None:
    """One may ask what the server fails at, again and again: what it lost counts as an outage, and is tried again."""
    model = Model(lambda now: now)
    with pytest.raises(TimeUpError) as caught:
        model.run(1e6, 10.0)
    assert model.at == pytest.approx(WAITS_MAX_SEC + 10, abs=0.5)
    assert caught.value.lost_sec == pytest.approx(10.0, abs=0.5)


def test_an_agent_without_its_model_is_ended_at_once() -> None:
    """While it runs the loss is noted: afterwards the attempt is in another phase."""
    model = Model(gone_at=5.0)
    with pytest.raises(InferenceError) as caught:
        model.run(1e6, None)
    assert caught.value is GONE
    assert model.noted == [GONE]
    assert model.at == pytest.approx(5.0, abs=0.1)


def test_an_agent_that_has_ended_is_not_lost_with_its_model() -> None:
    """Both at the same moment: a finished result is never thrown away."""
    model = Model(gone_at=5.0)
    run_virtual(attend(asyncio.sleep(5.0), model, None, model.noted.append))
    assert model.noted == []


@pytest.mark.parametrize("error", [ValueError("a bug"), asyncio.CancelledError()])
def test_what_the_agent_raises_passes_through(error: BaseException) -> None:
    async def agent() -> None:
        raise error

    with pytest.raises(type(error)):
        run_virtual(attend(agent(), Model(), 10.0, print))


def test_what_the_agent_raises_on_its_way_out_says_more_than_the_time() -> None:
    async def agent() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("it could not be stopped")

    with pytest.raises(ValueError, match="could not be stopped"):
        run_virtual(attend(agent(), Model(), 10.0, print))


@pytest.mark.parametrize("cancels", [1, 3])
def test_a_cancelled_caller_waits_for_the_agents_end(cancels: int) -> None:
    model = Model()

    async def main() -> None:
        running = asyncio.create_task(model._run(1e6, None))
        await asyncio.sleep(1.0)
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0.001)
        with pytest.raises(asyncio.CancelledError):
            await running

    run_virtual(main())
    assert model.at == pytest.approx(1.01, abs=0.1)
