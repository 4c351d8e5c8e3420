"""A streamed chat completion as the events of an Anthropic stream, chunk by chunk."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from rolloutgen.gateway.anthropic.errors import error_body
from rolloutgen.gateway.anthropic.response import SIGNATURE, ending, is_whole, usage_of

Kind = Literal["thinking", "text", "tool_use"]
_PIECE: Final[Mapping[Kind, tuple[str, str]]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


PING: Final = _event("ping")
"""Keeps a connection alive; clients pass over it, also before the stream's first event."""


@dataclass(slots=True)
class _Block:
    """One content block: its first event's head, all pieces that came, and how many of them have left."""

    kind: Kind
    head: Mapping[str, Any]
    index: int = -1
    said: list[str] = field(default_factory=list)
    sent: int = 0
    closed: bool = False
    _seen: int = -1
    _whole: bool = False

    def done(self) -> bool:
        """Whether nothing more comes for it once another has begun: a call's arguments are over with their object."""
        if self.kind == "tool_use" and self._seen != len(self.said):
            self._seen, self._whole = len(self.said), is_whole("".join(self.said))
        return self._whole or self.kind != "tool_use"


class EventStream:
    """The events of one answer; its methods return bytes to send, and none of them waits.

    Clients read one block after the other. So the first block that is not done is the open one, and what comes for
    others waits: with vLLM's parsers, which finish a call before they begin the next, nothing ever does. Arguments
    leave as the model writes them, JSON or not; what comes for a call after its object was closed is dropped.
    """

    def __init__(self, model: str) -> None:
        """``model`` is the name that the client is told."""
        self._model = model
        self._started = False
        self._begun = 0
        self._blocks: deque[_Block] = deque()
        self._calls: dict[int, _Block] = {}
        self._usage: Mapping[str, Any] | None = None
        self._finish: str | None = None
        self._stop: Any = None

    def chunk(self, chunk: Mapping[str, Any]) -> bytes:
        """The events of one ``chat.completion.chunk``, as parsed; empty where it says nothing new."""
        self._usage = chunk.get("usage") or self._usage
        out = b"" if self._started else self._start(chunk.get("id") or "")
        choices = chunk.get("choices")
        if not choices:
            return out
        choice = choices[0]
        if choice.get("finish_reason") is not None:
            self._finish, self._stop = choice["finish_reason"], choice.get("stop_reason")
        return out + self._delta(choice.get("delta") or {})

    def end(self) -> bytes:
        """The last events, behind the last chunk of an answer that came to its end."""
        out = b"" if self._started else self._start("")
        if not self._begun:
            out += self._add(self._last("text"), "")
        while self._blocks:
            out += self._flow() + self._close()
        calls = ["".join(block.said) for block in self._calls.values()]
        reason, sequence = ending(self._finish, self._stop, calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return out + _event("message_delta", delta=delta, usage=usage_of(self._usage)) + _event("message_stop")

    @staticmethod
    def error(status: int, text: str) -> bytes:
        """The event that ends a stream which has failed; nothing may follow."""
        return _event("error", error=error_body(status, text)["error"])

    def _start(self, answer: str) -> bytes:
        self._started = True
        ends = {"stop_reason": None, "stop_sequence": None, "usage": usage_of(self._usage)}
        message = {"id": answer, "type": "message", "role": "assistant", "model": self._model, "content": []}
        return _event("message_start", message=message | ends)

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        out = b""
        if said := delta.get("reasoning"):
            out += self._add(self._last("thinking"), said)
        if said := delta.get("content"):
            out += self._add(self._last("text"), said)
        for call in delta.get("tool_calls") or ():
            out += self._call(call)
        return out

    def _last(self, kind: Kind) -> _Block:
        """The last block, if it is of this kind; else a new one."""
        if self._blocks and self._blocks[-1].kind == kind:
            return self._blocks[-1]
        return self._new(kind, {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""})

    def _call(self, call: Mapping[str, Any]) -> bytes:
        number, function = call.get("index") or 0, call.get("function") or {}
        block = self._calls.get(number)
        if block is None:
            name = {"id": call.get("id") or f"call_{number}", "name": function.get("name") or ""}
            block = self._calls[number] = self._new("tool_use", name | {"input": {}})
        return b"" if block.closed else self._add(block, function.get("arguments") or "")

    def _new(self, kind: Kind, head: Mapping[str, Any]) -> _Block:
        self._blocks.append(_Block(kind, {"type": kind, **head}))
        return self._blocks[-1]

    def _add(self, block: _Block, said: str) -> bytes:
        """Keep a piece, and let out what may leave now."""
        if said:
            block.said.append(said)
        out = self._flow()
        while len(self._blocks) > 1 and self._blocks[0].done():
            out += self._close() + self._flow()
        return out

    def _flow(self) -> bytes:
        """What the open block has to say; its first event where it is new."""
        block, out = self._blocks[0], b""
        if block.index < 0:
            block.index, self._begun = self._begun, self._begun + 1
            out = _event("content_block_start", index=block.index, content_block=block.head)
        kind, key = _PIECE[block.kind]
        for piece in block.said[block.sent :]:
            out += _event("content_block_delta", index=block.index, delta={"type": kind, key: piece})
        block.sent = len(block.said)
        return out

    def _close(self) -> bytes:
        block = self._blocks.popleft()
        block.closed = True
        out = b""
        if block.kind == "thinking":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            out = _event("content_block_delta", index=block.index, delta=delta)
        return out + _event("content_block_stop", index=block.index)
