"""Calls that go well: what the scaffold gets, what the server saw, what the transcript keeps."""

import asyncio
from typing import Any

import pytest

from fakes.answers import Answer
from fakes.toy_tokens import prompt_ids
from fakes.upstream import Upstream as FakeServer

from .conftest import HELLO, SAMPLING, Gates, until

TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
OURS = ("prompt_token_ids", "token_ids")


def fields_of(value: Any) -> set[str]:
    """Every name of a field in it, at any depth."""
    if isinstance(value, list):
        return {name for item in value for name in fields_of(item)}
    return set(value) | fields_of(list(value.values())) if isinstance(value, dict) else set()


async def test_a_whole_answer(gate: Gates) -> None:
    """A13, A6: pinned on the way up; on the way down nothing that only the gateway asked for."""
    async with FakeServer(lambda _: Answer("I am here", reasoning="who is it")) as fake, gate(fake, logprobs=True) as g:
        attempt = g.attempt()
        said = await attempt.chat(temperature=1.9, seed=1, n=3, max_tokens=30, reasoning_effort="high")
        (call,) = await attempt.calls()
    message = said.body["choices"][0]["message"]
    assert (said.status, message["content"], message["reasoning"]) == (200, "I am here", "who is it")
    assert not fields_of(said.body) & set(OURS)
    assert said.body["choices"][0]["logprobs"] is None
    assert {name: fake.calls[0].body[name] for name in SAMPLING} == SAMPLING
    assert {"seed", "reasoning_effort"} & set(fake.calls[0].body) == set()
    assert call.sent() == fake.calls[0].body
    assert call.asked == {
        "model": "any",
        "temperature": 1.9,
        "seed": 1,
        "n": 3,
        "max_tokens": 30,
        "reasoning_effort": "high",
    }
    assert (call.end, call.message) == (
        "answered",
        {"role": "assistant", "content": "I am here", "reasoning": "who is it"},
    )
    assert list(call.prompt_ids() or ()) == prompt_ids(fake.calls[0].body)
    assert len(call.response_ids or ()) == len(call.logprobs or ()) == fake.calls[0].sent
    assert call.reply["usage"] == said.body["usage"]
    assert call.reply["tries"][0]["status"] == 200
    assert call.reply["server_seed"] == 7


async def test_a_stream_says_the_same(gate: Gates) -> None:
    """Also the record is the same; the last chunk with the usage is not the scaffold's, who did not ask for it."""
    answer = Answer("I am here", reasoning="who is it", tool_calls=(("shell", '{"command": "ls"}'),))
    async with FakeServer(lambda _: answer) as fake, gate(fake, logprobs=True) as g:
        whole, stream = g.attempt(), g.attempt()
        await whole.chat(tools=TOOLS)
        said = await stream.chat(tools=TOOLS, stream=True)
        (expected,), (call,) = await whole.calls(), await stream.calls()
    assert said.done
    assert said.text == "I am here"
    assert not fields_of(said.events) & {*OURS, "usage"}
    assert all(event["choices"][0]["logprobs"] is None for event in said.events)
    assert said.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert call.sent() == fake.calls[1].body
    for part in ("end", "finish_reason", "response_ids", "logprobs"):
        assert getattr(call, part) == getattr(expected, part)
    first, second = (dict(each.message or {}) for each in (expected, call))
    assert [c["function"] for c in first.pop("tool_calls")] == [c["function"] for c in second.pop("tool_calls")]
    assert first == second
    assert call.prompt_ids() == expected.prompt_ids()
    assert call.reply["usage"] == expected.reply["usage"]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_asks_for_ids_and_logprobs_gets_them(gate: Gates, stream: bool) -> None:
    async with FakeServer(lambda _: "I am here") as fake, gate(fake) as g:
        attempt = g.attempt()
        fields = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
        usage = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        said = await attempt.chat(**fields, **usage)
        (call,) = await attempt.calls()
    answers = said.events if stream else [said.body]
    choices = [choice for answer in answers for choice in answer["choices"]]
    assert answers[0]["prompt_token_ids"] == list(call.prompt_ids() or ())
    assert [token for choice in choices for token in choice.get("token_ids") or ()] == list(call.response_ids or ())
    assert sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"]) == fake.calls[0].sent
    assert answers[-1]["usage"] == call.reply["usage"]
    assert call.logprobs is None  # RECORD_LOGPROBS=0


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(gate: Gates, stream: bool) -> None:
    async with FakeServer(lambda _: "I am here") as fake, gate(fake, logprobs=True) as g:
        attempt = g.attempt()
        said = await attempt.ask({"prompt": "once", "stop": [" here"], "stream": stream}, "/v1/completions")
        (call,) = await attempt.calls()
    text = said.text if stream else said.body["choices"][0]["text"]
    assert text == "I am"
    assert not fields_of(said.events if stream else said.body) & set(OURS)
    assert (call.surface, call.message, call.prompt()) == ("completions", {"text": "I am"}, "once")
    assert call.sent() == fake.calls[0].body
    assert len(call.response_ids or ()) == len(call.logprobs or ()) > 0
    assert call.prompt_ids()


