"""The gateway's process: it starts the parts, says how it is, and ends them in every case."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from rolloutgen.gateway.attempts import Attempts
from rolloutgen.gateway.control import Control
from rolloutgen.gateway.doors import base_url, bind_inside, bind_outside, listen
from rolloutgen.gateway.exchange import Shared
from rolloutgen.gateway.fair import Places
from rolloutgen.gateway.pins import Pins
from rolloutgen.gateway.proof import prove
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.record import GatewayFailedError, GatewayRecord
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.server_state import Follower
from rolloutgen.gateway.status import GatewayStatus
from rolloutgen.gateway.upstream import Upstream
from rolloutgen.gateway.watch import Watch
from rolloutgen.gateway.web import make_app, make_runner
from rolloutgen.processes import Process, gone, raise_fd_limit
from rolloutgen.serving import data_parallel, gpus_seen
from rolloutgen.serving.first import first
from rolloutgen.settings import Settings


async def gateway(settings: Settings, launch: Path, launcher_pid: int, key: str) -> int:
    """Serve until TERM, INT or the launcher's death (0), or until it cannot (1; gateway.json says why).

    ``launch`` is the launch's folder, where gateway.json is kept and server.json is followed; ``key`` is the model
    server's. A gateway whose predecessor in this launch was ready asks no canary: the model is the same.
    """
    raise_fd_limit()
    stop, launcher = asyncio.Event(), Process.of(launcher_pid)
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    before = GatewayRecord.read(launch)
    proven = before if before is not None and before.state == "ready" else None
    record = replace(proven or GatewayRecord("starting", Process.me()), state="starting", gateway=Process.me())
    record.write(launch)
    run = _Gateway(settings, launch, key, record, proven=proven is not None)
    try:
        await first(stop.wait(), _end_of(launcher), run.live())
    except GatewayFailedError as error:
        replace(record, state="failed", message=str(error), findings=error.findings).write(launch)
        return 1
    return 0


async def _end_of(launcher: Process | None) -> None:
    if launcher is not None:
        await gone(launcher)


class _Gateway:
    """The parts of one gateway. ``proven``: ``record`` holds what was found when this launch's first one asked."""

    def __init__(self, settings: Settings, launch: Path, key: str, record: GatewayRecord, *, proven: bool) -> None:
        self._settings = settings
        self._policy = settings.policy
        self._launch = launch
        self._key = key
        self._record = record
        self._proven = proven
        self._pulse = Pulse()
        self._server = ServerState()
        self._follower = Follower(launch, self._server)
        self._watch = Watch(
            launch, self._follower, self._server, self._pulse, key=key, heartbeat_sec=self._policy.heartbeat_sec
        )
        self._attempts = Attempts(
            self._pulse,
            context_len=self._policy.vllm_max_model_len,
            token_ids=settings.record_token_ids,
            logprobs=settings.record_logprobs,
        )

    async def live(self) -> None:
        """Until cancelled. Raises GatewayFailedError before it is ready."""
        await asyncio.to_thread(gpus_seen)  # it may ask a slow driver; the answer is kept
        with bind_outside(self._settings) as door:
            await first(self._follow(), self._serve(door))

    async def _follow(self) -> NoReturn:
        """A server that has failed for good is no reason to end: reports are asked for still."""
        await self._follower.follow()
        await asyncio.Event().wait()
        raise AssertionError  # nobody sets it

    async def _serve(self, door: socket.socket) -> None:
        upstream = Upstream(self._server, self._key, self._policy.model_call_timeout_sec)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(upstream.close)
            if not self._proven:
                proof = await prove(self._settings, self._key, self._server, upstream)
                self._record = replace(self._record, findings=proof.findings, system_first=proof.system_first)
            path = await stack.enter_async_context(self._listening(door, upstream))
            url = base_url(self._settings, door)
            replace(self._record, state="ready", base_url=url, socket=str(path)).write(self._launch)
            await self._watch.run()

    @contextlib.asynccontextmanager
    async def _listening(self, door: socket.socket, upstream: Upstream) -> AsyncIterator[Path]:
        """Serve scaffolds at ``door``, and the driver at the Unix socket whose path this gives."""
        path, inside = bind_inside(self._launch)
        control = Control(self._attempts, self._server, self._policy.served_model_name, self._status)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(path.unlink, missing_ok=True)
            for app, listener, trusted in ((self._app(upstream), door, False), (control.app(), inside, True)):
                runner = make_runner(app, trusted=trusted)
                stack.push_async_callback(runner.cleanup)
                await runner.setup()
                stack.callback((await listen(runner, listener, trusted=trusted)).close)
            stack.push_async_callback(self._attempts.close_all, {"reason": "the gateway ended"})
            yield path

    def _app(self, upstream: Upstream) -> web.Application:
        shared = Shared(
            pins=Pins.of(self._settings),
            server=self._server,
            upstream=upstream,
            places=Places(self._policy.gateway_max_inflight * data_parallel(self._settings, gpus_seen())),
            hold_sec=self._policy.gateway_hold_sec,
            system_first=self._record.system_first,
        )
        return make_app(shared, self._attempts, max_model_len=self._policy.vllm_max_model_len)

    def _status(self) -> GatewayStatus:
        counts = [attempt.ledger.states for attempt in self._attempts]
        meter, record = self._watch.meter, self._follower.record
        return GatewayStatus(
            attempts=len(counts),
            at_server=sum(count["trying"] for count in counts),
            queued=sum(count["queued"] for count in counts),
            held=sum(count["held"] for count in counts),
            tokens_per_sec=meter.tokens_per_sec,
            prefix_hit_share=meter.prefix_hit_share,
            kv_used_share=meter.kv_used_share,
            server=self._server.state,
            restarts=record.restarts if record is not None else 0,
        )
