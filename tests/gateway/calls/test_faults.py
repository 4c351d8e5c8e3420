"""A model server with every fault: calls wait for it, and what failed is told apart from what was refused."""

import asyncio
import resource
from collections.abc import Callable
from typing import Any

import pytest

from fakes.answers import (
    CONTEXT_ERRORS,
    DROP,
    ENGINE_DEAD,
    GARBAGE,
    HANG,
    OVERLOADED,
    RATE_LIMIT,
    Answer,
    Broken,
    Call,
    Fault,
    Reaction,
)
from fakes.upstream import Upstream as FakeServer
from rolloutgen.gateway.hold import POISON_TRIES

from .conftest import CONTEXT_LEN, HELLO, Gates, until


def first(*faults: Reaction, then: Reaction = "well again") -> Callable[[Call], Reaction]:
    """These reactions one after the other, and from then on the last."""
    return lambda call: faults[call.number] if call.number < len(faults) else then


HEALING = {
    "dropped": DROP,
    "engine dead": ENGINE_DEAD,
    "overloaded": OVERLOADED,
    "rate limit": RATE_LIMIT,
    "garbage": GARBAGE,
    "no object": Fault(status=200, body="[1, 2]"),
    "no choices": Fault(status=200, body='{"choices": []}'),
    "empty": Fault(status=200, body=""),
    "html": Fault(status=502, body="<html>Bad Gateway</html>"),
    "another key": Fault(status=401, body='{"error": "Unauthorized"}'),
    "another model": Fault(status=404, body='{"error": {"message": "The model `policy` does not exist."}}'),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", HEALING)
async def test_a_call_is_sent_again_until_it_is_answered(gate: Gates, fault: str, stream: bool) -> None:
    async with FakeServer(first(HEALING[fault], HEALING[fault])) as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=stream)
        (call,) = await attempt.calls()
        report = attempt.report()
    assert said.status == 200
    assert (said.text if stream else said.body["choices"][0]["message"]["content"]) == "well again"
    assert len(fake.calls) == 3
    assert fake.calls[0].body == fake.calls[1].body == fake.calls[2].body == call.sent()
    failed, again, well = call.reply["tries"]
    assert failed["error"]
    assert again["error"]
    assert well["status"] == 200
    assert (call.end, report.retried, report.failure, report.turns) == ("answered", True, "", 1)
    assert report.held_sec >= call.reply["held_sec"] > 0


@pytest.mark.parametrize("how", ["drop", "error", "hang", "abort"])
@pytest.mark.parametrize("after", [-1, 0])
async def test_a_stream_that_breaks_before_its_first_token_is_sent_again(gate: Gates, how: Any, after: int) -> None:
    """The scaffold sees one stream: nothing of the broken one has left."""
    async with FakeServer(first(Broken("lost words", after, how))) as fake, gate(fake, timeout_sec=0.5) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=True)
        (call,) = await attempt.calls()
    assert (said.text, said.done) == ("well again", True)
    assert {event["id"] for event in said.events} == {"chatcmpl-1"}
    assert (call.end, call.reply["id"], len(call.reply["tries"])) == ("answered", "chatcmpl-1", 2)


async def test_an_answer_that_the_server_broke_off_is_sent_again(gate: Gates) -> None:
    """vLLM's engine, told to end, finishes what runs with 200 and the reason ``abort``: half an answer is none."""
    async with FakeServer(first(Broken("these words are cut off", 2, "abort"))) as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.chat()
        report = attempt.report()
        (call,) = await attempt.calls()
    assert said.body["choices"][0]["message"]["content"] == "well again"
    assert "finish_reason abort" in call.reply["tries"][0]["error"]
    assert (call.finish_reason, report.retried, report.turns) == ("stop", True, 1)


@pytest.mark.parametrize("how", ["drop", "error", "hang", "abort"])
async def test_nothing_is_sent_again_once_a_token_has_left(gate: Gates, how: Any) -> None:
    """The scaffold is told, and the connection breaks: nobody takes half an answer for a whole one."""
    broken = Broken(Answer("these words are cut off", tokens_per_sec=20), 2, how)
    async with FakeServer(first(broken)) as fake, gate(fake, timeout_sec=0.5) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=True)
        report = attempt.report()
        (call,) = await attempt.calls()
    assert (said.text, said.done, said.broken) == ("these words", False, True)
    assert said.events[-1]["error"]["code"] == 503
    assert len(fake.calls) == 1
    assert call.end == "failed"
    assert call.message == {"role": "assistant", "content": "these words"}
    assert len(call.response_ids or ()) == 2
    assert "broke off" in report.failure
    assert (report.server_down, report.turns) == (False, 0)


