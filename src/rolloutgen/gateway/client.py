"""The driver's side of the gateway: attempts are leased from it, over its Unix socket.

The gateway is watched by a request that never ends: its end is the gateway's, and every lease of that gateway is lost
with it. New leases then come from the next one, which the launcher starts and gateway.json names.
"""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from rolloutgen.errors import InferenceError, StoreError
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.gateway.report import Report
from rolloutgen.gateway.status import GatewayStatus
from rolloutgen.models import ModelEndpoint
from rolloutgen.outcomes import Cause

LEASE_SEC: Final = 90.0
"""A new gateway is waited for so long: the launcher starts one once a minute at most."""
_POLL_SEC: Final = 0.2
_SILENCE_SEC: Final = 120.0
"""A gateway that says nothing to its watcher for so long is gone, whatever its process does. It may wait for a disk."""
_ANSWER_SEC: Final = 300.0
"""An answer may wait for a disk: a transcript is closed with an fsync."""
_STATUS_SEC: Final = 2.0
_OK: Final = 200


class _Link:
    """One gateway, from the first sign of it to its end.

    ``lost`` is set when no call through it can be answered any more: it is gone, or the server behind it is for good.
    """

    def __init__(self, record: GatewayRecord) -> None:
        self.record = record
        self.session = aiohttp.ClientSession(
            "http://gateway",
            connector=aiohttp.UnixConnector(record.socket, limit=0),
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SEC, sock_connect=_SILENCE_SEC),
        )
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gone = False

    def lose(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)

    def end(self, why: str) -> None:
        """The gateway itself is gone."""
        self._gone = True
        self.lose(why)

    def error(self) -> InferenceError:
        return InferenceError(self.lost.result(), Cause.MODEL_DOWN)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Raises InferenceError where the gateway is gone, StoreError where it says why it cannot do this."""
        if self._gone:
            raise self.error()
        try:
            async with self.session.request(method, path, json=body) as response:
                answer: dict[str, Any] = await response.json()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.end(f"the gateway (pid {self.record.gateway.pid}) does not answer: {error!r}")
            raise self.error() from error
        if status != _OK:
            raise StoreError(str(answer.get("error")))
        return answer


class Lease:
    """One attempt's right to speak with the model. ``endpoint`` is for its scaffold alone, and dies with it."""

    def __init__(self, link: _Link, attempt_id: str, endpoint: ModelEndpoint) -> None:
        self.endpoint: Final = endpoint
        self._link = link
        self._path = f"/attempts/{attempt_id}"
        self._last = Report()
        self._ending: asyncio.Task[Report] | None = None

    async def lost(self) -> InferenceError:
        """Returns when no call of this attempt can be answered any more: gateway dead, or server failed for good."""
        await asyncio.shield(self._link.lost)
        return self._link.error()

    async def report(self) -> Report:
        """As of now; after ``close``, or the gateway's death, the last one (then with ``failure`` set)."""
        if self._ending is not None:
            return await asyncio.shield(self._ending)
        return await self._report("GET", self._path)

    async def close(self, ending: Mapping[str, Any]) -> Report:
        """The key dies, the transcript is closed. Idempotent; finished even where the caller is cancelled."""
        if self._ending is None:
            body = {"ending": dict(ending)}
            self._ending = asyncio.create_task(self._report("POST", f"{self._path}/close", body))
        return await asyncio.shield(self._ending)

    async def _report(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Report:
        try:
            self._last = Report.from_json(await self._link.ask(method, path, body))
        except InferenceError as error:
            self._last = replace(self._last, failure=self._last.failure or str(error), server_down=True)
        return self._last


class Gateway:
    """One a driver: ``open``, any number of leases, ``close``. ``launch`` is the launch's folder."""

    def __init__(self, launch: Path, *, lease_sec: float = LEASE_SEC) -> None:
        """A lease waits up to ``lease_sec`` for a gateway."""
        self._launch = launch
        self._lease_sec = lease_sec
        self._link: _Link | None = None
        self._news = asyncio.Condition()
        self._failed: asyncio.Future[str] | None = None
        self._follower: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._failed = asyncio.get_running_loop().create_future()
        self._follower = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Idempotent. The gateway ends those attempts whose leases are not closed."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None

    async def lease(
        self, *, transcript: Path, label: str, start: Mapping[str, Any], uses_tools: bool, max_turns: int | None
    ) -> Lease:
        """A new attempt, whose ``transcript`` the gateway creates; ``label`` names it in the gateway's log.

        Raises InferenceError (MODEL_DOWN), and StoreError where the transcript cannot be written.
        """
        body = {
            "transcript": str(transcript),
            "label": label,
            "start": dict(start),
            "uses_tools": uses_tools,
            "max_turns": max_turns,
        }
        link = await self._reachable()
        answer = await link.ask("POST", "/attempts", body)
        endpoint = ModelEndpoint(link.record.base_url, answer["model_name"], answer["key"])
        return Lease(link, answer["id"], endpoint)

    async def failed(self) -> str:
        """Returns why, when the model server is gone for good; never otherwise."""
        assert self._failed is not None
        return await asyncio.shield(self._failed)

    async def _reachable(self) -> _Link:
        """The gateway of now, or the next one, unless the server is gone for good."""
        assert self._failed is not None
        try:
            async with asyncio.timeout(self._lease_sec), self._news:
                await self._news.wait_for(lambda: self._live() or self._gone())
        except TimeoutError:
            raise InferenceError(f"no gateway came within {self._lease_sec:g} s", Cause.MODEL_DOWN) from None
        link = self._live()
        if link is None:
            raise InferenceError(self._failed.result(), Cause.MODEL_DOWN)
        return link

    def _live(self) -> _Link | None:
        return self._link if self._link is not None and not self._link.lost.done() else None

    def _gone(self) -> bool:
        return self._failed is not None and self._failed.done()

    async def _follow(self) -> None:
        """From one gateway to the next, for ever."""
        while True:
            record = GatewayRecord.read(self._launch)
            if record is not None and record.state == "failed":
                await self._fail(f"the gateway failed: {record.message}")
            if record is not None and record.state == "ready" and record.gateway.alive():
                await self._attend(_Link(record))
            await asyncio.sleep(_POLL_SEC)

    async def _attend(self, link: _Link) -> None:
        """Hear what one gateway says until its end."""
        async with link.session:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
                await self._listen(link)
            link.end(f"the gateway (pid {link.record.gateway.pid}) is gone")

    async def _listen(self, link: _Link) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_SEC, sock_read=_SILENCE_SEC)
        async with link.session.get("/watch", timeout=timeout) as response:
            self._link = link
            async with self._news:
                self._news.notify_all()
            async for line in response.content:
                news = json.loads(line)
                if news.get("server") == "failed":
                    link.lose(str(news["message"]))
                    await self._fail(str(news["message"]))

    async def _fail(self, why: str) -> None:
        assert self._failed is not None
        if not self._failed.done():
            self._failed.set_result(why)
        async with self._news:
            self._news.notify_all()


def status(launch: Path) -> GatewayStatus | None:
    """What the gateway of this launch says of itself now; None where none answers within two seconds."""
    record = GatewayRecord.read(launch)
    if record is None or not record.socket:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(_STATUS_SEC)
            connected.connect(record.socket)
            connection = http.client.HTTPConnection("gateway")
            connection.sock = connected
            connection.request("GET", "/status")
            return GatewayStatus.from_json(json.loads(connection.getresponse().read()))
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        return None
