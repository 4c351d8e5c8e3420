"""Calls to the model through a real gateway: what is sent with each (A13), and what an error means (C8).

What is sent again, and for how long, is the gateway's: see tests/gateway.
"""

import asyncio
from collections.abc import Callable

import pytest

from fakes.answers import CONTEXT_ERRORS, GARBAGE, Answer, Call, Fault
from rolloutgen.errors import InferenceError
from rolloutgen.scaffold.model import ContextExceededError

from .conftest import Play

ASK = [{"role": "user", "content": "hello"}]
type MakePlay = Callable[..., Play]


async def test_a13_a_call_asks_for_little_and_carries_the_runs_own_sampling(play: MakePlay) -> None:
    async with play(["ls\nmore"]) as one:
        reply = await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert (reply.text, reply.finish_reason, reply.full) == ("ls", "stop", False)
    sent = one.calls[0].body
    wanted = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "max_tokens": 64, "stop": ["\n"]}
    assert {key: sent[key] for key in wanted} == wanted
    assert sent["messages"] == ASK


async def test_an_answer_is_continued(play: MakePlay) -> None:
    """The gateway lets through what a scaffold needs for it."""
    begun = [*ASK, {"role": "assistant", "content": "cat <<EOF"}]
    async with play(["\nyes\nEOF\n"]) as one:
        reply = await one.client.complete(one.lease.endpoint, begun, "\nEOF", continues=True)
    assert reply.text == "\nyes"
    sent = one.calls[0].body
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


async def test_every_attempt_has_its_own_key_and_all_share_the_connections(play: MakePlay) -> None:
    async with play(["one", "two"]) as one:
        other = await one.gateway.lease(one.transcript.with_name("other.jsonl"))
        await one.client.complete(one.lease.endpoint, ASK, "\n")
        await one.client.complete(other.endpoint, ASK, "\n")
        assert (await one.lease.report()).turns == (await other.report()).turns == 1
        await other.close({})
        with pytest.raises(InferenceError, match="HTTP 401"):
            await one.client.complete(other.endpoint, ASK, "\n")
    assert other.endpoint.api_key != one.lease.endpoint.api_key
    assert {call.headers["Authorization"] for call in one.calls} == {"Bearer server-key"}


@pytest.mark.parametrize("error", CONTEXT_ERRORS)
async def test_c8_a_full_context_is_not_an_error(play: MakePlay, error: Fault) -> None:
    async with play([error]) as one:
        with pytest.raises(ContextExceededError):
            await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert (len(one.calls), one.report.context_exceeded, one.report.failure) == (1, True, "")


async def test_c8_an_answer_cut_by_the_context_is_told_from_one_cut_by_its_limit(play: MakePlay) -> None:
    async with play(["word " * 100], VLLM_MAX_MODEL_LEN="50", MAX_RESPONSE_LEN="49") as one:
        full = await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert (full.finish_reason, full.full, one.report.context_exceeded) == ("length", True, True)


async def test_an_answer_cut_by_its_limit(play: MakePlay) -> None:
    async with play(["word " * 100], MAX_RESPONSE_LEN="10") as one:
        short = await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert (short.finish_reason, short.full) == ("length", False)


@pytest.mark.parametrize("status", [400, 422])
async def test_a_refusal_is_an_error_and_not_asked_again(play: MakePlay, status: int) -> None:
    async with play([Fault(status=status, body="no such thing")]) as one:
        with pytest.raises(InferenceError, match=f"HTTP {status}.*no such thing"):
            await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert len(one.calls) == 1


@pytest.mark.parametrize("fault", [Fault(), Fault(status=404, body="no such model"), GARBAGE])
async def test_what_the_gateway_held_in_vain_is_an_error(play: MakePlay, fault: Fault) -> None:
    async with play([fault] * 1000, GATEWAY_HOLD_SEC="0.3") as one:
        with pytest.raises(InferenceError, match="HTTP 503"):
            await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert len(one.calls) > 1
    assert one.report.failure
    assert one.report.held_sec > 0


async def test_a_call_waits_for_as_long_as_the_gateway_holds_it(play: MakePlay) -> None:
    """A client's own impatience would end calls that a restarted server would have answered."""
    async with play([Fault(), Fault(), Fault(), "ls"], GATEWAY_HOLD_SEC="60") as one:
        reply = await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert reply.text == "ls"
    assert (one.report.retried, one.report.failure, one.report.turns) == (True, "", 1)


async def test_a_gateway_that_is_gone_is_an_error_at_once(play: MakePlay) -> None:
    asked = asyncio.Event()

    async def never(_: Call) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        return Answer()

    async with play([]) as one:
        one.upstream.rule = never
        call = asyncio.create_task(one.client.complete(one.lease.endpoint, ASK, "\n"))
        await asked.wait()
        await one.gateway.die()
        with pytest.raises(InferenceError, match="the connection to the gateway is lost"):
            await call
        with pytest.raises(InferenceError, match="the connection to the gateway is lost"):
            await one.client.complete(one.lease.endpoint, ASK, "\n")
    assert one.report.server_down