@pytest.mark.parametrize("how", ["drop", "error", "hang"])
async def test_a_stream_that_breaks_behind_its_last_token_is_whole(gate: Gates, how: Any) -> None:
    broken = Broken(Answer("these words", tokens_per_sec=20), 99, how)
    async with FakeServer(lambda _: broken) as fake, gate(fake, timeout_sec=0.5) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=True)
        report = attempt.report()
    assert (said.text, said.done, said.broken) == ("these words", True, False)
    assert (report.turns, report.failure, report.completion_tokens) == (1, "", 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hung_server_is_given_up_after_the_calls_time(gate: Gates, stream: bool) -> None:
    """MODEL_CALL_TIMEOUT_SEC; the try is taken back, and the call sent again."""
    async with FakeServer(first(HANG)) as fake, gate(fake, timeout_sec=0.5) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=stream)
        (call,) = await attempt.calls()
        await fake.calls[0].ended.wait()
    assert said.status == 200
    assert "nothing came for 0.5 s" in call.reply["tries"][0]["error"]
    assert fake.calls[0].left


async def test_retry_after_is_honoured(gate: Gates) -> None:
    """RATE_LIMIT asks for a second; our own first wait is a hundredth of that."""
    async with FakeServer(first(RATE_LIMIT)) as fake, gate(fake) as g:
        attempt = g.attempt()
        await attempt.chat()
        (call,) = await attempt.calls()
    assert call.reply["held_sec"] >= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_does_not_come_back_in_time_has_failed(gate: Gates, stream: bool) -> None:
    """GATEWAY_HOLD_SEC; the scaffold is told to ask later, and nothing of the server's inside."""
    async with FakeServer(lambda _: ENGINE_DEAD) as fake, gate(fake, hold_sec=0.2) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=stream)
        report = attempt.report()
        (call,) = await attempt.calls()
    assert (said.status, said.headers["Retry-After"]) == (503, "30")
    assert said.body["error"]["message"] == "the model server failed, and did not come back in time"
    assert (call.end, call.reply["status"], call.message) == ("failed", 503, None)
    assert "HTTP 500" in report.failure
    assert "GATEWAY_HOLD_SEC=0.2" in report.failure
    assert (report.server_down, report.turns, report.retried) == (False, 0, False)
    assert len(fake.calls) > 1


async def test_an_agent_that_asks_again_and_goes_on_keeps_its_verdict(gate: Gates) -> None:
    async with FakeServer(first(ENGINE_DEAD)) as fake, gate(fake, hold_sec=0) as g:
        attempt = g.attempt()
        assert (await attempt.chat()).status == 503
        assert attempt.report().failure
        assert (await attempt.chat()).status == 200
        report = attempt.report()
    assert (report.failure, report.retried, report.turns) == ("", True, 1)


async def test_a_refused_connection_hits_all_alike(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake, hold_sec=0.1) as g:
        await fake.stop()
        attempt = g.attempt()
        assert (await attempt.chat()).status == 503
        report = attempt.report()
    assert "cannot connect" in report.failure
    assert report.server_down


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_wait_for_a_restart_on_another_port(gate: Gates, stream: bool) -> None:
    async with FakeServer(lambda call: f"hello {call.number}") as fake, gate(fake) as g:
        attempts = [g.attempt() for _ in range(3)]
        await fake.stop()
        await g.server.update("restarting")
        tasks = [asyncio.create_task(attempt.chat(stream=stream)) for attempt in attempts]
        await until(lambda: all(attempt.report().held_sec for attempt in attempts))
        assert fake.calls == []
        await fake.start(port=0)
        await g.moved(fake)
        assert [said.status for said in await asyncio.gather(*tasks)] == [200] * 3
        calls = [(await attempt.calls())[0] for attempt in attempts]
    assert {call.reply["server_seed"] for call in calls} == {8}
    assert all(call.reply["held_sec"] > 0 and len(call.reply["tries"]) == 1 for call in calls)


async def test_calls_that_were_running_when_the_server_died_are_sent_again(gate: Gates) -> None:
    """A restart of the model server costs no trial."""
    opened = asyncio.Event()

    async def rule(call: Call) -> str:
        await opened.wait()
        return f"hello {call.number}"

    async with FakeServer(rule) as fake, gate(fake) as g:
        attempts = [g.attempt() for _ in range(4)]
        tasks = [asyncio.create_task(attempt.chat(stream=bool(n % 2))) for n, attempt in enumerate(attempts)]
        await until(lambda: fake.running == 4)
        await fake.stop()
        opened.set()
        await fake.start(port=0)
        await g.moved(fake)
        assert [said.status for said in await asyncio.gather(*tasks)] == [200] * 4
        reports = [await attempt.close() for attempt in attempts]
    assert all(report.retried and report.held_sec > 0 and not report.failure for report in reports)


async def test_a_server_that_is_gone_for_good_ends_all_waits(gate: Gates) -> None:
    async with FakeServer(lambda _: ENGINE_DEAD) as fake, gate(fake, hold_sec=600) as g:
        waiting, trying = g.attempt(), g.attempt()
        tasks = [asyncio.create_task(trying.chat())]
        await until(lambda: fake.calls)
        await g.server.update("restarting")
        tasks.append(asyncio.create_task(waiting.chat(stream=True)))
        await until(lambda: waiting.report().held_sec)
        await g.server.update("failed", message="it died four times in an hour")
        assert [said.status for said in await asyncio.gather(*tasks)] == [503, 503]
        reports = [waiting.report(), trying.report()]
    assert all("four times in an hour" in report.failure and report.server_down for report in reports)


