"""A scripted OpenAI-compatible model server: answers by rule, faults on demand. For tests; also a program of its own.

    python model_server.py [--port N] [--model NAME] [--key KEY] [--answer TEXT]

prints ``ready http://127.0.0.1:N/v1`` when it listens. As an object it runs on the test's loop::

    async with ModelServer(lambda call: "touch x") as server: ...

An answer is text (stop sequences are honoured as vLLM does, tokens are words), or a ``Fault``.
"""

import argparse
import asyncio
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web


@dataclass(frozen=True)
class Fault:
    """One answer that is none: ``status`` and ``body`` are sent as they are, ``hang`` is silent, ``drop`` closes."""

    status: int = 500
    body: str = '{"error": {"message": "the engine died"}}'
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False


GARBAGE = Fault(status=200, body="<html>not json")
HANG = Fault(hang=True)
DROP = Fault(drop=True)
OVERLOADED = Fault(status=503, body="overloaded")
RATE_LIMIT = Fault(status=429, body="slow down", headers={"Retry-After": "1"})
CONTEXT = Fault(
    status=400,
    body=json.dumps(
        {
            "error": {
                "message": "This model's maximum context length is 2048 tokens. However, you requested 4000 tokens.",
                "type": "BadRequestError",
                "code": 400,
            }
        }
    ),
)


@dataclass(frozen=True)
class Call:
    """One request: its number (from 0), its body, and the texts of its messages."""

    number: int
    body: Mapping[str, Any]

    @property
    def messages(self) -> list[Mapping[str, str]]:
        return list(self.body["messages"])

    @property
    def task(self) -> str:
        """The instruction of the attempt: the first user message after the examples' last ``exit``."""
        messages = self.messages
        done = [n for n, m in enumerate(messages) if m["role"] == "assistant" and m["content"] == "exit"]
        return messages[(done[-1] if done else 0) + 1]["content"]


type Rule = Callable[[Call], str | Fault]


class ModelServer:
    """One server on 127.0.0.1. ``calls`` are the requests so far, faults included."""

    def __init__(
        self, rule: Rule, *, model: str = "policy", key: str = "test-key", port: int = 0, context_len: int = 2048
    ) -> None:
        self.rule = rule
        self.model = model
        self.key = key
        self.port = port
        self.context_len = context_len
        self.calls: list[Call] = []
        self._runner: web.AppRunner | None = None
        self._gone = asyncio.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._gone.clear()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]  # asyncio's Server has them

    async def stop(self) -> None:
        self._gone.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", ""), f"Bearer {self.key}"):
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        call = Call(len(self.calls), await request.json())
        self.calls.append(call)
        if call.body.get("model") != self.model:
            return web.json_response({"error": {"message": f"no model {call.body.get('model')!r}"}}, status=404)
        answer = self.rule(call)
        if isinstance(answer, str):
            return web.json_response(self._answer(call, answer))
        return await self._fail(request, answer)

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.hang:
            await self._gone.wait()
        if fault.drop or fault.hang:
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=fault.status, text=fault.body, headers=dict(fault.headers))

    def _answer(self, call: Call, text: str) -> dict[str, Any]:
        text, reason = _stopped(text, call.body.get("stop") or [])
        words = text.split(" ")
        prompt = sum(len(m["content"].split()) for m in call.messages)
        room = min(int(call.body.get("max_tokens") or self.context_len), max(0, self.context_len - prompt))
        if len(words) > room:
            words, reason = words[:room], "length"
        message = {"role": "assistant", "content": " ".join(words)}
        return {
            "id": f"chatcmpl-{call.number}",
            "object": "chat.completion",
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": len(words),
                "total_tokens": prompt + len(words),
            },
        }


def _stopped(text: str, stops: list[str]) -> tuple[str, str]:
    """``text`` up to the first of ``stops``, which is left out."""
    ends = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(ends)], "stop") if ends else (text, "stop")


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="policy")
    parser.add_argument("--key", default="test-key")
    parser.add_argument("--answer", default="exit")
    options = parser.parse_args()
    async with ModelServer(lambda _: options.answer, model=options.model, key=options.key, port=options.port) as server:
        print(f"ready {server.base_url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
