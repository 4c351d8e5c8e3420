"""A streamed answer: event by event what the whole answer would have been."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutgen.gateway.anthropic import PING, EventStream, from_chat

from .reading import Client, Event, events

Chunk = dict[str, Any]
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None}


def chunk(finish: str | None = None, stop: Any = None, **delta: Any) -> Chunk:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "stop_reason": stop}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}


LAST: Chunk = {"id": "chatcmpl-1", "choices": [], "usage": USAGE}


def called(number: int, arguments: str = "", *, first: bool = False) -> Chunk:
    """A piece of a call, as vLLM sends it: id and name stand in its first one."""
    head = {"id": f"call_{number}", "type": "function"} if first else {}
    function = {"arguments": arguments} | ({"name": "Bash"} if first else {})
    return {"tool_calls": [{"index": number, "function": function, **head}]}


def streamed(chunks: list[Chunk]) -> bytes:
    stream = EventStream("m")
    return b"".join(map(stream.chunk, chunks)) + stream.end()


def test_a_stream_of_vllm_event_by_event() -> None:
    """The first chunk names a role, the last one nothing but the usage."""
    stream = EventStream("claude")
    start = stream.chunk(chunk(role="assistant", content=""))
    assert [event["type"] for event in events(start)] == ["message_start"]
    said = [
        *({"reasoning": "h"}, {"reasoning": "m"}, {"content": "Hi"}),
        *(called(0, first=True), called(0, '{"a'), called(0, '":1}'), called(1, "{}", first=True)),
    ]
    body = [list(events(out)) for delta in said if (out := stream.chunk(chunk(**delta)))]
    assert [[event["type"].removeprefix("content_block_") for event in one] for one in body] == [
        ["start", "delta"],
        ["delta"],
        ["delta", "stop", "start", "delta"],
        ["stop", "start"],
        ["delta"],
        ["delta"],
        ["stop", "start", "delta"],
    ]
    assert body[2][0]["delta"] == {"type": "signature_delta", "signature": "unsigned"}
    assert body[3][1] == {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "call_0", "name": "Bash", "input": {}},
    }
    assert body[4][0]["delta"] == {"type": "input_json_delta", "partial_json": '{"a'}
    assert stream.chunk(chunk("tool_calls", content="")) == b""
    assert stream.chunk(LAST) == b""
    assert list(events(stream.end())) == [
        {"type": "content_block_stop", "index": 3},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {
                "input_tokens": 9,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 4,
            },
        },
        {"type": "message_stop"},
    ]


def test_an_empty_answer_has_a_first_block() -> None:
    assert Client().read(streamed([chunk("stop", role="assistant"), LAST]))["content"] == [{"type": "text", "text": ""}]
    assert Client().read(streamed([]))["stop_reason"] == "max_tokens"


def test_calls_that_come_mixed_are_told_one_after_the_other() -> None:
    chunks = [
        *(called(0, '{"a": ', first=True), called(1, '{"b": ', first=True), called(1, "2"), called(0, "1}")),
        *(called(1, "}"), {"content": "so"}),
    ]
    message = Client().read(streamed([chunk(**one) for one in chunks]))
    assert [block.get("input", block.get("text")) for block in message["content"]] == ['{"a": 1}', '{"b": 2}', "so"]


def test_broken_arguments_leave_as_they_are() -> None:
    """C7: and nothing behind them is lost."""
    chunks = [called(0, "{oops", first=True), called(1, "{}", first=True), {"content": "so"}]
    message = Client().read(streamed([chunk(**one) for one in chunks]))
    assert [block.get("input", block.get("text")) for block in message["content"]] == ["{oops", "{}", "so"]


def test_a_ping_may_stand_anywhere() -> None:
    assert [*events(PING)] == [{"type": "ping"}]
    assert Client().read(PING + streamed([chunk("stop", content="x")]))["stop_reason"] == "end_turn"


def test_an_error_ends_a_stream() -> None:
    error = {"type": "overloaded_error", "message": "The model server is gone."}
    assert [*events(EventStream.error(503, "The model server is gone."))] == [{"type": "error", "error": error}]


CALLS = st.dictionaries(st.text(max_size=3), st.text(max_size=20), max_size=3).map(json.dumps)
ANSWERS = st.fixed_dictionaries({"reasoning": st.text(), "content": st.text(), "calls": st.lists(CALLS, max_size=3)})


def pieces(draw: st.DrawFn, whole: str) -> Iterator[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(whole)), max_size=6)) | {0, len(whole)})
    yield from (whole[start:end] for start, end in pairwise(cuts))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Event, list[Chunk]]:
    """A whole answer, and the same one in pieces: thoughts, text and parallel calls in any order and any mixture."""
    answer = draw(ANSWERS)
    tracks = [[{kind: piece} for piece in pieces(draw, answer[kind])] for kind in ("reasoning", "content")]
    for number, arguments in enumerate(answer["calls"]):
        head, *tail = ["", *pieces(draw, arguments)]
        tracks.append([called(number, head, first=True), *(called(number, piece) for piece in tail)])
    order = draw(st.permutations([n for n, track in enumerate(tracks) for _ in track]))
    ways = [iter(track) for track in tracks]
    finish, stop = draw(st.sampled_from([("stop", None), ("tool_calls", None), ("length", None), ("stop", "END")]))
    chunks = [*(chunk(**next(ways[n])) for n in order), chunk(finish, stop), LAST]
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "Bash", "arguments": arguments}}
        for n, arguments in enumerate(answer["calls"])
    ]
    message = {"reasoning": answer["reasoning"], "content": answer["content"], "tool_calls": calls}
    choice = {"message": message, "finish_reason": finish, "stop_reason": stop}
    return {"id": "chatcmpl-1", "choices": [choice], "usage": USAGE}, chunks


def summed(message: Event) -> Event:
    """What a message says, whatever the order of its blocks."""
    content = message["content"]
    calls = {block["id"]: block for block in content if block["type"] == "tool_use"}
    texts = {kind: "".join(block[kind] for block in content if block["type"] == kind) for kind in ("thinking", "text")}
    return {**message, "content": [texts, calls]}


@settings(deadline=None, max_examples=300)
@given(conversations())
def test_the_pieces_are_the_whole(made: tuple[Event, list[Chunk]]) -> None:
    answer, chunks = made
    message = Client().read(streamed(chunks))
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
    assert summed(message) == summed(from_chat(answer, "m"))


@settings(deadline=None)
@given(conversations())
def test_an_answer_in_its_usual_order_gives_the_same_blocks(made: tuple[Event, list[Chunk]]) -> None:
    """Thoughts, then text, then one call after the other, as vLLM's parsers give them."""

    def rank(one: Chunk) -> tuple[int, int]:
        delta = one["choices"][0]["delta"] if one["choices"] else {}
        calls = delta.get("tool_calls")
        return (
            (0, 0) if "reasoning" in delta else (1, 0) if "content" in delta else (2, calls[0]["index"] if calls else 9)
        )

    answer, chunks = made
    message = Client().read(streamed(sorted(chunks, key=rank)))
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
    assert message == from_chat(answer, "m")
