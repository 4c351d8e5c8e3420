"""One attempt that asks a model, through Harbor and a real gateway: its key, time and evidence (A6, A13, C1, C8)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.answers import CONTEXT, Answer, Call, Fault, Rule
from fakes.null_sandbox import NullBackend, NullSandbox, is_verifier
from fakes.upstream import Upstream
from local_gateway import LocalGateway
from rolloutgen.engine import Engine
from rolloutgen.errors import StoreError
from rolloutgen.models import Attempt, Outcome
from rolloutgen.outcomes import Cause, Flag, Result
from rolloutgen.paths import TRANSCRIPT
from rolloutgen.sandbox.base import ExecResult
from rolloutgen.transcript.lines import read
from rolloutgen.transcript.reader import read_calls


class Play:
    """A scripted model, a gateway and an engine; ``run`` is one attempt."""

    def __init__(self, make_settings: Any, make_task: Any, make_attempt: Any, backend: NullBackend) -> None:
        self._make_settings, self._make_task, self._make_attempt = make_settings, make_task, make_attempt
        self.backend = backend
        self.upstream = Upstream(lambda _: "exit")
        self.meanwhile: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)

    async def run(self, rule: Rule, **keys: str) -> Outcome:
        """The outcome of one attempt; ``meanwhile`` runs beside it."""
        self.upstream.rule = rule
        settings = self._make_settings(SCAFFOLD="shell", **keys)
        self.attempt: Attempt = self._make_attempt(self._make_task())
        async with self.upstream, LocalGateway(settings, self.upstream) as self.gateway:
            engine = Engine(settings, self.backend, self.gateway.client)
            try:
                outcome, _ = await asyncio.gather(engine.run_attempt(self.attempt), self.meanwhile())
            finally:
                await engine.close()
        return outcome

    @property
    def graded(self) -> bool:
        return any(is_verifier(command) for box in self.backend.sandboxes for command, _ in box.commands)

    @property
    def last_line(self) -> dict[str, Any]:
        return list(read(self.attempt.folder / TRANSCRIPT))[-1]


@pytest.fixture
async def play(make_settings: Any, make_task: Any, make_attempt: Any) -> AsyncIterator[Play]:
    backend = NullBackend()
    yield Play(make_settings, make_task, make_attempt, backend)
    assert backend.left == []


def says(*reactions: str | Fault | Answer) -> Rule:
    """These, one after another; the last one for ever."""
    return lambda call: reactions[min(call.number, len(reactions) - 1)]


async def test_a6_an_attempt_has_its_own_key_and_the_gateway_writes_its_transcript(play: Play, tmp_path: Path) -> None:
    keys = set()

    async def look(sandbox: NullSandbox, command: str) -> ExecResult | None:
        keys.update(state.label for state in play.gateway.attempts)
        return None

    play.backend.on_exec = look
    outcome = await play.run(says("touch x", "exit"))
    assert (outcome.result, outcome.turns, outcome.flags) == (Result.PASS, 2, ())
    assert keys == {"task/trial_0.attempt_1"}
    assert list(play.gateway.attempts) == []  # the key is dead
    start, *_, end = read(play.attempt.folder / TRANSCRIPT)
    known = {"scaffold": "shell", "scaffold_version": "1", "instance_id": "task", "trial": 0, "attempt": 1}
    assert {name: start[name] for name in known} == known
    assert (end["type"], end["ending"], end["turns"]) == ("end", "done", 2)
    assert [call.sent()["temperature"] for call in read_calls(play.attempt.folder / TRANSCRIPT)] == [0.7, 0.7]
    assert outcome.details["model"]["turns"] == 2  # type: ignore[index]  # plain JSON
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if b"rg-" in path.read_bytes() or b"test-key" in path.read_bytes()]


async def test_the_key_is_dead_before_grading(play: Play) -> None:
    """A process that the agent left behind cannot ask the model while the tests run."""
    alive: list[bool] = []

    async def look(sandbox: NullSandbox, command: str) -> ExecResult | None:
        if is_verifier(command):
            alive.append(bool(list(play.gateway.attempts)))
        return None

    play.backend.on_exec = look
    assert (await play.run(says("exit"))).is_verdict
    assert alive == [False]


async def test_times_tell_the_model_from_the_sandbox(play: Play) -> None:
    async def work(sandbox: NullSandbox, command: str) -> ExecResult | None:
        await asyncio.sleep(0.3 if command == "make" else 0)
        return None

    play.backend.on_exec = work
    outcome = await play.run(says("make", Answer("exit", delay_sec=0.4)))
    times = outcome.times
    assert times.agent_sec is not None
    assert times.model_sec is not None
    assert times.model_sec >= 0.4
    assert times.agent_sec - times.model_sec >= 0.3
    assert (times.held_sec, times.lost_sec) == (0.0, 0.0)


async def test_a_request_that_is_refused_is_an_error_and_nothing_is_graded(play: Play) -> None:
    outcome = await play.run(says("ls", Fault(status=422, body="no such thing")))
    assert (outcome.result, outcome.cause, outcome.turns) == (Result.ERROR, Cause.MODEL_CALL, 1)
    assert "no such thing" in outcome.message
    assert not play.graded


async def test_a_call_that_fails_for_good_is_an_error_and_nothing_is_graded(play: Play) -> None:
    outcome = await play.run(says("ls", Fault()), GATEWAY_HOLD_SEC="0.3")
    assert (outcome.result, outcome.cause, outcome.turns) == (Result.ERROR, Cause.MODEL_CALL, 1)
    assert "the engine died" in outcome.message
    assert not play.graded
    assert play.last_line["turns"] == 1


async def test_a_call_that_heals_costs_nothing_but_a_flag(play: Play) -> None:
    outcome = await play.run(says("ls", Fault(), Fault(), "exit"))
    assert (outcome.result, outcome.flags) == (Result.PASS, (Flag.INFERENCE_RETRY,))
    assert outcome.times.lost_sec == 0.0
    assert outcome.times.held_sec is not None
    assert outcome.times.held_sec > 0.0


async def test_a_restart_of_the_server_does_not_count_against_the_agents_limit(play: Play) -> None:
    """Away for longer than the whole limit: the attempt has its verdict all the same."""
    asked = asyncio.Event()

    async def hang_once(call: Call) -> Answer:
        if call.number == 0:
            asked.set()
            await asyncio.Event().wait()
        return Answer("exit")

    async def restart() -> None:
        await asked.wait()
        await play.gateway.server.update("restarting")
        await play.upstream.stop()
        await asyncio.sleep(4.0)
        await play.upstream.start(port=0)
        await play.gateway.ready()

    play.meanwhile = restart
    outcome = await play.run(hang_once, AGENT_TIMEOUT_SEC="3")
    assert (outcome.result, outcome.flags) == (Result.PASS, (Flag.INFERENCE_RETRY,))
    assert outcome.times.held_sec is not None
    assert outcome.times.held_sec >= 4.0
    assert outcome.times.agent_sec is not None
    assert outcome.times.agent_sec > 4.0


@pytest.mark.parametrize(("reward", "result"), [(b"1", Result.PASS), (b"0", Result.FAIL)])
async def test_c1_a_slow_model_is_the_agents_own_time(play: Play, reward: bytes, result: Result) -> None:
    """Our own limit ends the call: that is no failure of the model's."""
    play.backend.reward = reward
    slow = says("ls", Answer("exit", delay_sec=3600))
    outcome = await play.run(slow, AGENT_TIMEOUT_SEC="3", MODEL_CALL_TIMEOUT_SEC="600")
    assert (outcome.result, outcome.flags, outcome.turns) == (result, (Flag.AGENT_TIMEOUT,), 1)
    assert play.graded
    assert play.last_line["ending"] == "agent_timeout"
    assert [call.end for call in read_calls(play.attempt.folder / TRANSCRIPT)] == ["answered", "aborted"]


