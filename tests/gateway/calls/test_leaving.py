"""Calls that nobody waits for any more: their client left, or their key died."""

import asyncio
import json
from typing import Any

import pytest

from fakes.answers import ENGINE_DEAD, Answer, Broken
from fakes.upstream import Upstream as FakeServer

from .conftest import HELLO, Attempt, Gate, Gates, until


def never() -> dict[int, asyncio.Event]:
    """The third token does not come."""
    return {2: asyncio.Event()}


async def leave(task: asyncio.Task[Any]) -> None:
    """As a client does that is killed: its connection goes."""
    task.cancel()
    await asyncio.wait([task])


async def reading(gate: Gate, attempt: Attempt, got: asyncio.Event) -> bytes:
    """A client that reads a stream, and says when the second token is there."""
    said = b""
    body, headers = {"messages": HELLO, "stream": True}, {"Authorization": f"Bearer {attempt.key}"}
    async with gate.client.post(f"{gate.root}/v1/chat/completions", json=body, headers=headers) as answer:
        async for piece in answer.content.iter_any():
            said += piece
            if b"two" in said:
                got.set()
    return said


async def test_a_client_that_leaves_in_the_middle_of_a_stream(gate: Gates) -> None:
    """A6: its call upstream is taken back, and what had come stands in the transcript."""
    answer = Answer("one two three", gates=never())
    async with FakeServer(lambda _: answer) as fake, gate(fake) as g:
        attempt, got = g.attempt(), asyncio.Event()
        task = asyncio.create_task(reading(g, attempt, got))
        await got.wait()
        await leave(task)
        await fake.calls[0].ended.wait()
        await until(lambda: attempt.report().aborted)
        report = attempt.report()
        (call,) = await attempt.calls()
    assert fake.calls[0].left
    assert (call.end, call.message) == ("aborted", {"role": "assistant", "content": "one two"})
    assert (len(call.response_ids or ()), call.finish_reason) == (2, None)
    assert call.prompt_ids()
    assert (report.aborted, report.failure, report.turns) == (1, "", 0)
    assert g.shared.places.taken == 0


async def test_a_client_that_leaves_with_the_finish_reason_has_its_answer(gate: Gates) -> None:
    """Some do not wait for the stream's end; the tokens are counted from their ids then."""
    broken = Broken("one two", 99, "hang")
    async with FakeServer(lambda _: broken) as fake, gate(fake) as g:
        attempt = g.attempt()
        body, headers = {"messages": HELLO, "stream": True}, {"Authorization": f"Bearer {attempt.key}"}
        async with g.client.post(f"{g.root}/v1/chat/completions", json=body, headers=headers) as answer:
            async for line in answer.content:
                if b'"finish_reason":"stop"' in line:
                    break
        await until(lambda: attempt.report().turns)
        report = attempt.report()
        (call,) = await attempt.calls()
    assert (call.end, call.finish_reason, (call.message or {})["content"]) == ("answered", "stop", "one two")
    assert report.completion_tokens == len(call.response_ids or ()) == 3
    assert report.prompt_tokens == len(call.prompt_ids() or ())
    assert (report.aborted, report.failure) == (0, "")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_any_answer(gate: Gates, stream: bool) -> None:
    """The reply that comes too late goes nowhere."""
    opened = asyncio.Event()

    async def rule(_: Any) -> str:
        await opened.wait()
        return "too late"

    async with FakeServer(rule) as fake, gate(fake) as g:
        attempt = g.attempt()
        task = asyncio.create_task(attempt.chat(stream=stream))
        await until(lambda: fake.calls)
        await leave(task)
        await fake.calls[0].ended.wait()
        opened.set()
        assert fake.calls[0].left
        await until(lambda: attempt.report().aborted)
        (call,) = await attempt.calls()
    assert (call.end, call.reply["status"], call.message) == ("aborted", None, None)


async def test_a_client_that_leaves_the_queue(gate: Gates) -> None:
    """It never reached the server, and takes no place from others; what it asked is kept."""
    async with FakeServer(lambda _: Answer("one two three", gates=never())) as fake, gate(fake, places=1) as g:
        first, second, got = g.attempt(), g.attempt(), asyncio.Event()
        running = asyncio.create_task(reading(g, first, got))
        await got.wait()
        waiting = asyncio.create_task(second.chat())
        await until(lambda: g.shared.places.waiting)
        await leave(waiting)
        await until(lambda: not g.shared.places.waiting)
        (call,) = await second.calls()
        await leave(running)
    assert (call.end, call.messages(), call.reply["tries"]) == ("aborted", HELLO, [])
    assert len(fake.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_a_call_that_was_held(gate: Gates, stream: bool) -> None:
    """For our reasons: it may have lost its patience with our outage."""
    async with FakeServer(lambda _: ENGINE_DEAD) as fake, gate(fake) as g:
        attempt = g.attempt()
        task = asyncio.create_task(attempt.chat(stream=stream))
        await until(lambda: len(fake.calls) > 1)
        await leave(task)
        await until(lambda: attempt.report().aborted)
        report = attempt.report()
        (call,) = await attempt.calls()
    assert call.end == "aborted"
    assert "HTTP 500" in report.failure


async def test_a_key_that_dies_takes_its_calls_with_it(gate: Gates) -> None:
    """A6: the transcript is whole up to the last token that left, and closed; the client's connection breaks."""
    async with FakeServer(lambda _: Answer("one two three", gates=never())) as fake, gate(fake) as g:
        attempt, other, got, got_other = g.attempt(), g.attempt(), asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(reading(g, attempt, got))
        going_on = asyncio.create_task(reading(g, other, got_other))
        await got.wait()
        await got_other.wait()
        (call,) = await attempt.calls()
        await asyncio.wait([task])
        await until(lambda: sum(each.left for each in fake.calls) == 1)
        assert not going_on.done()
        await leave(going_on)
        assert (await attempt.chat()).status == 401
    assert task.exception() is not None
    assert (call.end, call.message) == ("aborted", {"role": "assistant", "content": "one two"})
    assert b'"type":"end"' in attempt.path.read_bytes().splitlines()[-1]


async def test_a_key_that_dies_while_its_call_is_held(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        await g.server.update("restarting")
        attempt = g.attempt()
        task = asyncio.create_task(attempt.chat())
        await until(lambda: attempt.report().held_sec)
        report = await attempt.close()
        await asyncio.wait([task])
        await g.moved(fake)
        (call,) = await attempt.calls()
    assert (call.end, fake.calls) == ("aborted", [])
    assert report.server_down


async def test_a_client_that_does_not_read_keeps_no_place(gate: Gates) -> None:
    """One attempt must not take the server from the others."""
    long = Answer(f"{'x' * 20_000} " * 2000)
    async with FakeServer(lambda _: long) as fake, gate(fake, places=1, stall_sec=0.3, max_tokens=2000) as g:
        attempt, other = g.attempt(), g.attempt()
        host, port = g.root.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps({"messages": HELLO, "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {attempt.key}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await until(lambda: attempt.report().aborted)
        assert g.shared.places.taken == 0
        fake.rule = lambda _: "hello"
        assert (await other.chat()).status == 200
        (call,) = await attempt.calls()
        writer.close()
    assert (call.end, call.reply["status"]) == ("aborted", 200)