async def test_a_conversation_is_kept_whole(gate: Gates) -> None:
    """A6: whatever was sent can be put together again, equal as JSON; also odd letters, which become U+FFFD."""
    async with FakeServer(lambda call: f"answer {call.number}") as fake, gate(fake) as g:
        attempt, messages = g.attempt(), [*HELLO, {"role": "user", "content": "é € 😀 \0"}]
        for _ in range(3):
            said = await attempt.chat(messages)
            messages += [said.body["choices"][0]["message"], {"role": "user", "content": "go on"}]
        await attempt.ask(b'{"messages": [{"role": "user", "content": "half \\ud800 a pair"}], "top_p": 1e400}')
        await attempt.ask(b'{"messages": [{"role": "user", "content": "half \\ud800 a pair"}]}')
        calls = await attempt.calls()
    assert [call.sent() for call in calls] == [call.body for call in fake.calls]
    assert calls[-1].messages() == [{"role": "user", "content": "half \ufffd a pair"}]
    assert [call.branch for call in calls][:3] == [0, 0, 0]


async def test_calls_without_tools_are_side_calls_where_the_agent_has_some(gate: Gates) -> None:
    """Titles and condensers: neither turns nor alarms."""
    async with FakeServer(lambda _: Answer(tool_calls=(("shell", "{}"),))) as fake, gate(fake) as g:
        attempt = g.attempt(uses_tools=True)
        await attempt.chat()
        await attempt.chat(tools=TOOLS)
        report = attempt.report()
        calls = await attempt.calls()
    assert (report.turns, report.side_calls, report.tool_calls, report.tools_offered) == (1, 1, 1, True)
    assert [call.side for call in calls] == [True, False]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_as_text_are_noticed(gate: Gates, stream: bool) -> None:
    """C7: the server's parser is not that of the model."""
    async with FakeServer(lambda _: '<tool_call>\n{"name": "shell"}\n</tool_call>') as fake, gate(fake) as g:
        attempt = g.attempt(uses_tools=True)
        await attempt.chat(tools=TOOLS, stream=stream)
        await attempt.chat(stream=stream)
        report = attempt.report()
    assert (report.markup, report.tool_calls, report.tools_offered) == (1, 0, True)


async def test_max_turns_ends_the_agents_calls_and_no_others(gate: Gates) -> None:
    """MAX_TURNS, for scaffolds without a limit of their own."""
    async with FakeServer(lambda _: "done") as fake, gate(fake) as g:
        attempt = g.attempt(uses_tools=True, max_turns=2)
        said = [await attempt.chat(tools=TOOLS) for _ in range(3)]
        side = await attempt.chat()
        report = attempt.report()
    assert [answer.status for answer in said] == [200, 200, 400]
    assert "2 turns (MAX_TURNS)" in said[2].body["error"]["message"]
    assert side.status == 200
    assert (report.turns, report.max_turns, len(fake.calls)) == (2, True, 3)


async def test_places_at_the_server_are_shared(gate: Gates) -> None:
    """GATEWAY_MAX_INFLIGHT: what waits for others is queued, and reported as that."""
    opened = asyncio.Event()

    async def rule(_: Any) -> str:
        await opened.wait()
        return "done"

    async with FakeServer(rule) as fake, gate(fake, places=2) as g:
        busy, other = g.attempt(), g.attempt()
        tasks = [asyncio.create_task(busy.chat()) for _ in range(4)]
        await until(lambda: g.shared.places.waiting == 2)
        tasks.append(asyncio.create_task(other.chat()))
        await until(lambda: g.shared.places.waiting == 3)
        assert len(fake.calls) == fake.running == 2
        opened.set()
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 5
        (call,) = await other.calls()
        report = await other.close()
    assert call.reply["queued_sec"] > 0
    assert report.queued_sec > 0


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_long_prompts_have_their_ids_too(gate: Gates, path: str, stream: bool, shown: bool) -> None:
    """They take another way, so that the first token need not wait for them. A text that looks like them is none."""
    text = 'mind "prompt_token_ids":[1,2] or \\"prompt_token_ids\\":[3] ' + "word " * 6000
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "prompt": text, "stream": stream}
    async with FakeServer(lambda _: Answer(text), context_len=100_000) as fake, gate(fake, max_tokens=9) as g:
        attempt = g.attempt()
        said = await attempt.ask({**body, "return_token_ids": shown}, path)
        (call,) = await attempt.calls()
    answers = said.events if stream else [said.body]
    assert len(call.prompt_ids() or ()) > 6000
    if path == "/v1/chat/completions":
        assert list(call.prompt_ids() or ()) == prompt_ids(fake.calls[0].body)
    places = [*answers, *(choice for answer in answers for choice in answer["choices"])]
    given = [place["prompt_token_ids"] for place in places if place.get("prompt_token_ids") is not None]
    assert given == ([list(call.prompt_ids() or ())] if shown else [])
    assert fields_of(answers) & {"raw prompt ids"} == set()
    assert 'mind "prompt_token_ids":[1,2] or' in str(call.message)
