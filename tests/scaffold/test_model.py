"""Calls to the model server: what is sent with each (A13), what is asked again, and what an error means (C8)."""

import asyncio
from collections.abc import Callable

import pytest

from fakes.model_server import CONTEXT, DROP, GARBAGE, HANG, OVERLOADED, RATE_LIMIT, Call, Fault, ModelServer
from rolloutgen.errors import InferenceError
from rolloutgen.outcomes import Cause, Flag
from rolloutgen.scaffold.base import State
from rolloutgen.scaffold.model import TRIES, ContextExceededError, ModelClient

ASK = [{"role": "user", "content": "hello"}]
type MakeClient = Callable[..., ModelClient]


def first_then(fault: Fault, times: int, answer: str = "ls") -> Callable[[Call], str | Fault]:
    return lambda call: fault if call.number < times else answer


async def test_a13_every_request_carries_the_sampling_parameters(make_client: MakeClient) -> None:
    async with ModelServer(lambda call: "ls\nmore") as server:
        reply = await make_client(server).complete(ASK, "\n", State())
    assert (reply.text, reply.finish_reason, reply.full) == ("ls", "stop", False)
    body = server.calls[0].body
    sent = {key: body[key] for key in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "stop")}
    assert sent == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "max_tokens": 64,
        "n": 1,
        "stop": ["\n"],
    }
    assert (body["presence_penalty"], body["frequency_penalty"], body["repetition_penalty"]) == (0, 0, 1)


@pytest.mark.parametrize("fault", [Fault(), OVERLOADED, GARBAGE, DROP, HANG, Fault(status=200, body='{"choices": []}')])
async def test_what_heals_is_asked_again_and_flagged(make_client: MakeClient, fault: Fault) -> None:
    state = State()
    async with ModelServer(first_then(fault, 2)) as server:
        reply = await make_client(server).complete(ASK, "\n", state)
    assert reply.text == "ls"
    assert state.flags == {Flag.INFERENCE_RETRY}
    assert state.lost_sec > 0
    assert [("error" in one, "status" in one) for one in reply.call["tries"]] == [(True, False)] * 2 + [(False, True)]


async def test_a_call_without_trouble_loses_nothing(make_client: MakeClient) -> None:
    state = State()
    async with ModelServer(lambda call: "ls") as server:
        await make_client(server).complete(ASK, "\n", state)
    assert (state.lost_sec, state.flags) == (0.0, set())


async def test_retry_after_is_honoured(make_client: MakeClient) -> None:
    state = State()
    async with ModelServer(first_then(RATE_LIMIT, 1)) as server:
        await make_client(server).complete(ASK, "\n", state)
    assert state.lost_sec >= 1.0


@pytest.mark.parametrize("fault", [Fault(), OVERLOADED, GARBAGE, HANG])
async def test_what_does_not_heal_is_an_error_of_this_trial(make_client: MakeClient, fault: Fault) -> None:
    state = State()
    async with ModelServer(lambda call: fault) as server:
        client = make_client(server, model_call_timeout_sec=0.1)
        with pytest.raises(InferenceError) as caught:
            await client.complete(ASK, "\n", state)
    assert caught.value.cause is Cause.MODEL_CALL
    assert len(server.calls) == TRIES
    assert (state.lost_sec > 0, state.flags) == (True, set())


async def test_a_server_that_is_gone_is_an_error_of_all(make_client: MakeClient) -> None:
    server = ModelServer(lambda call: "ls")
    await server.start()
    client = make_client(server)
    await server.stop()
    with pytest.raises(InferenceError) as caught:
        await client.complete(ASK, "\n", State())
    assert caught.value.cause is Cause.MODEL_DOWN


async def test_a_server_that_dies_under_a_call_is_an_error_of_all(make_client: MakeClient) -> None:
    asked = asyncio.Event()

    def hang(call: Call) -> Fault:
        asked.set()
        return HANG

    async with ModelServer(hang) as server:
        call = asyncio.create_task(make_client(server, model_call_timeout_sec=5.0).complete(ASK, "\n", State()))
        await asked.wait()
    with pytest.raises(InferenceError) as caught:
        await call
    assert caught.value.cause is Cause.MODEL_DOWN


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens. However, you requested 2049 tokens",
        "'max_tokens' or 'max_completion_tokens' is too large: 64. This model's maximum context length is 2048 tokens",
        "The decoder prompt (length 3000) is longer than the maximum model length of 2048.",
        "prompt is too long: 3000 tokens",
        "Please reduce the length: context_length_exceeded",
    ],
)
async def test_c8_a_full_context_is_not_an_error(make_client: MakeClient, message: str) -> None:
    async with ModelServer(lambda call: Fault(status=400, body=message)) as server:
        with pytest.raises(ContextExceededError):
            await make_client(server).complete(ASK, "\n", State())
    assert len(server.calls) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_is_not_asked_again(make_client: MakeClient, status: int) -> None:
    async with ModelServer(lambda call: Fault(status=status, body="no such thing")) as server:
        with pytest.raises(InferenceError, match=f"HTTP {status}: no such thing") as caught:
            await make_client(server).complete(ASK, "\n", State())
    assert caught.value.cause is Cause.MODEL_CALL
    assert len(server.calls) == 1


async def test_c8_an_answer_cut_by_the_context_is_told_from_one_cut_by_its_limit(make_client: MakeClient) -> None:
    async with ModelServer(lambda call: "word " * 100, context_len=50) as server:
        full = await make_client(server, vllm_max_model_len=50).complete(ASK, "\n", State())
        short = await make_client(server, vllm_max_model_len=50, max_response_len=10).complete(ASK, "\n", State())
    assert (full.finish_reason, full.full) == ("length", True)
    assert (short.finish_reason, short.full) == ("length", False)


async def test_seconds_lost_are_known_when_a_time_limit_strikes(make_client: MakeClient) -> None:
    state = State()
    async with ModelServer(lambda call: RATE_LIMIT) as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await make_client(server).complete(ASK, "\n", state)
    assert state.lost_sec > 0.3


async def test_the_context_fault_of_the_fake_is_one(make_client: MakeClient) -> None:
    async with ModelServer(lambda call: CONTEXT) as server:
        with pytest.raises(ContextExceededError):
            await make_client(server).complete(ASK, "\n", State())
