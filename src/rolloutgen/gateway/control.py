"""The driver's door: HTTP over a Unix socket (0600) that no sandbox sees.

    POST /attempts             {transcript, label, start, uses_tools, max_turns} -> {id, key, model_name}; 409 {error}
    GET  /attempts/ID          -> the report of an attempt, as of now
    POST /attempts/ID/close    {ending} -> the last report, when the key is dead and the transcript closed; idempotent
    GET  /watch                lines of JSON without end: {server, message} at first and with every change, {} between
    GET  /status               -> GatewayStatus

Who listens to /watch knows of the gateway's death by its end; and the gateway of the driver's: its attempts end then.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn

from aiohttp import web

from rolloutgen.gateway.attempts import Attempts
from rolloutgen.gateway.report import Report
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.status import GatewayStatus

PING_SEC: Final = 2.0
_BODY_MAX_BYTES: Final = 64 * 2**20


class Control:
    """The requests of the driver. ``status`` is asked for what /status answers."""

    def __init__(
        self, attempts: Attempts, server: ServerState, model_name: str, status: Callable[[], GatewayStatus]
    ) -> None:
        self._attempts = attempts
        self._server = server
        self._model_name = model_name
        self._status = status
        self._watchers: set[asyncio.Task[object]] = set()
        self._n_watches = 0
        self._leases: dict[str, int] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_MAX_BYTES)
        app.on_shutdown.append(self._let_go)
        app.add_routes(
            [
                web.post("/attempts", _told(self._register)),
                web.get("/attempts/{id}", _told(self._report)),
                web.post("/attempts/{id}/close", _told(self._close)),
                web.get("/watch", self._watch),
                web.get("/status", self._say_status),
            ]
        )
        return app

    async def _register(self, request: web.Request) -> web.Response:
        body = await request.json()
        attempt_id, key = self._attempts.register(
            Path(body["transcript"]),
            label=str(body["label"]),
            start=dict(body["start"]),
            uses_tools=bool(body["uses_tools"]),
            max_turns=None if body["max_turns"] is None else int(body["max_turns"]),
        )
        self._leases[attempt_id] = self._n_watches
        return web.json_response({"id": attempt_id, "key": key, "model_name": self._model_name})

    async def _report(self, request: web.Request) -> web.Response:
        return _answer(self._attempts.report(request.match_info["id"]))

    async def _close(self, request: web.Request) -> web.Response:
        ending, attempt_id = dict((await request.json())["ending"]), request.match_info["id"]
        self._leases.pop(attempt_id, None)
        return _answer(await self._attempts.close(attempt_id, ending))

    async def _say_status(self, _: web.Request) -> web.Response:
        return web.json_response(self._status().to_json())

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watchers.add(task)
        self._n_watches += 1
        number = self._n_watches
        try:
            await self._tell(response)
        finally:
            self._watchers.discard(task)
            end = asyncio.create_task(self._end_leases(number))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

    async def _end_leases(self, number: int) -> None:
        """The driver that listened is gone, or takes this gateway for gone: nobody else will end its attempts."""
        orphans = [attempt_id for attempt_id, watch in self._leases.items() if watch == number]
        for attempt_id in orphans:
            del self._leases[attempt_id]
        ends = [self._attempts.close(attempt_id, {"reason": "the driver is gone"}) for attempt_id in orphans]
        await asyncio.gather(*ends, return_exceptions=True)

    async def _tell(self, response: web.StreamResponse) -> NoReturn:
        told = ""
        while True:
            news = json.dumps({"server": self._server.state, "message": self._server.gone})
            await response.write((b"{}" if news == told else news.encode()) + b"\n")
            told = news
            await self._server.changed(PING_SEC)

    async def _let_go(self, _: web.Application) -> None:
        """Nobody waits at the gateway's end for those who never leave."""
        for watcher in self._watchers:
            watcher.cancel()


def _answer(report: Report | None) -> web.Response:
    if report is None:
        return web.json_response({"error": "no such attempt"}, status=404)
    return web.json_response(report.to_json())


type _Handler = Callable[[web.Request], Awaitable[web.Response]]


def _told(handler: _Handler) -> _Handler:
    """What is wrong with a request, or with the disk, in words."""

    async def told(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except OSError as error:
            return web.json_response({"error": str(error)}, status=409)
        except (ValueError, KeyError, TypeError) as error:
            return web.json_response({"error": f"no request of the driver's: {error!r}"}, status=400)

    return told