@pytest.mark.parametrize(("reward", "cause"), [(b"0", Cause.OUTAGE_INFERENCE), (b"1", None)])
async def test_a_server_that_fell_silent_makes_a_timeout_an_error_but_not_a_pass(
    play: Play, reward: bytes, cause: Cause | None
) -> None:
    """The watch doubts it, and has not restarted it yet."""

    async def doubt(call: Call) -> Answer:
        play.gateway.pulse.suspected = True
        await asyncio.Event().wait()
        return Answer()

    play.backend.reward = reward
    outcome = await play.run(doubt, AGENT_TIMEOUT_SEC="3", MODEL_CALL_TIMEOUT_SEC="600")
    assert (outcome.cause, outcome.is_verdict) == (cause, cause is None)
    assert outcome.times.lost_sec > 0.5


async def test_c8_a_full_context_is_graded(play: Play) -> None:
    outcome = await play.run(says(CONTEXT))
    assert (outcome.result, outcome.flags, outcome.turns) == (Result.PASS, (Flag.CONTEXT_EXCEEDED,), 0)


async def test_out_of_turns_is_graded(play: Play) -> None:
    outcome = await play.run(says("ls"), MAX_TURNS="3")
    assert (outcome.result, outcome.flags, outcome.turns) == (Result.PASS, (Flag.MAX_TURNS,), 3)


