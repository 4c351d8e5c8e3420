"""Anthropic's messages: the same pins, the same record, another shape."""

from typing import Any

import pytest

from fakes.answers import CONTEXT_ERRORS, ENGINE_DEAD, Answer, Broken
from fakes.upstream import Upstream as FakeServer

from .conftest import HELLO, SAMPLING, Gates, Said

TOOLS = [{"name": "shell", "description": "runs", "input_schema": {"type": "object"}}]
ASKED = {"model": "claude-x", "max_tokens": 32000, "temperature": 1, "metadata": {"user_id": "u"}}
ANSWER = Answer("I look", reasoning="hm", tool_calls=(("shell", '{"command": "ls"}'),))
PATH = "/v1/messages"


def body(**more: Any) -> dict[str, Any]:
    return {**ASKED, "system": "be brief", "messages": HELLO, "tools": TOOLS, **more}


def kinds(said: Said) -> list[str]:
    """Types of the events, runs of the same one as one."""
    types = [event["type"] for event in said.events]
    return [kind for n, kind in enumerate(types) if n == 0 or types[n - 1] != kind]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_message(gate: Gates, stream: bool) -> None:
    """A13: what goes up is a pinned chat; the record is that of a chat, with what the scaffold said itself."""
    async with FakeServer(lambda _: ANSWER) as fake, gate(fake) as g:
        attempt = g.attempt(uses_tools=True)
        said = await attempt.ask(body(stream=stream), f"{PATH}?beta=true")
        report = attempt.report()
        (call,) = await attempt.calls()
    sent = fake.calls[0].body
    assert {name: sent[name] for name in SAMPLING} == SAMPLING
    assert (sent["max_tokens"], sent["model"]) == (64, "policy")
    assert sent["messages"] == [{"role": "system", "content": "be brief"}, *HELLO]
    assert call.sent() == sent
    assert call.surface == "messages"
    assert call.asked == {**ASKED, "stream": stream}
    assert (call.message or {})["tool_calls"][0]["function"] == {"name": "shell", "arguments": '{"command": "ls"}'}
    assert (report.turns, report.tool_calls) == (1, 1)
    assert call.prompt_ids()
    if stream:
        blocks = ["content_block_start", "content_block_delta", "content_block_stop"]
        assert kinds(said) == ["message_start", *blocks, *blocks, *blocks, "message_delta", "message_stop"]
        assert said.events[0]["message"]["model"] == "claude-x"
        assert said.events[-2]["usage"]["output_tokens"] == call.reply["usage"]["completion_tokens"]
    else:
        assert [block["type"] for block in said.body["content"]] == ["thinking", "text", "tool_use"]
        assert (said.body["stop_reason"], said.body["model"]) == ("tool_use", "claude-x")


async def test_errors_have_its_shape(gate: Gates) -> None:
    """C8: a full context in the words that Claude Code looks for."""
    async with FakeServer(lambda _: CONTEXT_ERRORS[0]) as fake, gate(fake) as g:
        attempt = g.attempt()
        full = await attempt.ask(body(), PATH)
        wrong = await attempt.ask({**ASKED, "messages": 5}, PATH)
        stranger = await attempt.ask(body(), PATH, Authorization="Bearer x")
        assert attempt.report().context_exceeded
    assert (full.status, wrong.status, stranger.status) == (400, 400, 401)
    assert all(said.body["type"] == "error" for said in (full, wrong, stranger))
    assert full.body["error"]["message"].startswith("prompt is too long")
    assert wrong.body["error"]["type"] == "invalid_request_error"
    assert stranger.body["error"]["type"] == "authentication_error"


async def test_streams_that_are_held_or_break(gate: Gates) -> None:
    broken = Broken(Answer("these words are cut off", tokens_per_sec=20), 2, "drop")
    async with FakeServer(lambda call: (ENGINE_DEAD, broken)[call.number]) as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.ask(body(stream=True), PATH)
        (call,) = await attempt.calls()
    assert said.broken
    assert (said.events[-1]["type"], said.events[-1]["error"]["type"]) == ("error", "overloaded_error")
    assert (call.end, call.message) == ("failed", {"role": "assistant", "content": "these words"})


async def test_count_tokens(gate: Gates) -> None:
    async with FakeServer(lambda _: "x") as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.ask({"model": "claude-x", "messages": HELLO}, f"{PATH}/count_tokens?beta=true")
        assert said.body["input_tokens"] > 1
        assert attempt.report().calls == 0