async def test_streams_are_kept_alive_while_they_are_held(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake, keep_alive_sec=0.02) as g:
        await g.server.update("restarting")
        attempt = g.attempt()
        request = g.client.post(
            f"{g.root}/v1/chat/completions",
            json={"messages": HELLO, "stream": True},
            headers={"Authorization": f"Bearer {attempt.key}"},
        )
        async with request as answer:
            assert answer.status == 200  # the head is there while the call is held
            assert await answer.content.readline() == b": hold\n"
            await g.moved(fake)
            rest = await answer.content.read()
        (call,) = await attempt.calls()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert b"hello" in rest
    assert (call.end, call.reply["status"]) == ("answered", 200)


@pytest.mark.parametrize("fault", [ENGINE_DEAD, CONTEXT_ERRORS[0]])
async def test_a_stream_that_was_kept_alive_fails_by_an_event(gate: Gates, fault: Fault) -> None:
    async with FakeServer(lambda _: fault) as fake, gate(fake, hold_sec=0.3, keep_alive_sec=0.02) as g:
        await g.server.update("restarting")
        attempt = g.attempt()
        task = asyncio.create_task(attempt.chat(stream=True))
        await until(lambda: attempt.report().held_sec > 0.1)
        await g.moved(fake)
        said = await task
        (call,) = await attempt.calls()
    assert (said.status, said.broken, said.done) == (200, True, False)
    assert said.comments > 0
    (event,) = said.events
    assert event["error"]["code"] == (503 if fault is ENGINE_DEAD else "context_length_exceeded")
    assert (call.end, call.reply["status"]) == ("failed" if fault is ENGINE_DEAD else "refused", 200)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", CONTEXT_ERRORS)
async def test_a_full_context_is_the_requests_own_fault(gate: Gates, fault: Fault, stream: bool) -> None:
    """C8: in all its wordings; at once, and as the 400 with OpenAI's own code that scaffolds look for."""
    async with FakeServer(lambda _: fault) as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=stream)
        report = attempt.report()
        (call,) = await attempt.calls()
    assert (said.status, said.body["error"]["code"]) == (400, "context_length_exceeded")
    assert (report.context_exceeded, report.failure, report.turns) == (True, "", 0)
    assert (call.end, call.reply["status"], len(fake.calls)) == ("refused", 400, 1)
    assert call.reply["error"] == said.body["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_fills_the_context_exceeds_it(gate: Gates, stream: bool) -> None:
    """C8: finish_reason length with prompt and completion at VLLM_MAX_MODEL_LEN; shorter, it is just long."""
    long = Answer("word " * CONTEXT_LEN)
    async with FakeServer(lambda _: long, context_len=CONTEXT_LEN) as fake:
        async with gate(fake, max_tokens=50) as g:
            attempt = g.attempt()
            await attempt.chat(stream=stream)
            assert not attempt.report().context_exceeded
        async with gate(fake, max_tokens=CONTEXT_LEN) as g:
            attempt = g.attempt()
            await attempt.chat(stream=stream)
            assert attempt.report().context_exceeded


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_server_refuses_is_passed_on(gate: Gates, stream: bool) -> None:
    body = '{"error": {"message": "unknown role", "type": "BadRequestError", "param": null, "code": 422}}'
    async with FakeServer(lambda _: Fault(status=422, body=body)) as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.chat(stream=stream)
        report = attempt.report()
        (call,) = await attempt.calls()
    assert (said.status, said.body["error"]["message"]) == (422, "unknown role")
    assert (report.context_exceeded, report.failure, report.retried) == (False, "", False)
    assert (call.end, call.reply["error"], len(fake.calls)) == ("refused", "unknown role", 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disk_that_refuses_is_no_fault_of_the_servers(gate: Gates, stream: bool) -> None:
    """A6: what cannot be written down is not answered; and nothing is sent again for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            said = await attempt.chat([{"role": "user", "content": "x" * 200_000}], stream=stream)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        report = attempt.report()
    assert said.status == 500
    assert "transcript cannot be written" in report.failure
    assert (report.server_down, len(fake.calls) <= 1) == (True, True)


async def test_a_request_that_fails_alone_is_not_held_for_ever(gate: Gates) -> None:
    """The server answers everybody else: that is no outage, and half an hour of a slot would be spent on it."""

    def poisoned(call: Call) -> Reaction:
        return ENGINE_DEAD if call.body["messages"][-1]["content"] == "poison" else "fine"

    async with FakeServer(poisoned) as fake, gate(fake, hold_sec=300) as g:
        attempt, other = g.attempt(), g.attempt()
        sick = asyncio.create_task(attempt.chat([{"role": "user", "content": "poison"}]))
        while not sick.done():
            assert (await other.chat()).status == 200
        report, (call,) = attempt.report(), await attempt.calls()
    assert (await sick).status == 503
    assert "while the server answers others" in report.failure
    assert (report.server_down, call.end, len(call.reply["tries"])) == (False, "failed", POISON_TRIES + 1)
