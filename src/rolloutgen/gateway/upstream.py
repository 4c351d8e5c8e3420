"""One try of a call at vLLM: what it brings, or which of the three ways in which it does not.

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

from rolloutgen.gateway import context, jsons
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.sse import DONE, Events

ANSWER_MAX_BYTES: Final = 256 * 2**20
_OK: Final = 200
_OURS: Final = frozenset({401, 403, 404, 408, 409, 425, 429})
"""Refusals that are not the request's fault: the key and the model's name are ours, the others pass."""
_CONNECT_SEC: Final = 10.0
_IDLE_SEC: Final = 2.0
"""Connections that are idle for longer are not used again: vLLM closes them after 5 s, maybe under a request."""
_READ_BYTES: Final = 2**20
_SHOWN: Final = 500

type Json = dict[str, Any]


class TryFailedError(Exception):
    """``status`` is None without an answer; ``down``: nothing listens there; ``retry_after_sec`` as the server asks."""

    def __init__(
        self, why: str, *, status: int | None = None, down: bool = False, retry_after_sec: float = 0.0
    ) -> None:
        self.status = status
        self.down = down
        self.retry_after_sec = retry_after_sec
        super().__init__(why)


class RefusedError(Exception):
    """``status`` is 4xx, ``body`` the server's own error, ``full`` says that the request does not fit the context."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        text = body.decode(errors="replace")
        self.full = context.refusal_is_full(status, text)
        super().__init__(_message(body) or text[:_SHOWN])


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
            headers={"Authorization": f"Bearer {key}"},
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
                    await _raise_for(response)
                if not stream:
                    yield [_checked(await _read(response))]
                    return
                async with aclosing(_chunks(response)) as chunks:
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
                    await _raise_for(response)
                return _object(await _read(response))
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


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[Sequence[Json]]:
    """Where a piece holds tokens and then an error, they are worth something if others came before them: else the call
    may still be sent again."""
    events, begun, finished, n_bytes = Events(), False, False, 0
    async for piece in response.content.iter_any():
        n_bytes += len(piece)
        if n_bytes > ANSWER_MAX_BYTES:
            raise TryFailedError(f"the answer has more than {ANSWER_MAX_BYTES} bytes", status=_OK)
        some, error, done = _parsed(events.feed(piece))
        if some and (begun or error is None):
            yield some
            begun, finished = True, finished or any(map(_finishes, some))
        if error is not None:
            raise error
        if done:
            break
    if not finished:
        raise TryFailedError("the stream ended before the answer did", status=_OK)


def _parsed(payloads: Sequence[bytes]) -> tuple[list[Json], Exception | None, bool]:
    """The chunks up to the first error, that error, and whether the stream is at its end."""
    some: list[Json] = []
    for payload in payloads:
        if payload == DONE:
            return some, None, True
        try:
            some.append(_chunk(payload))
        except (TryFailedError, RefusedError) as error:
            return some, error, False
    return some, None, False


def _chunk(payload: bytes) -> Json:
    chunk = _object(payload)
    if "error" in chunk:
        error = chunk["error"] if isinstance(chunk["error"], dict) else {}
        code = error.get("code")
        if isinstance(code, int) and 400 <= code < 500 and code not in _OURS:  # noqa: PLR2004 - 4xx
            raise RefusedError(code, payload)
        raise TryFailedError(f"error in the stream: {payload[:_SHOWN].decode(errors='replace')}", status=_OK)
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise TryFailedError(f"no chunk of a stream: {payload[:_SHOWN]!r}", status=_OK)
    return chunk


def _finishes(chunk: Json) -> bool:
    return any(choice.get("finish_reason") for choice in chunk["choices"])


def _checked(raw: bytes) -> Json:
    """A whole answer: one choice at least, with a message or a text."""
    answer = _object(raw)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise TryFailedError(f"no completion: {raw[:_SHOWN]!r}", status=_OK)
    if not isinstance(choices[0].get("message"), dict) and not isinstance(choices[0].get("text"), str):
        raise TryFailedError(f"a completion without message: {raw[:_SHOWN]!r}", status=_OK)
    return answer


def _object(raw: bytes) -> Json:
    try:
        answer = jsons.loads(raw)
    except ValueError as error:
        raise TryFailedError(f"the answer is not JSON: {raw[:_SHOWN]!r}", status=_OK) from error
    if not isinstance(answer, dict):
        raise TryFailedError(f"the answer is no JSON object: {raw[:_SHOWN]!r}", status=_OK)
    return answer


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, n_bytes = [], 0
    async for piece in response.content.iter_any():
        parts.append(piece)
        n_bytes += len(piece)
        if n_bytes > ANSWER_MAX_BYTES:
            raise TryFailedError(f"the answer has more than {ANSWER_MAX_BYTES} bytes", status=response.status)
    return b"".join(parts)


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    status, body = response.status, await _read(response)
    if 400 <= status < 500 and status not in _OURS:  # noqa: PLR2004 - 4xx
        raise RefusedError(status, body)
    text = body.decode(errors="replace").strip()[:_SHOWN]
    asked = response.headers.get("Retry-After", "")
    wait_sec = float(asked) if asked.isdecimal() else 0.0
    raise TryFailedError(f"HTTP {status}: {text}", status=status, retry_after_sec=wait_sec)


def _message(body: bytes) -> str:
    """The text of an error in OpenAI's shape (empty: it has another)."""
    try:
        error = jsons.loads(body)
        message = error["error"]["message"] if "error" in error else error["message"]
    except (ValueError, LookupError, TypeError):
        return ""
    return message if isinstance(message, str) else ""