@pytest.mark.parametrize("where", ["a call", "a command"])
@pytest.mark.parametrize("who", ["the server", "the gateway"])
async def test_a_server_or_gateway_that_is_gone_for_good_ends_the_attempt_without_grading(
    play: Play, where: str, who: str
) -> None:
    """Also an agent that asks nothing just then: its next call could not be answered."""
    reached = asyncio.Event()

    async def hang(call: Call) -> Answer:
        if where == "a call":
            reached.set()
            await asyncio.Event().wait()
        return Answer("sleep 1000")

    async def sleep(sandbox: NullSandbox, command: str) -> ExecResult | None:
        if command == "sleep 1000":
            reached.set()
            await asyncio.Event().wait()
        return None

    async def end() -> None:
        await reached.wait()
        if who == "the server":
            await play.gateway.server.update("failed", message="restarted 3 times within an hour")
        else:
            await play.gateway.die()

    play.backend.on_exec, play.meanwhile = sleep, end
    outcome = await play.run(hang)
    assert (outcome.result, outcome.cause, outcome.charged) == (Result.ERROR, Cause.MODEL_DOWN, False)
    assert ("restarted 3 times within an hour" in outcome.message) == (who == "the server")
    assert not play.graded


async def test_a_transcript_that_cannot_be_written_ends_the_run_and_charges_no_trial(play: Play) -> None:
    """The gateway writes it, on the same disk: all trials would meet it."""

    async def block(sandbox: NullSandbox) -> None:
        (play.attempt.folder / TRANSCRIPT).touch()

    play.backend.on_start = block
    with pytest.raises(StoreError, match="could not be written"):
        await play.run(says("exit"))


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancelled_attempt_closes_its_lease(play: Play, cancels: int) -> None:
    """Its transcript says so, and its call is taken back from the server."""
    asked = asyncio.Event()

    async def hang(call: Call) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        return Answer()

    async def cancel() -> None:
        await asked.wait()
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0.001)

    cancelling = asyncio.create_task(cancel())
    running = asyncio.create_task(play.run(hang))
    with pytest.raises(asyncio.CancelledError):
        await running
    await cancelling
    assert play.last_line["ending"] == "interrupted"
    assert [call.end for call in read_calls(play.attempt.folder / TRANSCRIPT)] == ["aborted"]
