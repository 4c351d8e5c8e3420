"""What of a call is new: messages once each, prompts and token ids from where an earlier call's end."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self

from rolloutgen.transcript.lines import Encoded, Message, encode, encode_plainly
from rolloutgen.transcript.prefix import common_parts, common_prefix
from rolloutgen.transcript.tips import WIDTH, Ids, Tip
from rolloutgen.transcript.token_ids import TokenIds

_ARRAY: Final = "I"
"""Four bytes each, never negative."""


def packed(numbers: Sequence[int]) -> bytes:
    return array(_ARRAY, numbers).tobytes()


def unpacked(data: bytes) -> "array[int]":
    return array(_ARRAY, data)


class Known:
    """Things that stand in the transcript already, numbered 0, 1, ... in the order in which they came."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def note(self, thing: object) -> tuple[int, Encoded | None]:
        """Its number; and its JSON where it is new, which then must be written."""
        data = encode_plainly(thing)
        digest = sha256(data).digest()
        number = self._numbers.get(digest)
        if number is not None:
            return number, None
        self._numbers[digest] = len(self._numbers)
        return len(self._numbers) - 1, Encoded(data)


@dataclass(frozen=True, slots=True)
class Body:
    """A request, taken apart. ``prompt``: of completions, where it is one text; ``rest``: all other parameters."""

    messages: Sequence[Message]
    prompt: str | None
    tools: list[Any] | None
    rest: Mapping[str, Any]

    @classmethod
    def of(cls, sent: Mapping[str, Any]) -> Self:
        rest = dict(sent)
        messages = rest.pop("messages") if isinstance(rest.get("messages"), list) else []
        tools = rest.pop("tools") if isinstance(rest.get("tools"), list) else None
        is_text = "messages" not in sent and isinstance(rest.get("prompt"), str)
        return cls(messages, rest.pop("prompt") if is_text else None, tools, rest)

    @property
    def beginning(self) -> Message | None:
        """The last message, where the model was asked to continue it."""
        if not (self.messages and self.rest.get("continue_final_message") is True):
            return None
        return self.messages[-1] if self.messages[-1].get("role") == "assistant" else None

    @property
    def stops(self) -> Sequence[str]:
        """Where the model was to stop: servers leave the sequence out of what they return."""
        stop = self.rest.get("stop")
        stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
        return [each for each in stops if isinstance(each, str)]


def message_parts(base: Tip | None, sent: bytes, news: Sequence[Encoded | None]) -> Encoded:
    """The messages with the numbers in ``sent``, as they stand in a line.

    New ones whole, ``[call, from, to]`` for those of an earlier call (its reply's message follows on what it sent), a
    number for any other.
    """
    whole = base.whole if base else b""
    earlier = unpacked(whole) if isinstance(whole, bytes) else array(_ARRAY)
    written = [_written(base, earlier, part) for part in _parts(earlier, unpacked(sent), news)]
    odd = any(part.startswith(b" ") for part in written)
    return Encoded(b"%b[%b]" % (b" " if odd else b"", b",".join(written)))


type _Part = Encoded | int | tuple[int, int]


def _parts(earlier: "array[int]", numbers: "array[int]", news: Sequence[Encoded | None]) -> list[_Part]:
    shared = common_prefix(earlier.tobytes(), numbers.tobytes()) // WIDTH
    parts: list[_Part] = [(0, shared)] if shared else []
    places = {number: place for place, number in enumerate(earlier)} if None in news[shared:] else {}
    for number, new in zip(numbers[shared:], news[shared:], strict=True):
        last = parts[-1] if parts else None
        if new is not None:
            parts.append(new)
        elif isinstance(last, tuple) and last[1] < len(earlier) and earlier[last[1]] == number:
            parts[-1] = (last[0], last[1] + 1)
        else:
            place = places.get(number)
            parts.append(number if place is None else (place, place + 1))
    return parts


def _written(base: Tip | None, earlier: "array[int]", part: _Part) -> Encoded:
    if isinstance(part, Encoded):
        return part
    if isinstance(part, int):
        return encode(part)
    assert base is not None
    begin, end = part
    return encode([base.call, begin, end] if end > begin + 1 else earlier[begin])


def text_parts(base: Tip | None, prompt: str) -> list[object]:
    """A prompt as texts that are new, and ``[call, from, to]`` for characters of an earlier call's prompt and reply."""
    whole = base.whole if base else ""
    parts = common_parts(whole if isinstance(whole, str) else "", prompt)
    return [part if isinstance(part, str) or base is None else [base.call, *part] for part in parts]


def ids_parts(base: Ids | None, ids: TokenIds) -> Encoded:
    """The same of token ids: numbers that are new, and ranges of an earlier call's prompt and response."""
    if base is None or not base.ids:
        return ids.json()
    if ids.startswith(base.ids):
        tail = ids[len(base.ids) : -1]
        return Encoded(b"[[%d,0,%d]%b%b]" % (base.call, base.ids.n, b"," if tail else b"", tail))
    written: list[object] = []
    for part in common_parts(packed(base.ids.numbers()), packed(ids.numbers()), WIDTH):
        if isinstance(part, bytes):
            written += unpacked(part)
        else:
            written.append([base.call, part[0] // WIDTH, part[1] // WIDTH])
    return encode(written)
