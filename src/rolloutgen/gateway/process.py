"""The gateway's process: it starts the parts, says how it is, and ends them in every case."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import web

from rolloutgen.errors import Finding, Level
from rolloutgen.gateway.attempts import Attempts
from rolloutgen.gateway.canary import Canary, ServerLostError
from rolloutgen.gateway.control import Control
from rolloutgen.gateway.doors import BACKLOG, base_url, bind_inside, bind_outside
from rolloutgen.gateway.exchange import Shared
from rolloutgen.gateway.fair import Places
from rolloutgen.gateway.pins import Pins
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.record import GatewayFailedError, GatewayRecord
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.server_state import Follower
from rolloutgen.gateway.status import GatewayStatus
from rolloutgen.gateway.upstream import Upstream
from rolloutgen.gateway.watch import Watch, say
from rolloutgen.gateway.web import make_app, make_runner
from rolloutgen.processes import Process, gone, raise_fd_limit
from rolloutgen.scaffold import THOUGHT_READERS, TOOL_USERS
from rolloutgen.serving.first import first
from rolloutgen.settings import Settings

_CANARIES: Final = 3
_PAUSE_SEC: Final = 3.0
"""After an answer that did not come: vLLM's parent says what became of the server."""
_TOOL_TOKENS: Final = 2048


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
    record = GatewayRecord("starting", Process.me(), findings=before.findings if before else ())
    record.write(launch)
    run = _Gateway(settings, launch, key, record, proven=before is not None and before.state == "ready")
    try:
        await first(stop.wait(), _end_of(launcher), run.live())
    except GatewayFailedError as error:
        replace(record, state="failed", message=str(error), findings=error.findings).write(launch)
        say(f"it failed: {error}")
        return 1
    return 0


async def _end_of(launcher: Process | None) -> None:
    if launcher is not None:
        await gone(launcher)


class _Gateway:
    """The parts of one gateway. ``proven``: the canary was asked before."""

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
            launch,
            self._follower,
            self._server,
            self._pulse,
            key=key,
            heartbeat_sec=self._policy.heartbeat_sec,
        )
        self._attempts = Attempts(
            self._pulse,
            context_len=self._policy.vllm_max_model_len,
            token_ids=settings.record_token_ids,
            logprobs=settings.record_logprobs,
        )

    async def live(self) -> None:
        """Until cancelled. Raises GatewayFailedError before it is ready."""
        with bind_outside(self._settings) as door:
            following = asyncio.create_task(self._follower.follow())
            try:
                findings = self._record.findings if self._proven else await self._canary()
                async with self._listening(door) as ready:
                    replace(ready, findings=findings).write(self._launch)
                    await self._watch.run()
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _listening(self, door: socket.socket) -> AsyncIterator[GatewayRecord]:
        """Serve scaffolds at ``door`` and the driver at a Unix socket; the record that says so."""
        path, inside = bind_inside(self._launch)
        control = Control(self._attempts, self._server, self._policy.served_model_name, self.status)
        upstream = Upstream(self._server, self._key, self._policy.model_call_timeout_sec)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(path.unlink, missing_ok=True)
            stack.push_async_callback(upstream.close)
            for app, listener in ((self._app(upstream), door), (control.app(), inside)):
                runner = make_runner(app)
                stack.push_async_callback(runner.cleanup)
                await runner.setup()
                await web.SockSite(runner, listener, backlog=BACKLOG).start()
            stack.push_async_callback(self._attempts.close_all, {"reason": "the gateway ended"})
            yield replace(self._record, state="ready", base_url=base_url(self._settings, door), socket=str(path))

    def _app(self, upstream: Upstream) -> web.Application:
        shared = Shared(
            pins=Pins.of(self._settings),
            server=self._server,
            upstream=upstream,
            places=Places(self._policy.gateway_max_inflight),
            hold_sec=self._policy.gateway_hold_sec,
        )
        return make_app(shared, self._attempts, max_model_len=self._policy.vllm_max_model_len)

    async def _canary(self) -> tuple[str, ...]:
        """The findings as lines. A server that is lost meanwhile is asked again when it is back."""
        for left in reversed(range(_CANARIES)):
            await self._wait_ready()
            try:
                return _judged(await self._sing())
            except ServerLostError as error:
                if not left:
                    raise GatewayFailedError(str(error)) from error
                await asyncio.sleep(_PAUSE_SEC)
        raise AssertionError  # the last one returns or raises

    async def _wait_ready(self) -> None:
        while not self._server.ready:
            if self._server.gone:
                raise GatewayFailedError(f"the model server failed: {self._server.gone}")
            await self._server.changed(_PAUSE_SEC)

    async def _sing(self) -> list[Finding]:
        settings, policy = self._settings, self._policy
        canary = Canary(
            base_url=self._server.base_url,
            key=self._key,
            model_name=policy.served_model_name,
            timeout_sec=policy.model_call_timeout_sec,
            reads_thoughts=settings.scaffold in THOUGHT_READERS,
            tools=settings.scaffold in TOOL_USERS or settings.tool_call_parser is not None,
            parser=settings.tool_call_parser or "",
            tool_tokens=min(policy.max_response_len, policy.vllm_max_model_len // 2, _TOOL_TOKENS),
            call_is_must=settings.tool_canary == "fatal",
        )
        return await canary.sing()

    def status(self) -> GatewayStatus:
        counts = [attempt.ledger.states for attempt in self._attempts]
        meter, record = self._watch.meter, self._follower.record
        return GatewayStatus(
            attempts=len(counts),
            at_server=sum(count["trying"] for count in counts),
            queued=sum(count["queued"] for count in counts),
            held=sum(count["held"] for count in counts),
            tokens_per_sec=meter.tokens_per_sec,
            prefix_hit_share=meter.prefix_hit_share,
            kv_used_share=meter.last.kv_used if meter.last is not None else None,
            server=self._server.state,
            restarts=record.restarts if record is not None else 0,
        )


def _judged(findings: Sequence[Finding]) -> tuple[str, ...]:
    """A line each, also into the log. Raises GatewayFailedError where one is fatal."""
    lines = tuple(_line(finding) for finding in findings)
    for line in lines:
        say(f"canary: {line}")
    fatal = [line for finding, line in zip(findings, lines, strict=True) if finding.level is Level.FATAL]
    if fatal:
        raise GatewayFailedError("; ".join(fatal), lines)
    return lines


def _line(finding: Finding) -> str:
    mend = f" -> {finding.mend}" if finding.mend else ""
    return f"{finding.level} {finding.subject}: {finding.message}{mend}"
