"""One call of the scripted model server on its way to an answer: whole or streamed, paced, stopped, broken."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson
from aiohttp import web

from fakes.answers import (
    DEAD,
    DROP,
    ENGINE_DEAD,
    HANG,
    Answer,
    Broken,
    Call,
    Fault,
    Piece,
    context_wordings,
    error_body,
    pieces,
)
from fakes.toy_tokens import encode, prompt_ids
from fakes.vllm_forms import ChatForm, Form, TextForm

FORMS: Final[Mapping[str, type[Form]]] = {"/v1/chat/completions": ChatForm, "/v1/completions": TextForm}
BREAKS: Final[Mapping[str, Fault]] = {"drop": DROP, "hang": HANG, "error": ENGINE_DEAD}


class Server(Protocol):
    """What a call needs of its server. ``gone`` is set when that stops."""

    model: str
    context_len: int
    tokens_per_sec: float
    cached_share: float
    counters: dict[str, int]
    gone: asyncio.Event

    async def fail(self, request: web.Request, fault: Fault) -> web.StreamResponse: ...


class Generation:
    """One call on its way to an answer."""

    def __init__(self, upstream: Server, request: web.Request, call: Call, broken: Broken | None = None) -> None:
        self.upstream = upstream
        self.request = request
        self.call = call
        self.broken = broken
        body = call.body
        self.ids = prompt_ids(body) if "messages" in body else _given_ids(body["prompt"])
        self.form: Form = FORMS[call.path](call.number, upstream.model, body, self.ids)

    async def run(self, answer: Answer | str) -> web.StreamResponse:
        answer = Answer(answer) if isinstance(answer, str) else answer
        limit = self.upstream.context_len
        if len(self.ids) >= limit:
            wording = context_wordings(len(self.ids), limit)[0 if len(self.ids) > limit else 4]
            return refusal(400, error_body(wording, 400, param="input_tokens"))
        self._count("prompt_tokens", len(self.ids))
        self._count("prefix_cache_queries", len(self.ids))
        self._count("prefix_cache_hits", int(len(self.ids) * self.upstream.cached_share))
        await asyncio.sleep(answer.delay_sec)
        parts, reason, stop = self._pieces(answer)
        if self.call.body.get("stream"):
            return await self._stream(answer, parts, reason, stop)
        return await self._whole(answer, parts, reason, stop)

    def _pieces(self, answer: Answer) -> tuple[list[Piece], str, str | None]:
        """The tokens that fit, and why they end."""
        body = self.call.body
        stops = body.get("stop") or []
        parts, stop = pieces(answer, [stops] if isinstance(stops, str) else stops, self.call.number)
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or self.upstream.context_len
        room = min(int(asked), self.upstream.context_len - len(self.ids))
        if len(parts) > room:
            return parts[:room], "length", None
        return parts, "tool_calls" if answer.tool_calls and stop is None else "stop", stop

    async def _whole(self, answer: Answer, parts: list[Piece], reason: str, stop: str | None) -> web.StreamResponse:
        start = asyncio.get_running_loop().time()
        for number in range(len(parts)):
            await self._pace(answer, number, start)
            self._sent()
        if self.broken is not None and self.broken.how == "abort":
            return json_response(self.form.whole(parts[: max(0, self.broken.after)], "abort", None))
        if self.broken is not None:
            return await self.upstream.fail(self.request, BREAKS[self.broken.how])
        return json_response(self.form.whole(parts, reason, stop))

    async def _stream(self, answer: Answer, parts: list[Piece], reason: str, stop: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(self.request)
        breaks = self.broken.after if self.broken else None
        if breaks == -1:
            return await self._break(response)
        if (head := self.form.head()) is not None:
            await response.write(event(head))
        start = asyncio.get_running_loop().time()
        for number, part in enumerate(parts):
            if number == breaks:
                return await self._break(response)
            await self._pace(answer, number, start)
            last = number == len(parts) - 1
            chunk = self.form.chunk(number, part, reason if last else None, stop)
            if chunk is not None:
                await response.write(event(chunk))
            self._sent()
        if self.broken:
            return await self._break(response)
        return await self._end(response)

    async def _end(self, response: web.StreamResponse) -> web.StreamResponse:
        if self.form.wants_usage:
            await response.write(event(self.form.usage_chunk(self.call.sent)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _break(self, response: web.StreamResponse) -> web.StreamResponse:
        assert self.broken is not None
        if self.broken.how == "abort":
            await response.write(event(self.form.chunk(self.call.sent, Piece(0, "", {"content": ""}), "abort", None)))
            return await self._end(response)
        if self.broken.how == "error":
            text = f"data: {error_body(DEAD, 500, 'InternalServerError')}\n\ndata: [DONE]\n\n"
            await response.write(text.encode())
            return response
        if self.broken.how == "hang":
            await self.upstream.gone.wait()
        close(self.request)
        return response

    async def _pace(self, answer: Answer, number: int, start: float) -> None:
        """Until token ``number`` of a stream that began at ``start`` may leave, and its gate is open."""
        if number in answer.gates:
            await answer.gates[number].wait()
        pace = self.upstream.tokens_per_sec if answer.tokens_per_sec is None else answer.tokens_per_sec
        if pace:
            await asyncio.sleep(start + number / pace - asyncio.get_running_loop().time())

    def _sent(self) -> None:
        self.call.sent += 1
        self._count("generation_tokens", 1)

    def _count(self, name: str, amount: int) -> None:
        self.upstream.counters[name] += amount


def loads(data: bytes) -> Any:
    """As vLLM reads JSON: half a surrogate pair may stand in a text, which orjson refuses."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=dumps(value), status=status, content_type="application/json")


def refusal(status: int, body: str) -> web.Response:
    return web.Response(text=body, status=status, content_type="application/json")


def close(request: web.Request) -> None:
    """The connection, after what was written."""
    if request.transport is not None:
        request.transport.close()


def event(value: object) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"


def _given_ids(prompt: str | Sequence[Any]) -> list[int]:
    """Of a plain completion's one prompt, text or ids."""
    if isinstance(prompt, str):
        return list(encode(prompt))
    if prompt and not isinstance(prompt[0], int):
        return _given_ids(prompt[0])
    return list(prompt)
