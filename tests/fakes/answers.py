"""What a scripted model server may be told to do with a call: answer, fail, or break in the middle."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from fakes.toy_tokens import CALLED, END, THINK, THOUGHT, TOOL, token_id, words


@dataclass(frozen=True)
class Answer:
    """A message. ``tool_calls`` are names and arguments (JSON, streamed word by word).

    ``delay_sec`` passes before the first byte; ``tokens_per_sec`` is the pace then (None: the server's own). A stream
    stands still before the token whose number is in ``gates`` until the event there is set.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    delay_sec: float = 0.0
    tokens_per_sec: float | None = None
    gates: Mapping[int, asyncio.Event] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """No answer: ``status`` and ``body`` are sent as they are, ``hang`` is silent, ``drop`` closes."""

    status: int = 500
    body: str = '{"error": {"message": "the engine died"}}'
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False


@dataclass(frozen=True)
class Broken:
    """A stream that breaks ``after`` so many tokens; 0: after the head (with the prompt's ids), -1: before it.

    ``drop`` closes the connection, ``hang`` falls silent, ``error`` is what vLLM does when its engine dies: an event
    with an error, then [DONE]. ``abort`` is what it does when its engine is told to end: it finishes the answer there,
    with this reason. Of answers that are no streams that one only; for the others there is a Fault.
    """

    answer: Answer | str
    after: int
    how: Literal["drop", "hang", "error", "abort"] = "drop"


@dataclass
class Call:
    """One request: its number (from 0), and what became of it.

    ``sent`` counts the tokens that left, ``left`` says that the client went away before the end, ``ended`` is set when
    nothing more will come.
    """

    number: int
    body: Mapping[str, Any]
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: int = 0
    left: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        return list(self.body["messages"])

    @property
    def task(self) -> str:
        """The instruction of the attempt: the first user message after the examples' last ``exit``."""
        messages = self.messages
        done = [n for n, m in enumerate(messages) if m["role"] == "assistant" and m["content"] == "exit"]
        return str(messages[(done[-1] if done else 0) + 1]["content"])


type Reaction = str | Answer | Fault | Broken
type Rule = Callable[[Call], Reaction | Awaitable[Reaction]]


@dataclass(frozen=True)
class Piece:
    """One token of an answer: ``text`` is what it adds for a plain completion, ``delta`` for a chat."""

    id: int
    text: str
    delta: Mapping[str, Any] = field(default_factory=dict)


def pieces(answer: Answer, stops: list[str], number: int) -> tuple[list[Piece], str | None]:
    """The tokens up to the end or the first of ``stops`` in the text (which is left out), and that stop sequence."""
    parts = []
    if answer.reasoning:
        parts = [_mark(THINK), *(_word(w, {"reasoning": w}) for w in words(answer.reasoning)), _mark(THOUGHT)]
    at, stop = min(((answer.text.find(s), s) for s in stops if s in answer.text), default=(-1, None))
    if stop is not None:
        return parts + _cut(answer.text, at, at + len(stop)), stop
    parts += [_word(w, {"content": w}) for w in words(answer.text)]
    for index, (name, arguments) in enumerate(answer.tool_calls):
        parts += _tool_call(index, f"chatcmpl-tool-{number:04x}{index:04x}", name, arguments)
    return [*parts, Piece(token_id(END), "", {} if answer.tool_calls else {"content": ""})], None


def _mark(text: str) -> Piece:
    return Piece(token_id(text), text)


def _word(text: str, delta: Mapping[str, Any]) -> Piece:
    return Piece(token_id(text), text, delta)


def _cut(text: str, end: int, read: int) -> list[Piece]:
    """The tokens that it takes to read ``read`` letters of ``text``, of which ``end`` are shown."""
    parts, at = [], 0
    for word in words(text):
        if at >= read:
            break
        shown = word[: max(0, end - at)]
        parts.append(Piece(token_id(word), shown, {"content": shown}))
        at += len(word)
    return parts


def _tool_call(index: int, call_id: str, name: str, arguments: str) -> list[Piece]:
    head = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [_word(w, _call_delta({"index": index, "function": {"arguments": w}})) for w in words(arguments)]
    return [_mark(TOOL), _word(name, _call_delta(head)), *rest, _mark(CALLED)]


def _call_delta(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [call]}


def error_body(message: str, status: int, kind: str = "BadRequestError", param: str | None = None) -> str:
    """An error as vLLM 0.32 words it."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}}).decode()


def context_wordings(length: int, limit: int) -> tuple[str, ...]:
    """What vLLM has said, 0.32 (the first five) and before, of a prompt of ``length`` tokens where ``limit`` fit."""
    known = f"This model's maximum context length is {limit} tokens. However, "
    room = "Make sure that `max_model_len` is no smaller than the number of text tokens"
    shorter = "Please reduce the length of the input prompt."
    letters, most = 9 * length, 8 * limit
    tokens = f"{known}your prompt contains {length} input tokens, which exceeds this limit even without any output"
    text = f"{known}your prompt contains {letters} characters (more than {most} characters, which is the upper bound "
    full = f"The decoder prompt (length {limit}) plus the number of requested output tokens (at least 1) is longer "
    return (
        f"{tokens} tokens. {shorter} (parameter=input_tokens, value={length})",
        f"{text}for {limit} input tokens). {shorter} (parameter=input_text, value={letters})",
        f"Input length ({length}) exceeds model's maximum context length ({limit}).",
        f"The decoder prompt (length {length}) is longer than the maximum model length of {limit}. {room}.",
        f"{full}than the maximum model length of {limit}. {room} (prompt + requested output tokens).",
        f"{known}you requested {length} tokens.",
    )


DEAD: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
CONTEXT_ERRORS: Final = tuple(Fault(status=400, body=error_body(text, 400)) for text in context_wordings(4000, 2048))
CONTEXT: Final = CONTEXT_ERRORS[-1]
ENGINE_DEAD: Final = Fault(status=500, body=error_body(DEAD, 500, "InternalServerError"))
GARBAGE: Final = Fault(status=200, body="<html>not json")
HANG: Final = Fault(hang=True)
DROP: Final = Fault(drop=True)
OVERLOADED: Final = Fault(status=503, body="overloaded")
RATE_LIMIT: Final = Fault(status=429, body="slow down", headers={"Retry-After": "1"})
TOOLS_AS_TEXT: Final = Answer(text=f'{TOOL}\n{{"name": "shell", "arguments": {{"command": "ls"}}}}\n{CALLED}')
