"""Transcripts are read: every call as it was sent and answered, or the conversation alone."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rolloutgen.transcript.calls import UNFINISHED, Book, Branch, Call, branches
from rolloutgen.transcript.echo import completion_of
from rolloutgen.transcript.lines import Message, read
from rolloutgen.transcript.pieces import packed, unpacked
from rolloutgen.transcript.tips import WIDTH

__all__ = ["UNFINISHED", "Branch", "Call", "branches", "read_calls", "read_messages"]

_PLAIN: Final = (
    *("status", "usage", "id", "error", "tries", "server_seed"),
    *("queued_sec", "held_sec", "served_sec", "first_token_sec"),
)
"""Fields of a reply's line that are read as they are."""


def read_calls(path: Path) -> list[Call]:
    """The calls of a transcript in the order in which they were sent; none where no model was asked.

    Raises OSError; ValueError where the file is damaged.
    """
    found = _Reading()
    for line in read(path):
        try:
            found.take(line)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path} is damaged: {error!r} in a line of type {line.get('type')!r}") from error
    return found.calls


def read_messages(path: Path) -> list[Message]:
    """The conversation of one attempt: the agent's, as the model saw it last; without a model, what was said."""
    own = [call for call in read_calls(path) if not call.side]
    if own:
        return own[-1].conversation()
    return [message for line in read(path) for message in line.get("messages", ()) if isinstance(message, dict)]


class _Reading:
    """Takes line after line."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._book = Book()

    def take(self, line: Mapping[str, Any]) -> None:
        if line["type"] == "request":
            self._request(line)
        elif line["type"] == "reply" and "call" in line:
            self._reply(line)

    def _request(self, line: Mapping[str, Any]) -> None:
        book, number, left, tools = self._book, line["call"], line.get("left"), line.get("tools")
        if number != len(self.calls):
            raise ValueError(f"call {number} after {len(self.calls)} calls")
        if isinstance(tools, list):
            book.tools.append(tools)
            tools = len(book.tools) - 1
        if "messages" in line:
            of, messages = _ranges(line["messages"])
            book.numbers.add(number, of, [self._packed(part) for part in messages])
        if "prompt" in line:
            of, prompt = _ranges(line["prompt"])
            book.prompts.add(number, of, [part if isinstance(part, tuple) else str(part) for part in prompt])
        call = Call(
            number=number,
            at=line["at"],
            branch=line["branch"],
            left=(left["call"], left["shared"]) if left else None,
            side=line["side"],
            surface=line["surface"],
            asked=line["asked"],
            _rest=line["sent"],
            _tools=tools,
            _book=book,
        )
        self.calls.append(call)

    def _packed(self, part: Any) -> bytes | tuple[int, int]:
        return _wide(part) if isinstance(part, tuple) else packed([self._number(part)])

    def _number(self, part: int | Message) -> int:
        if isinstance(part, int):
            if not 0 <= part < len(self._book.messages):
                raise ValueError(f"message {part} is not there")
            return part
        if not isinstance(part, dict):
            raise TypeError(f"{part!r:.80} is no message")
        self._book.messages.append(part)
        return len(self._book.messages) - 1

    def _reply(self, line: Mapping[str, Any]) -> None:
        book, call = self._book, self.calls[line["call"]]
        message, response, prompt = line["message"], line["response_ids"], line["prompt_ids"]
        if message is not None:
            number = self._number(message)
            call.message = book.messages[number]
            if call.number in book.numbers:
                book.numbers.follow(call.number, packed([number]))
            if call.number in book.prompts:
                book.prompts.follow(call.number, completion_of(call.message))
        if prompt is not None:
            book.ids.add(call.number, *_ids(prompt))
            book.ids.follow(call.number, packed(response or ()))
        call.response_ids = response if response is None else unpacked(packed(response))
        call.end, call.finish_reason = line["end"], line["finish_reason"]
        call.logprobs, call.prefix_break = line["logprobs"], line["prefix_break"]
        call.reply = {name: line[name] for name in _PLAIN if name in line}


def _ranges(written: Sequence[Any]) -> tuple[int | None, list[Any]]:
    """A list with its ``[call, from, to]`` as (from, to), and the call, which is the same throughout."""
    calls = {part[0] for part in written if isinstance(part, list)}
    if len(calls) > 1:
        raise ValueError(f"parts of calls {sorted(calls)} in one list")
    parts = [(part[1], part[2]) if isinstance(part, list) else part for part in written]
    return (calls.pop() if calls else None), parts


def _wide(part: tuple[int, int]) -> tuple[int, int]:
    return part[0] * WIDTH, part[1] * WIDTH


def _ids(written: Sequence[Any]) -> tuple[int | None, list[bytes | tuple[int, int]]]:
    of, parts = _ranges(written)
    found: list[bytes | tuple[int, int]] = []
    for _, group in groupby(parts, lambda part: isinstance(part, tuple)):
        ids = list(group)
        found += map(_wide, ids) if isinstance(ids[0], tuple) else [packed(ids)]
    return of, found
