"""The scaffold's end of one call: one answer, or a stream with comments that keep it alive while the call is held."""

import asyncio
from typing import Final

from aiohttp import web

from rolloutgen.gateway.surfaces import Surface

KEEP_ALIVE_SEC: Final = 15.0
STALL_SEC: Final = 60.0
"""A client that takes nothing of a stream for so long has left: it would keep a place at the server from others."""
RETRY_AFTER_SEC: Final = 30
_JSON: Final = "application/json"
_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Downstream:
    """Made in the handler of ``request``; what it returns in the end is ``response``."""

    def __init__(
        self, request: web.Request, surface: Surface, *, stream: bool, keep_alive_sec: float, stall_sec: float
    ) -> None:
        self._request = request
        self._surface = surface
        self._stream = stream
        self._keep_alive_sec = keep_alive_sec
        self._stall_sec = stall_sec
        self._writing: Final = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self.response: web.StreamResponse | None = None

    def hold(self) -> None:
        """The answer takes longer than the client may think: a stream begins, and shows that somebody is there."""
        if self._stream and self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_alive())

    async def send(self, events: bytes) -> None:
        """Send events of a stream. Raises ConnectionError where the client has left."""
        self.release()
        if events:
            await self._write(events)

    async def end(self, body: bytes) -> None:
        """Send what completes the answer: the last events, or all of it."""
        self.release()
        if self._stream:
            await self._write(body)
            assert self.response is not None
            await self.response.write_eof()
        else:
            self.response = web.Response(body=body, content_type=_JSON)

    async def fail(self, status: int, text: str, body: bytes | None = None) -> int:
        """Send an error (``body``: in this form); returns the status that the client got.

        In a stream that has begun it is an event, and then the connection breaks: nobody takes it for an end.
        """
        self.release()
        if self.response is None:
            headers = {"Retry-After": str(RETRY_AFTER_SEC)} if status >= 500 else {}  # noqa: PLR2004 - ours
            said = self._surface.error(status, text) if body is None else body
            self.response = web.Response(status=status, body=said, content_type=_JSON, headers=headers)
            return status
        await self._write(self._surface.error_event(status, text))
        self.break_off()
        return self.response.status

    def break_off(self) -> None:
        """Close the connection once what was written has left."""
        self.release()
        if self._request.transport is not None:
            self._request.transport.close()

    def release(self) -> None:
        """End the keep-alives."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None

    async def _keep_alive(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._keep_alive_sec)
                await self._write(self._surface.keep_alive)
        except ConnectionError:
            return  # the handler is told by its own cancellation

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_sec):
                await self._write_now(data)
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError(f"the client has read nothing for {self._stall_sec:g} s") from error

    async def _write_now(self, data: bytes) -> None:
        async with self._writing:
            if self.response is None:
                self.response = web.StreamResponse(headers=_STREAM)
                await self.response.prepare(self._request)
            await self.response.write(data)
