"""A real gateway on the test's own loop before a scripted model server: its HTTP side, its control socket, its client.

::

    async with Upstream(rule) as upstream, LocalGateway(settings, upstream) as gateway:
        lease = await gateway.lease(tmp_path / "transcript.jsonl")

``server`` is what the gateway knows of the model server: a test that stops it says so there, as the watch would.
"""

import contextlib
import tempfile
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from fakes.upstream import Upstream
from rolloutgen.gateway.attempts import Attempts
from rolloutgen.gateway.client import Gateway, Lease
from rolloutgen.gateway.control import Control
from rolloutgen.gateway.doors import bind_file
from rolloutgen.gateway.exchange import Shared
from rolloutgen.gateway.fair import Places
from rolloutgen.gateway.pins import Pins
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.status import GatewayStatus
from rolloutgen.gateway.upstream import Upstream as Connections
from rolloutgen.gateway.web import make_app, make_runner
from rolloutgen.processes import Process
from rolloutgen.settings import Policy, Settings


class LocalGateway:
    """``launch`` is its launch's folder (short: a socket's path is), ``client`` what an Engine is given."""

    def __init__(self, settings: Settings, upstream: Upstream, *, first_wait_sec: float = 0.01) -> None:
        self._settings = settings
        self._upstream = upstream
        self._first_wait_sec = first_wait_sec
        self._stack = contextlib.AsyncExitStack()
        self.server = ServerState()
        self.pulse = Pulse()

    async def __aenter__(self) -> Self:
        settings, policy = self._settings, self._settings.policy
        self.launch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rg-")))
        await self.ready()
        connections = Connections(self.server, self._upstream.key, policy.model_call_timeout_sec)
        self._stack.push_async_callback(connections.close)
        attempts = self.attempts = Attempts(
            self.pulse,
            context_len=policy.vllm_max_model_len,
            token_ids=settings.record_token_ids,
            logprobs=settings.record_logprobs,
        )
        shared = self._shared(policy, connections)
        control = Control(attempts, self.server, policy.served_model_name, GatewayStatus)
        door = make_runner(make_app(shared, attempts, max_model_len=policy.vllm_max_model_len))
        back = make_runner(control.app())
        self._runners = (door, back)
        for runner in self._runners:
            await runner.setup()
            self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(door, "127.0.0.1", 0).start()
        socket = self.launch / "s"
        await web.SockSite(back, bind_file(socket)).start()
        url = f"http://127.0.0.1:{door.addresses[0][1]}/v1"
        GatewayRecord("ready", Process.me(), url, str(socket)).write(self.launch)
        self.client = Gateway(self.launch)
        await self.client.open()
        self._stack.push_async_callback(self.client.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def die(self) -> None:
        """Close every connection, and listen no more."""
        for runner in self._runners:
            for site in list(runner.sites):
                await site.stop()
            assert runner.server is not None
            for connection in runner.server.connections:
                connection.force_close()

    async def ready(self) -> None:
        """The model server serves, at the upstream's port of now."""
        await self.server.update("ready", base_url=self._upstream.base_url, seed=1)

    async def lease(self, transcript: Path, **options: Any) -> Lease:
        given = {"label": "test", "start": {}, "uses_tools": False, "max_turns": None} | options
        return await self.client.lease(transcript=transcript, **given)

    def _shared(self, policy: Policy, connections: Connections) -> Shared:
        return Shared(
            pins=Pins.of(self._settings),
            server=self.server,
            upstream=connections,
            places=Places(policy.gateway_max_inflight),
            hold_sec=policy.gateway_hold_sec,
            first_wait_sec=self._first_wait_sec,
        )
