"""The gateway's HTTP side on real sockets, between a client and the scripted model server."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fakes.upstream import Upstream as FakeServer
from rolloutgen.gateway.attempts import Attempts
from rolloutgen.gateway.exchange import Shared
from rolloutgen.gateway.fair import Places
from rolloutgen.gateway.pins import Pins
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.report import Report
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.upstream import Upstream
from rolloutgen.gateway.web import make_app, make_runner
from rolloutgen.transcript import reader

CONTEXT_LEN = 2048
SAMPLING = {
    "temperature": 0.7,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@dataclass
class Said:
    """What a client got: ``events`` of a stream (JSON, [DONE] left out), or one ``body``."""

    status: int
    headers: dict[str, str]
    body: Any = None
    events: list[Any] = field(default_factory=list)
    comments: int = 0
    done: bool = False
    broken: bool = False

    @property
    def text(self) -> str:
        choices = [choice for event in self.events for choice in event.get("choices", [])]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@dataclass
class Attempt:
    """One attempt's key, and its client."""

    gate: "Gate"
    id: str
    key: str
    path: Path

    async def ask(
        self, body: dict[str, Any] | bytes | io.BytesIO, path: str = "/v1/chat/completions", **headers: str
    ) -> Said:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        said = {"Authorization": f"Bearer {self.key}", **headers}
        async with self.gate.client.post(self.gate.root + path, data=data, headers=said) as answer:
            return await _read(answer)

    async def chat(self, messages: list[dict[str, Any]] = HELLO, **fields: Any) -> Said:
        return await self.ask({"model": "any", "messages": messages, **fields})

    async def close(self) -> Report:
        report = await self.gate.attempts.close(self.id, {"ending": "done"})
        assert report is not None
        return report

    def report(self) -> Report:
        report = self.gate.attempts.report(self.id)
        assert report is not None
        return report

    async def calls(self) -> list[reader.Call]:
        """What the transcript holds, after the key's death."""
        await self.close()
        return reader.read_calls(self.path)


async def _read(answer: aiohttp.ClientResponse) -> Said:
    said = Said(answer.status, dict(answer.headers))
    if answer.content_type != "text/event-stream":
        said.body = await answer.json()
        return said
    try:
        async for line in answer.content:
            said.comments += line.startswith(b":")
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                said.done = payload == b"[DONE]"
                said.events += [] if said.done else [json.loads(payload)]
    except aiohttp.ClientError:
        said.broken = True
    return said


@dataclass
class Gate:
    """A gateway at work. ``server`` is what it knows of the model server."""

    root: str
    attempts: Attempts
    server: ServerState
    shared: Shared
    client: aiohttp.ClientSession
    folder: Path

    def attempt(self, *, uses_tools: bool = False, max_turns: int | None = None) -> Attempt:
        path = self.folder / f"transcript_{len(list(self.folder.iterdir()))}.jsonl"
        attempt_id, key = self.attempts.register(
            path, label="instance/trial_0", start={}, uses_tools=uses_tools, max_turns=max_turns
        )
        return Attempt(self, attempt_id, key, path)

    async def moved(self, fake: FakeServer) -> None:
        """The model server is ready, wherever it is now."""
        await self.server.update("ready", base_url=fake.base_url, seed=8)


type Gates = Callable[..., Any]


@pytest.fixture
def gate(tmp_path: Path) -> Gates:
    """``async with gate(fake, ...) as g``: pins and limits may be given by name."""

    @asynccontextmanager
    async def start(
        fake: FakeServer, *, hold_sec: float = 30.0, timeout_sec: float = 20.0, places: int = 8, **more: Any
    ) -> AsyncIterator[Gate]:
        server = ServerState()
        await server.update("ready", base_url=fake.base_url, seed=7)
        options = {name: more.pop(name) for name in ("keep_alive_sec", "stall_sec", "system_first") if name in more}
        pins = Pins(**{"model": "policy", "max_tokens": 64, "sampling": SAMPLING, **more})
        upstream = Upstream(server, fake.key, timeout_sec)
        shared = Shared(
            pins=pins,
            server=server,
            upstream=upstream,
            places=Places(places),
            hold_sec=hold_sec,
            first_wait_sec=0.01,
            **options,
        )
        attempts = Attempts(Pulse(), context_len=CONTEXT_LEN, token_ids=pins.token_ids, logprobs=pins.logprobs)
        runner = make_runner(make_app(shared, attempts, max_model_len=CONTEXT_LEN))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as client:
            try:
                yield Gate(root, attempts, server, shared, client, tmp_path)
            finally:
                await attempts.close_all({"ending": "stop"})
                await runner.cleanup()
                await upstream.close()

    return start


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what must come; the test's own limit is the last resort."""
    while not condition():  # noqa: ASYNC110 - conditions of any kind
        await asyncio.sleep(0.005)
