"""A scripted model server that speaks as vLLM 0.32 does: answers by rule, faults on demand, remembers what it saw.

On the test's loop::

    async with Upstream(lambda call: Answer("hello", tool_calls=(("shell", '{"command": "ls"}'),))) as upstream: ...

A rule may be a coroutine, and then takes its time. ``stop`` is a refusal of connections, ``start`` the return, on the
same port or another. As a program of its own, on uvloop::

    PYTHONPATH=tests python -m fakes.upstream [--port N] [--model NAME] [--key KEY] [--answer TEXT | --script FILE]
        [--tokens-per-sec N] [--context-len N] [--requests FILE]

prints ``ready http://127.0.0.1:N/v1`` when it listens. ``{n}`` in TEXT is the call's number. FILE of --script has a
reaction a line, the last one is repeated: ``{"answer": {...}}``, ``{"fault": {...}}``, ``{"broken": {...}}`` with the
fields of those classes. FILE of --requests gets a line a call when it has ended.
"""

import argparse
import asyncio
import hmac
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import orjson
import uvloop
from aiohttp import web

from fakes.answers import Answer, Broken, Call, Fault, Reaction, Rule, error_body
from fakes.generation import FORMS, Generation, close, dumps, json_response, loads, refusal
from fakes.toy_tokens import decode, encode, prompt_ids

COUNTERS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")


class Upstream:
    """One server on 127.0.0.1. ``calls`` are the requests for text so far, faults included, in order of arrival.

    Set at any time: ``rule``; ``healthy`` (/health); ``waiting``, ``kv_usage`` and ``cached_share`` (of each prompt),
    which /metrics tells. ``tokens_per_sec`` is each stream's pace, 0 for none.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        model: str = "policy",
        key: str = "test-key",
        port: int = 0,
        context_len: int = 2048,
        tokens_per_sec: float = 0.0,
        on_end: Callable[[Call], None] | None = None,
    ) -> None:
        self.rule = rule
        self.model = model
        self.key = key
        self.port = port
        self.context_len = context_len
        self.tokens_per_sec = tokens_per_sec
        self.calls: list[Call] = []
        self.healthy = True
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.cached_share = 0.0
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._on_end = on_end
        self._runner: web.AppRunner | None = None
        self.gone = asyncio.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, *, port: int | None = None) -> None:
        """Listen on ``port`` (0: a free one; None: the one before)."""
        self.gone.clear()
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port if port is None else port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse connections, and close those that are open."""
        self.gone.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        for path in FORMS:
            app.router.add_post(path, self._generate)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        gauges: dict[str, float] = {"num_requests_running": self.running, "num_requests_waiting": self.waiting}
        gauges["kv_cache_usage_perc"] = self.kv_usage
        lines = [_metric(name, "gauge", value, self.model) for name, value in gauges.items()]
        lines += [_metric(f"{name}_total", "counter", value, self.model) for name, value in self.counters.items()]
        return web.Response(text="".join(lines))

    async def _models(self, request: web.Request) -> web.Response:
        if not self._knows(request):
            return _unauthorized()
        card = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": self.context_len}
        return json_response({"object": "list", "data": [card]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = loads(await request.read())
        ids = list(encode(body["prompt"])) if "prompt" in body else prompt_ids(body)
        texts = [decode([number]) for number in ids] if body.get("return_token_strs") else None
        return json_response({"count": len(ids), "max_model_len": self.context_len, "tokens": ids, "token_strs": texts})

    async def _detokenize(self, request: web.Request) -> web.Response:
        return json_response({"prompt": decode(loads(await request.read())["tokens"])})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self._knows(request):
            return _unauthorized()
        body = loads(await request.read())
        call = Call(len(self.calls), body, request.path, dict(request.headers))
        self.calls.append(call)
        self.running += 1
        try:
            return await self._react(request, call)
        except (asyncio.CancelledError, ConnectionError):
            call.left = not self.gone.is_set()
            raise
        finally:
            self.running -= 1
            call.ended.set()
            if self._on_end is not None:
                self._on_end(call)

    async def _react(self, request: web.Request, call: Call) -> web.StreamResponse:
        if call.body.get("model") != self.model:
            text = f"The model `{call.body.get('model')}` does not exist."
            return refusal(404, error_body(text, 404, "NotFoundError", "model"))
        found = self.rule(call)
        reaction = await found if inspect.isawaitable(found) else found
        if isinstance(reaction, Fault):
            return await self.fail(request, reaction)
        if isinstance(reaction, Broken):
            return await Generation(self, request, call, reaction).run(reaction.answer)
        return await Generation(self, request, call).run(reaction)

    async def fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.hang:
            await self.gone.wait()
        if fault.drop or fault.hang:
            close(request)
        return web.Response(status=fault.status, text=fault.body, headers=dict(fault.headers))

    def _knows(self, request: web.Request) -> bool:
        return hmac.compare_digest(request.headers.get("Authorization", ""), f"Bearer {self.key}")


def _metric(name: str, kind: str, value: float, model: str) -> str:
    family = f"vllm:{name.removesuffix('_total')}"
    return f'# HELP {family} .\n# TYPE {family} {kind}\nvllm:{name}{{engine="0",model_name="{model}"}} {float(value)}\n'


def _unauthorized() -> web.Response:
    return json_response({"error": "Unauthorized"}, status=401)


def _reaction(line: bytes) -> Reaction:
    """Of a script's line."""
    ((kind, fields),) = orjson.loads(line).items()
    if kind == "fault":
        return Fault(**fields)
    if kind == "broken":
        return Broken(**{**fields, "answer": _answer(fields["answer"])})
    return _answer(fields)


def _answer(fields: str | Mapping[str, Any]) -> Answer:
    if isinstance(fields, str):
        return Answer(fields)
    calls = tuple((name, arguments) for name, arguments in fields.get("tool_calls", ()))
    return Answer(**{**fields, "tool_calls": calls})


def _recorder(path: Path) -> Callable[[Call], None]:
    """Writes a line a call."""

    def record(call: Call) -> None:
        seen = {"number": call.number, "path": call.path, "sent": call.sent, "left": call.left, "body": call.body}
        with path.open("ab") as file:
            file.write(dumps(seen) + b"\n")
        _forget(call)

    return record


def _forget(call: Call) -> None:
    """A program that runs for long keeps no bodies."""
    call.body = {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="policy")
    parser.add_argument("--key", default=os.environ.get("VLLM_API_KEY", "test-key"))
    parser.add_argument("--answer", default="exit")
    parser.add_argument("--script", type=Path)
    parser.add_argument("--requests", type=Path)
    parser.add_argument("--tokens-per-sec", type=float, default=0.0)
    parser.add_argument("--context-len", type=int, default=2048)
    return parser.parse_args()


async def _main(options: argparse.Namespace) -> None:
    lines = options.script.read_bytes().splitlines() if options.script else []
    script = [_reaction(line) for line in lines]

    def rule(call: Call) -> Reaction:
        return script[min(call.number, len(script) - 1)] if script else options.answer.replace("{n}", str(call.number))

    upstream = Upstream(
        rule,
        model=options.model,
        key=options.key,
        port=options.port,
        context_len=options.context_len,
        tokens_per_sec=options.tokens_per_sec,
        on_end=_recorder(options.requests) if options.requests else _forget,
    )
    async with upstream:
        print(f"ready {upstream.base_url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_main(_options()))
