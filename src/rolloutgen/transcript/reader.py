"""What a transcript says: every call as it was sent and answered, and the conversations that they make up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rolloutgen.transcript.chain import Chain
from rolloutgen.transcript.echo import completion_of, continued
from rolloutgen.transcript.lines import Message, read
from rolloutgen.transcript.pieces import Body, packed, unpacked
from rolloutgen.transcript.tips import WIDTH

if TYPE_CHECKING:
    from array import array

UNFINISHED: Final = "unfinished"
_PLAIN: Final = (
    *("status", "usage", "id", "error", "tries", "server_seed"),
    *("queued_sec", "held_sec", "served_sec", "first_token_sec"),
)
"""Fields of a reply's line that are read as they are."""


@dataclass(slots=True)
class _Book:
    """What the calls of one transcript have in common."""

    messages: list[Message] = field(default_factory=list)
    tools: list[list[Any]] = field(default_factory=list)
    numbers: Chain[bytes] = field(default_factory=lambda: Chain(b""))
    prompts: Chain[str] = field(default_factory=lambda: Chain(""))
    ids: Chain[bytes] = field(default_factory=lambda: Chain(b""))


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call. ``left``: the call that a new branch left, and how many messages (characters) it shares with it.

    ``end`` is that of ``Reply``, or ``unfinished``: a kill cut it off, and nothing is known of the reply. ``reply``:
    the other plain fields of its line. ``prefix_break``: the prompt's token ids do not extend prompt and response of
    the answered call before it in its branch (None: ids were not recorded). ``n_prompt_ids``: how many there are.
    """

    number: int
    at: str
    branch: int
    left: tuple[int, int] | None
    side: bool
    surface: str
    asked: Mapping[str, Any]
    end: str = UNFINISHED
    message: Message | None = None
    finish_reason: str | None = None
    response_ids: "array[int] | None" = None
    logprobs: Sequence[float] | None = None
    prefix_break: bool | None = None
    reply: Mapping[str, Any] = field(default_factory=dict)
    _rest: Mapping[str, Any]
    _tools: int | None
    _book: _Book

    @property
    def answered(self) -> bool:
        return self.end == "answered"

    @property
    def tools(self) -> list[Any] | None:
        return None if self._tools is None else self._book.tools[self._tools]

    def messages(self) -> list[Message] | None:
        """What was sent (None: it is no chat)."""
        if self.number not in self._book.numbers:
            return None
        return [self._book.messages[number] for number in unpacked(self._book.numbers.get(self.number))]

    def prompt(self) -> str | None:
        """What was sent, where that is one text."""
        return self._book.prompts.get(self.number) if self.number in self._book.prompts else None

    def sent(self) -> dict[str, Any]:
        """The whole body that went to vLLM."""
        parts = {"messages": self.messages(), "prompt": self.prompt(), "tools": self.tools}
        return {**self._rest, **{name: part for name, part in parts.items() if part is not None}}

    @property
    def continues(self) -> bool:
        """Whether the model was asked to continue the last message."""
        return self._beginning is not None

    @property
    def stops(self) -> Sequence[str]:
        """Sequences at one of which the model may have stopped; the server leaves it out of the message."""
        return Body((), None, None, self._rest).stops if self.finish_reason == "stop" else ()

    def said(self) -> Message | None:
        """The model's whole message, with its beginning where it was to continue one (None: no message came)."""
        beginning = self._beginning
        return self.message if beginning is None or self.message is None else continued(beginning, self.message)

    def conversation(self) -> list[Message]:
        """The messages that were sent, and what the model said to them; none where it is no chat."""
        messages, said = self.messages(), self.said()
        if messages is None or said is None:
            return messages or []
        return [*(messages[:-1] if self.continues else messages), said]

    @property
    def _beginning(self) -> Message | None:
        if self._rest.get("continue_final_message") is not True:
            return None
        return Body(self.messages() or (), None, None, self._rest).beginning

    def prompt_ids(self) -> "array[int] | None":
        return unpacked(self._book.ids.get(self.number)) if self.number in self._book.ids else None


@dataclass(slots=True)
class Branch:
    """A conversation that grew, call by call."""

    number: int
    calls: list[Call]

    @property
    def side(self) -> bool:
        return self.calls[0].side

    @property
    def leaf(self) -> Call:
        return self.calls[-1]


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


def branches(calls: Iterable[Call]) -> list[Branch]:
    found: dict[int, Branch] = {}
    for call in calls:
        found.setdefault(call.branch, Branch(call.branch, [])).calls.append(call)
    return list(found.values())


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
        self._book = _Book()

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
