"""Keys and the attempts behind them: from registration to the last record."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rolloutgen.gateway.attempts import Attempts, AttemptState, KeyDeadError
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.transcript.recorder import Reply, Request


@pytest.fixture
def attempts() -> Attempts:
    return Attempts(Pulse(), context_len=2048, token_ids=True, logprobs=False)


def _register(attempts: Attempts, transcript: Path, max_turns: int | None = None) -> tuple[str, AttemptState, str]:
    attempt_id, key = attempts.register(transcript, label="t", start={}, uses_tools=True, max_turns=max_turns)
    state = attempts.find(key)
    assert state is not None
    return attempt_id, state, key


def _lines(transcript: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in transcript.read_text().splitlines()]


async def _handle(state: AttemptState, began: asyncio.Event, *, stubborn: bool = False) -> None:
    """A handler as those of the HTTP side: it writes its record when it is cancelled."""
    call = state.begin(side=False, tools=False)
    number = state.recorder.request(Request(surface="chat", asked={}, sent={"messages": []}, side=False))
    call.trying()
    began.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if stubborn:
            await asyncio.sleep(0.05)
        call.aborted()
        state.recorder.reply(number, Reply(end="aborted", status=None, message={"content": "half"}))
        raise


async def test_a_key_is_random_and_known_from_registration_to_close(attempts: Attempts, tmp_path: Path) -> None:
    attempt_id, state, key = _register(attempts, tmp_path / "a")
    _, other, other_key = _register(attempts, tmp_path / "b")
    assert key != other_key
    assert attempts.find(other_key) is other is not state
    await attempts.close(attempt_id, {})
    assert attempts.find(key) is None
    assert attempts.find(other_key) is other
    assert len(attempts) == 1


@pytest.mark.parametrize("key", ["", "EMPTY", "rg-", "x" * 100_000, "\udcff", "rg-" + "0" * 48])
async def test_what_was_never_given_out_is_unknown(attempts: Attempts, tmp_path: Path, key: str) -> None:
    _register(attempts, tmp_path / "a")
    assert attempts.find(key) is None


@pytest.mark.parametrize("stubborn", [False, True])
async def test_close_ends_calls_in_flight_and_waits_for_their_records(
    attempts: Attempts, tmp_path: Path, stubborn: bool
) -> None:
    """A6: the transcript is whole up to the last token that left."""
    attempt_id, state, _ = _register(attempts, tmp_path / "a")
    begun = [asyncio.Event() for _ in range(3)]
    calls = [asyncio.create_task(_handle(state, event, stubborn=stubborn)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    report = await attempts.close(attempt_id, {"ending": "agent_timeout"})
    assert report is not None
    assert (report.aborted, report.calls, report.turns) == (3, 3, 0)
    assert all(call.cancelled() for call in calls)
    lines = _lines(tmp_path / "a")
    assert [line["type"] for line in lines[-4:]] == ["reply", "reply", "reply", "end"]
    assert lines[-1]["ending"] == "agent_timeout"


async def test_a_call_that_comes_while_its_attempt_ends_is_turned_away(attempts: Attempts, tmp_path: Path) -> None:
    attempt_id, state, _ = _register(attempts, tmp_path / "a")
    await attempts.close(attempt_id, {})
    with pytest.raises(KeyDeadError):
        state.begin(side=False, tools=False)


async def test_close_is_idempotent_also_at_the_same_time(attempts: Attempts, tmp_path: Path) -> None:
    attempt_id, state, _ = _register(attempts, tmp_path / "a")
    began = asyncio.Event()
    call = asyncio.create_task(_handle(state, began, stubborn=True))
    await began.wait()
    one, two = await asyncio.gather(attempts.close(attempt_id, {"n": 1}), attempts.close(attempt_id, {"n": 2}))
    assert one == two == await attempts.close(attempt_id, {"n": 3}) == attempts.report(attempt_id)
    assert [line.get("n") for line in _lines(tmp_path / "a") if line["type"] == "end"] == [1]
    assert call.done()


async def test_an_unknown_id_has_no_report(attempts: Attempts) -> None:
    assert attempts.report("0" * 16) is None
    assert await attempts.close("0" * 16, {}) is None


async def test_a_transcript_that_cannot_be_made_registers_nothing(attempts: Attempts, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        attempts.register(tmp_path / "none" / "a", label="t", start={}, uses_tools=False, max_turns=None)
    assert len(attempts) == 0


async def test_turns_that_run_now_count_against_the_limit(attempts: Attempts, tmp_path: Path) -> None:
    attempt_id, state, _ = _register(attempts, tmp_path / "a", max_turns=2)
    assert state.turns_left()
    state.begin(side=False, tools=True).answered(finish_reason="stop", usage=None)
    second = state.begin(side=False, tools=True)
    assert not state.turns_left()
    second.aborted()  # none after all
    assert state.turns_left()
    state.begin(side=True, tools=False)
    assert state.turns_left()
    await _ended(attempts, attempt_id)


async def _ended(attempts: Attempts, attempt_id: str) -> None:
    """Its calls here run in the test's own task, which must not be cancelled."""
    for call in list(attempts._by_id[attempt_id][1].ledger.in_flight):
        call.aborted()
    await attempts.close(attempt_id, {})
