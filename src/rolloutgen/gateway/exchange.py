"""One model call, from the scaffold's pinned request to its record: held, queued, tried, relayed, written down.

What the scaffold has been given stands in the transcript before it is told that the answer is whole; what ends early
is written with all that had come until then.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from rolloutgen.errors import StoreError
from rolloutgen.gateway import markup
from rolloutgen.gateway.answer import Answer
from rolloutgen.gateway.attempts import AttemptState
from rolloutgen.gateway.downstream import KEEP_ALIVE_SEC, STALL_SEC, Downstream
from rolloutgen.gateway.entry import Entry
from rolloutgen.gateway.failures import RefusedError, TryFailedError
from rolloutgen.gateway.fair import Places
from rolloutgen.gateway.hold import FIRST_WAIT_SEC, GivenUpError, Hold
from rolloutgen.gateway.ledger import Call
from rolloutgen.gateway.pins import Pinned, Pins
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.surfaces import Surface
from rolloutgen.gateway.upstream import Try, Upstream
from rolloutgen.transcript.recorder import End, Request

log: Final = logging.getLogger(__name__)
_PATHS: Final = {"chat": "/chat/completions", "messages": "/chat/completions", "completions": "/completions"}
_DOWN: Final = 503
_INTERNAL: Final = 500
_SORRY: Final = "the model server failed, and did not come back in time"
"""All that a scaffold is told; the reason stands in the transcript."""
_OK: Final = 200

type Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all calls of a gateway have in common.

    ``hold_sec``: GATEWAY_HOLD_SEC; ``system_first``: the chat template takes system messages at the beginning only.
    """

    pins: Pins
    server: ServerState
    upstream: Upstream
    places: Places
    hold_sec: float
    system_first: bool = False
    keep_alive_sec: float = KEEP_ALIVE_SEC
    stall_sec: float = STALL_SEC
    first_wait_sec: float = FIRST_WAIT_SEC


class Exchange:
    """One call; ``run`` is its whole life."""

    def __init__(
        self,
        shared: Shared,
        request: web.Request,
        state: AttemptState,
        call: Call,
        surface: Surface,
        pinned: Pinned,
        data: bytes,
    ) -> None:
        """``data``: what is sent, as JSON."""
        self._shared = shared
        self._state = state
        self._call = call
        self._surface = surface
        self._stream = pinned.stream
        self._shown = pinned.shown
        self._data = data
        self._answer = self._blank()
        self._whole: Json | None = None
        self._withheld: list[Json] = []
        self._hold = Hold(shared.server, call, shared.hold_sec, shared.first_wait_sec)
        self._down = Downstream(
            request,
            surface,
            stream=pinned.stream,
            keep_alive_sec=shared.keep_alive_sec,
            stall_sec=shared.stall_sec,
        )
        asked = Request(surface=surface.name, asked=pinned.asked, sent=pinned.sent, side=call.side)
        self._entry = Entry(state.recorder, asked)

    async def run(self) -> web.StreamResponse:
        """What the handler returns. Cancelled where the client leaves or the key dies; the record is written then."""
        try:
            await self._run()
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("a call of %s failed in the gateway itself", self._state.label)
            self._call.failed(f"the gateway itself failed: {error!r}", down=isinstance(error, StoreError))
            await self._down.fail(_INTERNAL, _SORRY)
        assert self._down.response is not None
        return self._down.response

    async def _run(self) -> None:
        try:
            await self._try_until_answered()
            await self._finish()
        except RefusedError as error:
            self._call.refused(context=error.full)
            await self._end("refused", error.status, str(error), self._surface.refusal(error))
        except GivenUpError as error:
            self._call.failed(str(error), down=error.down)
            await self._end("failed", _DOWN, str(error), told=_SORRY)
        except (asyncio.CancelledError, ConnectionError):
            if self._all_has_left:
                self._answered()
            else:
                self._call.aborted()
                self._write("aborted", self._status(None), "the client left, or its key died")
            raise
        finally:
            self._down.release()

    async def _try_until_answered(self) -> None:
        """Raises RefusedError and GivenUpError."""
        while True:
            if self._hold.awaits:
                self._held()
                await self._hold.until_ready()
            failure = None
            async with self._shared.places.one(self._state, self._call.queued):
                if not self._hold.awaits:
                    failure = await self._try()
                    if failure is None:
                        return
            if failure is not None:
                self._held()
                await self._hold.pause(failure.retry_after_sec)

    def _blank(self) -> Answer:
        return Answer(chat=self._surface.name != "completions", shown=self._shown)

    def _held(self) -> None:
        self._entry.sent()
        self._down.hold()

    async def _try(self) -> TryFailedError | None:
        """One try. Returns why it failed, where it may be repeated: no token has left."""
        attempt, stream = Try(), self._stream
        self._answer, self._withheld, self._entry.seed = self._blank(), [], self._shared.server.seed
        self._call.trying()
        path = _PATHS[self._surface.name]
        ask = self._shared.upstream.ask(path, self._data, stream=stream, on_sent=self._entry.sent, log=attempt)
        error = ""
        try:
            async with aclosing(ask) as pieces:
                async for some in pieces:
                    self._call.token()
                    await self._take(some)
        except TryFailedError as failure:
            error = str(failure)
            if self._all_has_left:
                return None
            if self._answer.has_begun:
                raise GivenUpError(f"the answer broke off: {failure}", down=failure.down) from failure
            self._hold.failed(failure)
            return failure
        except BaseException as end:
            error = str(end) or "taken back"
            raise
        finally:
            self._entry.tries.append(attempt.record(error))
        return None

    async def _take(self, some: Sequence[Json]) -> None:
        """Relay chunks; those before the first token wait for it, since another try may bring their like again."""
        if not self._stream:
            self._whole = self._answer.take_whole(some[0])
            return
        self._withheld += [chunk for chunk in some if self._answer.take_chunk(chunk)]
        if self._answer.has_begun:
            events = b"".join(map(self._surface.chunk, self._withheld))
            self._withheld = []
            await self._down.send(events)

    async def _finish(self) -> None:
        body = self._surface.end() if self._whole is None else self._surface.whole(self._whole)
        self._answered()
        await self._down.end(body)

    @property
    def _all_has_left(self) -> bool:
        """Whether only the end of the stream is missing: some clients leave with the finish_reason."""
        return self._stream and self._answer.finish_reason is not None

    def _answered(self) -> None:
        """The answer is whole."""
        answer, calls = self._answer, len(self._answer.tool_calls)
        self._call.answered(
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            tool_calls=calls,
            markup=bool(self._call.tools and not calls and markup.find(answer.text)),
        )
        self._write("answered", _OK)

    async def _end(self, end: End, status: int, error: str, body: bytes | None = None, *, told: str = "") -> None:
        """There is no answer, or no more of it."""
        self._write(end, self._status(status), error)
        with suppress(ConnectionError):  # nobody is there to be told
            await self._down.fail(status, told or error, body)

    def _status(self, otherwise: int | None) -> int | None:
        """What the scaffold has got, where it has got something."""
        return otherwise if self._down.response is None else self._down.response.status

    def _write(self, end: End, status: int | None, error: str = "") -> None:
        self._entry.ended(end, self._call, self._answer, status=status, error=error)
