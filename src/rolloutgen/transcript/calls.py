"""A transcript's calls, each as it was sent and answered, and the conversations that they make up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rolloutgen.transcript.chain import Chain
from rolloutgen.transcript.echo import continued
from rolloutgen.transcript.lines import Message
from rolloutgen.transcript.pieces import Body, unpacked

if TYPE_CHECKING:
    from array import array

UNFINISHED: Final = "unfinished"


@dataclass(slots=True)
class Book:
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
    _book: Book

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


def branches(calls: Iterable[Call]) -> list[Branch]:
    found: dict[int, Branch] = {}
    for call in calls:
        found.setdefault(call.branch, Branch(call.branch, [])).calls.append(call)
    return list(found.values())
