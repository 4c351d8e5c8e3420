"""What the model said in one call: gathered from the chunks of a stream or taken from a whole answer, for the record.

On the way, what only the gateway asked for is taken out: what is left is what the scaffold would have got without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from rolloutgen.gateway.pins import Shown
from rolloutgen.transcript.token_ids import TokenIds

type Json = dict[str, Any]
RAW_IDS: Final = "raw prompt ids"
"""Where an answer or a chunk has its many prompt ids as JSON that nobody has read yet."""
_REASONING: Final = ("reasoning", "reasoning_content")


@dataclass(slots=True)
class Answer:
    """One answer, as far as it came. ``chat``: a message, else a plain text; only the first choice counts (n is 1)."""

    chat: bool
    shown: Shown
    id: str | None = None
    role: str = "assistant"
    finish_reason: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    has_begun: bool = False
    _usage: Mapping[str, Any] | None = None
    _prompt_ids: list[int] | bytes | None = None
    _texts: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: dict[int, Json] = field(default_factory=dict)

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """As the server said; where it could not any more, by the ids that came."""
        ids = self.prompt_ids
        if self._usage is not None or ids is None or self.response_ids is None:
            return self._usage
        prompt, completion = ids.n if isinstance(ids, TokenIds) else len(ids), len(self.response_ids)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    @property
    def prompt_ids(self) -> Sequence[int] | TokenIds | None:
        """Many are looked at here and not before, when the first token has left."""
        if isinstance(self._prompt_ids, bytes) and not isinstance(self._prompt_ids, TokenIds):
            self._prompt_ids = TokenIds.read(self._prompt_ids[1:-1])
        return self._prompt_ids

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def tool_calls(self) -> list[Json]:
        return [self._calls[index] for index in sorted(self._calls)]

    @property
    def message(self) -> Json | None:
        """In the form of the API, without what is empty; None where nothing came."""
        if not self.has_begun:
            return None
        if not self.chat:
            return {"text": self.text}
        said: Json = {"role": self.role, "content": self.text or (None if self._calls else "")}
        if self._reasoning:
            said["reasoning"] = "".join(self._reasoning)
        return {**said, **({"tool_calls": self.tool_calls} if self._calls else {})}

    def take_whole(self, answer: Json) -> Json:
        """Take over a whole answer; returns it (the same object) as the scaffold gets it."""
        choice = answer["choices"][0]
        self._take(answer, choice, choice.get("message") or {})
        for index, call in enumerate(_listed(choice.get("message") or {})):
            self._calls[index] = dict(call)
        self._usage = _mapping(answer.get("usage"))
        self.has_begun = True
        return answer

    def take_chunk(self, chunk: Json) -> bool:
        """Take over one chunk, and leave in it what the scaffold gets; returns whether it gets it at all."""
        usage = _mapping(chunk.get("usage"))
        if usage is not None:
            self._usage = usage
        if not chunk["choices"]:
            return self.shown.usage or usage is None
        choice = chunk["choices"][0]
        delta = _mapping(choice.get("delta")) or {}
        self._take(chunk, choice, delta)
        for call in _listed(delta):
            self._merge(call)
        says = bool(
            delta.get("content") or choice.get("text") or choice.get("finish_reason") or delta.get("tool_calls")
        )
        says = says or any(delta.get(name) for name in _REASONING)
        is_head, self.has_begun = "role" in delta and not self.has_begun, self.has_begun or says
        return says or is_head

    def _take(self, answer: Json, choice: Json, said: Mapping[str, Any]) -> None:
        """What a whole answer and a chunk have in common."""
        self.id = answer.get("id") or self.id
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.role = str(said.get("role") or self.role)
        _note(self._texts, said.get("content") if self.chat else choice.get("text"))
        _note(self._reasoning, next((said[name] for name in _REASONING if said.get(name)), None))
        self._take_tokens(answer, choice)

    def _take_tokens(self, answer: Json, choice: Json) -> None:
        raw = answer.pop(RAW_IDS, None)
        for place in (answer, choice):  # chats have them in the one, completions in the other
            if "prompt_token_ids" in place:
                ids = place.pop("prompt_token_ids")
                self._prompt_ids = self._prompt_ids if raw is None and ids is None else raw or ids
                if self.shown.token_ids:
                    place["prompt_token_ids"] = ids if raw is None else orjson.Fragment(raw)
        ids = choice.get("token_ids") if self.shown.token_ids else choice.pop("token_ids", None)
        self.response_ids = _longer(self.response_ids, ids)
        self.logprobs = _longer(self.logprobs, _values(choice.get("logprobs")))
        if not self.shown.logprobs and "logprobs" in choice:
            choice["logprobs"] = None

    def _merge(self, piece: Json) -> None:
        """A piece of a tool call: names come whole, arguments in parts."""
        function = _mapping(piece.get("function")) or {}
        call = self._calls.setdefault(
            piece.get("index") or 0, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""


def _mapping(value: object) -> Json | None:
    return value if isinstance(value, dict) else None


def _listed(said: Mapping[str, Any]) -> list[Json]:
    calls = said.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _note(parts: list[str], said: object) -> None:
    if isinstance(said, str) and (said or not parts):
        parts.append(said)


def _longer[T](known: list[T] | None, more: object) -> list[T] | None:
    if not isinstance(more, list):
        return known
    if known is None:
        return list(more)
    known.extend(more)
    return known


def _values(logprobs: object) -> list[float] | None:
    """The log-probabilities of the sampled tokens: a list of objects in chats, of numbers in completions."""
    if not isinstance(logprobs, dict):
        return None
    if isinstance(content := logprobs.get("content"), list):
        return [token["logprob"] for token in content]
    values = logprobs.get("token_logprobs")
    return values if isinstance(values, list) else None
