"""One try of a call at vLLM: what it brings, or in which of two ways it does not.

``TryFailedError`` is for our reasons (refused connection, reset, 5xx, 429, our own key, garbage, silence) and may be
sent again; ``RefusedError`` is the request's own fault; anything else is a bug.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from rolloutgen.gateway import wire
from rolloutgen.gateway.failures import TryFailedError
from rolloutgen.gateway.server import ServerState

_OK: Final = 200
_CONNECT_SEC: Final = 10.0
_IDLE_SEC: Final = 2.0
"""Connections that are idle for longer are not used again: vLLM closes them after 5 s, maybe under a request."""
_READ_BYTES: Final = 2**20

type Json = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Try:
    """One try: ``status`` and ``sec`` as far as it came."""

    began: float = field(default_factory=time.monotonic)
    status: int | None = None

    def record(self, error: str = "") -> Json:
        """What the transcript keeps of it."""
        how = {"status": self.status} if self.status is not None else {}
        return {**how, **({"error": error} if error else {}), "sec": round(time.monotonic() - self.began, 3)}


class Upstream:
    """The gateway's side of the connections to vLLM."""

    def __init__(self, server: ServerState, key: str, timeout_sec: float) -> None:
        """``timeout_sec``: MODEL_CALL_TIMEOUT_SEC. To be made, and closed, in a running loop."""
        self._server = server
        self._timeout_sec = timeout_sec
        self._whole = aiohttp.ClientTimeout(total=timeout_sec, sock_connect=_CONNECT_SEC)
        self._stream = aiohttp.ClientTimeout(total=None, sock_read=timeout_sec, sock_connect=_CONNECT_SEC)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SEC),
            headers={"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"},
            read_bufsize=_READ_BYTES,
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self, path: str, data: bytes, *, stream: bool, on_sent: Callable[[], None], log: Try
    ) -> AsyncGenerator[Sequence[Json]]:
        """The whole answer alone, or the chunks of a stream as they come, some at a time, up to its proper end.

        ``path`` begins after ``/v1``. ``on_sent`` is called once the request is on its way. Raises TryFailedError
        and RefusedError.
        """
        limits = self._stream if stream else self._whole
        try:
            async with self._post(self._server.base_url + path, data, limits, on_sent) as response:
                log.status = response.status
                if response.status != _OK:
                    await wire.raise_for(response)
                if not stream:
                    yield [wire.whole(await wire.read(response))]
                    return
                async with aclosing(wire.chunks(response)) as chunks:
                    async for some in chunks:
                        yield some
        except TimeoutError as error:
            raise TryFailedError(f"nothing came for {self._timeout_sec:g} s", status=log.status) from error
        except aiohttp.ClientConnectorError as error:
            raise TryFailedError(f"cannot connect to the model server: {error}", down=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise TryFailedError(f"the connection was lost: {error!r}", status=log.status) from error

    async def plain(self, path: str, body: Mapping[str, Any]) -> Json:
        """One short question beside the calls (``path`` from the root). Raises as ``ask``."""
        url = self._server.base_url.removesuffix("/v1") + path
        try:
            async with self._session.post(url, json=body, timeout=self._whole) as response:
                if response.status != _OK:
                    await wire.raise_for(response)
                return wire.json_object(await wire.read(response))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TryFailedError(f"the model server does not answer: {error!r}") from error

    @asynccontextmanager
    async def _post(
        self, url: str, data: bytes, limits: aiohttp.ClientTimeout, on_sent: Callable[[], None]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, once its head is there; whoever leaves before its end takes the request back."""
        body = _Body(data)
        post = asyncio.create_task(self._open(url, body, limits))
        try:
            either: set[asyncio.Future[Any]] = {post, body.sent}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            on_sent()
            response = await post
        except BaseException:
            if not post.cancel() and not post.cancelled() and post.exception() is None:
                post.result().close()
            raise
        try:
            yield response
        finally:
            response.close()

    async def _open(self, url: str, body: "_Body", limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        return await self._session.post(url, data=body, timeout=limits)


class _Body(Payload):
    """A body in one piece; ``sent`` is done when it is in the hands of the kernel."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, content_type="application/json")
        self._size = len(data)
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value.decode(encoding, errors))

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value)
        await asyncio.sleep(0)
        if not self.sent.done():
            self.sent.set_result(None)

    async def write_with_length(
        self,
        writer: AbstractStreamWriter,
        content_length: int | None,  # noqa: ARG002 - aiohttp's own signature; the length is that of the body
    ) -> None:
        await self.write(writer)
