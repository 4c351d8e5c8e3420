"""The bodies that vLLM 0.32 answers with, for chat and for plain completions: which field stands where."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from fakes.answers import Piece


class Form:
    """One call's answer, whole or in chunks. ``body`` is the request, ``ids`` are those of its prompt."""

    name = ""
    stream_name = ""

    def __init__(self, number: int, model: str, body: Mapping[str, Any], ids: Sequence[int]) -> None:
        self.id = f"{self.name}-{number}"
        self.model = model
        self.ids = ids
        self.wants_ids = bool(body.get("return_token_ids"))
        self.logprobs = body.get("logprobs")
        self.top = int(body.get("top_logprobs") or 0)
        options = body.get("stream_options") or {}
        self.wants_usage = bool(options.get("include_usage"))

    def whole(self, parts: Sequence[Piece], reason: str, stop: str | None) -> dict[str, Any]:
        raise NotImplementedError

    def head(self) -> dict[str, Any] | None:
        """The chunk before the first token's, where there is one."""
        raise NotImplementedError

    def chunk(self, number: int, part: Piece, reason: str | None, stop: str | None) -> dict[str, Any] | None:
        """Of token ``number``; None where vLLM sends nothing for it."""
        raise NotImplementedError

    def usage(self, completion: int) -> dict[str, Any]:
        prompt = len(self.ids)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def usage_chunk(self, completion: int) -> dict[str, Any]:
        return self._outer(self.stream_name, [], usage=self.usage(completion))

    def _outer(self, name: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name,
            "created": 1_700_000_000,
            "model": self.model,
            "choices": choices,
            **more,
        }

    def _ids(self, ids: Sequence[int]) -> Sequence[int] | None:
        return ids if self.wants_ids else None


class ChatForm(Form):
    name = "chatcmpl"
    stream_name = "chat.completion.chunk"

    def whole(self, parts: Sequence[Piece], reason: str, stop: str | None) -> dict[str, Any]:
        choice = {"index": 0, "message": _message(parts), "logprobs": self._logprobs(parts), "finish_reason": reason}
        choice |= {"stop_reason": stop, "token_ids": self._ids([part.id for part in parts])}
        rest = {"usage": self.usage(len(parts)), "prompt_logprobs": None, "prompt_token_ids": self._ids(self.ids)}
        return self._outer("chat.completion", [choice], **rest)

    def head(self) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._outer(self.stream_name, [choice], prompt_token_ids=self._ids(self.ids))

    def chunk(self, number: int, part: Piece, reason: str | None, stop: str | None) -> dict[str, Any] | None:
        if not (part.delta or reason or self.wants_ids or self.logprobs):
            return None
        choice: dict[str, Any] = {"index": 0, "delta": part.delta, "logprobs": self._logprobs([part])}
        choice |= {"finish_reason": reason, "token_ids": self._ids([part.id])}
        return self._outer(self.stream_name, [choice | ({"stop_reason": stop} if reason else {})])

    def _logprobs(self, parts: Sequence[Piece]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        entries = [{"token": p.text, "logprob": logprob(p), "bytes": list(p.text.encode())} for p in parts]
        return {"content": [entry | {"top_logprobs": [entry] * self.top} for entry in entries]}


class TextForm(Form):
    name = "cmpl"
    stream_name = "text_completion"

    def whole(self, parts: Sequence[Piece], reason: str, stop: str | None) -> dict[str, Any]:
        return self._outer(self.stream_name, [self._choice(parts, reason, stop)], usage=self.usage(len(parts)))

    def head(self) -> None:
        return None

    def chunk(self, number: int, part: Piece, reason: str | None, stop: str | None) -> dict[str, Any]:
        choice = self._choice([part], reason, stop)
        return self._outer(self.stream_name, [choice if number == 0 else choice | {"prompt_token_ids": None}])

    def _choice(self, parts: Sequence[Piece], reason: str | None, stop: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": "".join(p.text for p in parts), "logprobs": self._logprobs(parts)}
        choice |= {"finish_reason": reason, "stop_reason": stop, "prompt_token_ids": self._ids(self.ids)}
        return choice | {"token_ids": self._ids([part.id for part in parts])}

    def _logprobs(self, parts: Sequence[Piece]) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        tops = [{part.text: logprob(part)} for part in parts]
        starts = list(accumulate((len(p.text) for p in parts[:-1]), initial=0))
        texts, values = [p.text for p in parts], [logprob(p) for p in parts]
        return {"text_offset": starts, "token_logprobs": values, "tokens": texts, "top_logprobs": tops}


def logprob(part: Piece) -> float:
    """Of the sampled token: the same in every process, never above 0."""
    return -(part.id % 1000) / 1000


def _message(parts: Sequence[Piece]) -> dict[str, Any]:
    """The deltas of a chat put together."""
    content = "".join(p.delta.get("content", "") for p in parts)
    reasoning = "".join(p.delta.get("reasoning", "") for p in parts)
    calls: list[dict[str, Any]] = []
    for delta in (call for part in parts for call in part.delta.get("tool_calls", ())):
        if "id" in delta:
            calls.append({k: delta[k] for k in ("id", "type")} | {"function": dict(delta["function"])})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls or reasoning else "")}
    message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None}
    return message | ({"tool_calls": calls} if calls else {}) | {"reasoning": reasoning or None}
