"""Is the model server stuck? A one-token heartbeat is unanswered for HEARTBEAT_SEC, and meanwhile nobody gets a token.

A full queue alone is healthy: heartbeats wait in it, while vLLM's counters move. Every sign of life (a token of a
stream through the gateway, a counter that moved, a heartbeat that was answered) starts the time anew. Heartbeats are
sent only in silence, one at a time. Of several engines (GEN_DP) one may be stuck while others live, and get no
heartbeat: it has requests to run, and its own counters have not moved for as long.

A stuck server is replaced by vLLM's parent, who is asked for it by restart.json.
"""

import asyncio
import contextlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp

from rolloutgen.errors import StoreError
from rolloutgen.gateway.metrics import Meter, read
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.server_state import Follower
from rolloutgen.serving.restart import ask_restart

_TICK_SEC: Final = 1.0
_READ_SEC: Final = 2.0
_METRICS_SEC: Final = 5.0
_SUSPECT_SEC: Final = 10.0
_ERROR: Final = 500


class Watch:
    """One a gateway; ``meter`` holds what vLLM told of itself."""

    def __init__(
        self, launch: Path, follower: Follower, server: ServerState, pulse: Pulse, *, key: str, heartbeat_sec: float
    ) -> None:
        self.meter: Final = Meter(pulse.clock)
        self._launch = launch
        self._follower = follower
        self._server = server
        self._pulse = pulse
        self._key = key
        self._heartbeat_sec = heartbeat_sec
        self._heartbeat: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        self._read_at = 0.0
        self._looked_at = pulse.clock()

    async def run(self) -> None:
        """For ever."""
        headers = {"Authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            try:
                while True:
                    await self._look(session)
                    await asyncio.sleep(min(_TICK_SEC, self._heartbeat_sec / 10))
            finally:
                self._forget()

    async def _look(self, session: aiohttp.ClientSession) -> None:
        if not self._server.ready:
            self._forget()
            return
        if self._slept():
            self._pulse.beat()
            self.meter.forget()
        await self._read_counters(session)
        now, last = self._pulse.clock(), self._pulse.last
        if self._asked_at is not None and self._asked_at <= last and not self._waits():
            self._asked_at = None
        if not self._waits() and now - last >= self._heartbeat_sec / 4:
            self._ask(session, now)
        if self._asked_at is not None:
            await self._judge(now - max(self._asked_at, last))
        if engine := self.meter.standing(self._heartbeat_sec):
            await self._stuck(f"its engine {engine} has requests, and has stood still for {self._heartbeat_sec:g} s")

    def _slept(self) -> bool:
        """Whether this process itself stood still: then nothing is known of the server's silence."""
        now, before = self._pulse.clock(), self._looked_at
        self._looked_at = now
        return now - before > self._heartbeat_sec

    def _waits(self) -> bool:
        return self._heartbeat is not None and not self._heartbeat.done()

    def _ask(self, session: aiohttp.ClientSession, now: float) -> None:
        """A heartbeat that failed at once is followed by the next; the time counts from the first."""
        self._asked_at = now if self._asked_at is None else self._asked_at
        self._heartbeat = asyncio.create_task(self._beat(session))

    async def _judge(self, silent_sec: float) -> None:
        """What ``silent_sec`` without an answer, and without any other sign of life, means."""
        if silent_sec >= self._heartbeat_sec:
            await self._stuck(f"no sign of life for {silent_sec:.0f} s")
        elif silent_sec >= min(_SUSPECT_SEC, self._heartbeat_sec / 2):
            self._pulse.suspected = True

    async def _stuck(self, shown: str) -> None:
        record = self._follower.record
        if record is None or record.vllm is None or not self._server.ready:
            return
        why = f"the model server is stuck: {shown} (HEARTBEAT_SEC={self._heartbeat_sec:g})"
        say(f"{why}; it is restarted")
        try:
            ask_restart(self._launch, record.vllm, why)
        except StoreError as error:
            say(f"its parent cannot be asked for a restart: {error}")
            return
        await self._follower.doubt(record.vllm)

    def _forget(self) -> None:
        """There is no server to judge; the next one begins with a clean record."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = self._asked_at = None
        self._pulse.beat()
        self.meter.forget()

    async def _beat(self, session: aiohttp.ClientSession) -> None:
        """One token. An answer below 500 is a sign of life; all else is none."""
        body = {"model": self._model_name, "prompt": "1", "max_tokens": 1, "temperature": 0}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_METRICS_SEC)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.post(f"{self._server.base_url}/completions", json=body, timeout=timeout) as response:
                await response.read()
                if response.status < _ERROR:
                    self._pulse.beat()

    @property
    def _model_name(self) -> str:
        return self._follower.record.model_name if self._follower.record is not None else ""

    async def _read_counters(self, session: aiohttp.ClientSession) -> None:
        now = self._pulse.clock()
        if now - self._read_at < min(_READ_SEC, self._heartbeat_sec / 10):
            return
        self._read_at = now
        url = f"{self._server.base_url.removesuffix('/v1')}/metrics"
        timeout = aiohttp.ClientTimeout(total=min(_METRICS_SEC, self._heartbeat_sec / 4))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.get(url, timeout=timeout) as response:
                if self.meter.take(read(await response.read())):
                    self._pulse.beat()


def say(text: str) -> None:
    """Into the run's log, where the launcher sends this process's output; a full disk must not end the gateway."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{stamp} gateway: {text}\n")
        sys.stdout.flush()
