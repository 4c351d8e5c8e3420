"""The gateway's HTTP side: the model's routes, open to live keys, and nothing else.

POST /v1/chat/completions, /v1/completions, /v1/messages, /v1/messages/count_tokens, /tokenize, /v1/tokenize;
GET /v1/models. Keys come as ``Authorization: Bearer`` or as ``x-api-key``.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.log import server_logger

from rolloutgen.gateway import anthropic, bodies, jsons
from rolloutgen.gateway.attempts import Attempts, AttemptState, KeyDeadError
from rolloutgen.gateway.errors import BadRequestError
from rolloutgen.gateway.exchange import Exchange, Shared
from rolloutgen.gateway.failures import RefusedError
from rolloutgen.gateway.hold import GivenUpError, Hold, held
from rolloutgen.gateway.pins import Pinned, pin_chat, pin_completion
from rolloutgen.gateway.surfaces import Messages, OpenAi, Surface
from rolloutgen.gateway.tokenize import count_tokens, tokenize

log: Final = logging.getLogger(__name__)
nobody: Final = logging.getLogger(f"{__name__}.outside")
"""Gets what aiohttp says of bytes that are no HTTP: keys may stand in them, and they come whenever a sandbox likes."""
nobody.disabled = True
IN_FLIGHT_MAX: Final = 64
"""Requests of one attempt at one time."""
BYTES_MAX: Final = 4 * bodies.MAX_BYTES
"""And their bodies together; one that does not tell its length counts as the largest."""
COUNTED_MAX_BYTES: Final = 8 * 2**20
"""Of a request for the tokens of a text: the answer is many times as large."""
_LARGE_BYTES: Final = 2**20
_READ_BYTES: Final = 2**20
_JSON: Final = "application/json"
_DOWN: Final = 503
_INTERNAL: Final = 500
_LEFT: Final = 499
"""For nobody: the client is not there any more."""

type Json = dict[str, Any]
type Handler = Callable[[web.Request, AttemptState], Awaitable[web.StreamResponse]]


def make_app(shared: Shared, attempts: Attempts, *, max_model_len: int) -> web.Application:
    """The application; ``max_model_len``: VLLM_MAX_MODEL_LEN. To be run by ``make_runner``."""
    return _Routes(shared, attempts, max_model_len).app()


def make_runner(app: web.Application, *, trusted: bool = False) -> web.AppRunner:
    """Its handlers are cancelled when their client leaves: the rest counts on that. ``trusted``: clients are ours."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=server_logger if trusted else nobody,
        shutdown_timeout=5.0,
        read_bufsize=_READ_BYTES,
    )


class _RefusedError(Exception):
    """The gateway's own answer to a request that goes no further."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class _Routes:
    def __init__(self, shared: Shared, attempts: Attempts, max_model_len: int) -> None:
        self._shared = shared
        self._attempts = attempts
        self._in_flight: Counter[AttemptState] = Counter()
        self._bytes: Counter[AttemptState] = Counter()
        self._large = asyncio.Lock()
        model = {"id": shared.pins.model, "object": "model", "created": 0, "owned_by": "rolloutgen"}
        self._listed = {"object": "list", "data": [model | {"max_model_len": max_model_len}]}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=bodies.MAX_BYTES)
        chat, text = OpenAi("chat"), OpenAi("completions")
        app.router.add_post("/v1/chat/completions", self._route(self._chat, chat))
        app.router.add_post("/v1/completions", self._route(self._completions, text))
        app.router.add_post("/v1/messages", self._route(self._messages, Messages("")))
        app.router.add_post("/v1/messages/count_tokens", self._route(self._count_tokens, Messages("")))
        app.router.add_post("/tokenize", self._route(self._tokenize, chat))
        app.router.add_post("/v1/tokenize", self._route(self._tokenize, chat))
        app.router.add_get("/v1/models", self._route(self._models, chat))
        app.router.add_route("*", "/{rest:.*}", _not_found)
        return app

    def _route(self, handler: Handler, surface: Surface) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """``handler`` for live keys, with what it refuses in the words of ``surface``."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                with self._admitted(request) as state:
                    return await handler(request, state)
            except Exception as error:
                status, body = _told(error, surface)
                if status == _INTERNAL:
                    log.exception("a request to %s failed in the gateway itself", request.path)
                return _answer(status, body)

        return handle

    @contextmanager
    def _admitted(self, request: web.Request) -> Iterator[AttemptState]:
        """Whose request it is, before its body is read."""
        state = self._attempts.find(_key(request.headers))
        if state is None:
            raise _RefusedError(401, "no live key: it is not known, or its attempt has ended")
        n_bytes = 0 if not request.body_exists else request.content_length or bodies.MAX_BYTES
        if self._in_flight[state] >= IN_FLIGHT_MAX or self._bytes[state] + n_bytes > BYTES_MAX:
            raise _RefusedError(429, f"more than {IN_FLIGHT_MAX} requests or {BYTES_MAX} bytes at one time")
        self._in_flight[state] += 1
        self._bytes[state] += n_bytes
        try:
            yield state
        finally:
            self._in_flight[state] -= 1
            self._bytes[state] -= n_bytes
            if not self._in_flight[state]:
                del self._in_flight[state], self._bytes[state]

    async def _chat(self, request: web.Request, state: AttemptState) -> web.StreamResponse:
        return await (await self._begin(request, state, self._pin_chat)).run()

    async def _completions(self, request: web.Request, state: AttemptState) -> web.StreamResponse:
        return await (await self._begin(request, state, self._pin_completion)).run()

    async def _messages(self, request: web.Request, state: AttemptState) -> web.StreamResponse:
        return await (await self._begin(request, state, self._pin_messages)).run()

    async def _begin(
        self, request: web.Request, state: AttemptState, pin: Callable[[Json], tuple[Surface, Pinned]]
    ) -> Exchange:
        raw = await _read(request)
        async with self._turn(len(raw)):
            return self._exchange(request, state, raw, pin)

    @asynccontextmanager
    async def _turn(self, n_bytes: int) -> AsyncIterator[None]:
        """To take a large body apart. All else waits meanwhile: so one at a time, and all others' turn between."""
        if n_bytes <= _LARGE_BYTES:
            yield
            return
        async with self._large:
            await asyncio.sleep(0)
            yield

    def _pin_chat(self, body: Json) -> tuple[Surface, Pinned]:
        bodies.check_chat(body)
        return OpenAi("chat"), pin_chat(body, self._shared.pins)

    def _pin_completion(self, body: Json) -> tuple[Surface, Pinned]:
        bodies.check_completion(body)
        return OpenAi("completions"), pin_completion(body, self._shared.pins)

    def _pin_messages(self, body: Json) -> tuple[Surface, Pinned]:
        chat = anthropic.to_chat(body, system_first=self._shared.system_first)
        bodies.check_chat(chat)
        return Messages(str(body.get("model"))), pin_chat(chat, self._shared.pins).asked_as(body)

    def _exchange(
        self, request: web.Request, state: AttemptState, raw: bytes, pin: Callable[[Json], tuple[Surface, Pinned]]
    ) -> Exchange:
        """One call of the model that begins. Of an attempt with tools, one without is none of the agent's own turns.

        The many forms of a large body must be gone while the model takes its time.
        """
        if state.recorder.is_full:
            raise _RefusedError(413, "this attempt has said more than any transcript holds")
        surface, pinned = pin(bodies.parse(raw))
        data, tools = bodies.encoded(pinned.sent, pinned.asked), "tools" in pinned.sent
        side, allowed = state.uses_tools and not tools, state.turns_left()
        call = state.begin(side=side, tools=tools)
        if not (side or allowed):
            call.refused(max_turns=True)
            raise _RefusedError(400, f"this attempt has had its {state.max_turns} turns (MAX_TURNS)")
        return Exchange(self._shared, request, state, call, surface, pinned, data)

    async def _count_tokens(self, request: web.Request, state: AttemptState) -> web.StreamResponse:
        shared, body = self._shared, await self._parsed(request)
        asked = partial(count_tokens, body, shared.pins, shared.upstream, system_first=shared.system_first)
        return await self._beside(state, asked)

    async def _tokenize(self, request: web.Request, state: AttemptState) -> web.StreamResponse:
        body = await self._parsed(request)
        return await self._beside(state, partial(tokenize, body, self._shared.pins, self._shared.upstream))

    async def _beside(self, state: AttemptState, ask: Callable[[], Awaitable[Mapping[str, Any]]]) -> web.Response:
        """A question about tokens: no turn, and not in the transcript, but held like a call, and its wait is told."""
        call = state.begin(side=True, tools=False)
        hold = Hold(self._shared.server, call, self._shared.hold_sec, self._shared.first_wait_sec)
        return _answer(200, jsons.dumps(await held(hold, call, ask)))

    async def _parsed(self, request: web.Request) -> Json:
        """The body of a question about tokens."""
        raw = await _read(request)
        if len(raw) > COUNTED_MAX_BYTES:
            raise _RefusedError(413, f"no more than {COUNTED_MAX_BYTES} bytes are counted")
        async with self._turn(len(raw)):
            return bodies.parse(raw)

    async def _models(self, _: web.Request, __: AttemptState) -> web.StreamResponse:
        return _answer(200, jsons.dumps(self._listed))


def _told(error: Exception, surface: Surface) -> tuple[int, bytes]:
    """Status and body of the answer to a request that went no further."""
    match error:
        case RefusedError():
            return error.status, surface.refusal(error)
        case _RefusedError() | BadRequestError():
            status, text = error.status, str(error)
        case KeyDeadError():
            status, text = 401, "no live key: its attempt has ended"
        case web.HTTPRequestEntityTooLarge():
            status, text = 413, f"the request is larger than {bodies.MAX_BYTES} bytes"
        case GivenUpError():
            status, text = _DOWN, "the model server does not answer"
        case ConnectionError():
            status, text = _LEFT, "the client has left"
        case _:
            status, text = _INTERNAL, "internal error of the gateway"
    return status, surface.error(status, text)


async def _read(request: web.Request) -> bytes:
    """The body; ``request.read()`` would keep it for as long as the model takes."""
    parts, n_bytes = [], 0
    async for piece in request.content.iter_any():
        parts.append(piece)
        n_bytes += len(piece)
        if n_bytes > bodies.MAX_BYTES:
            raise web.HTTPRequestEntityTooLarge(bodies.MAX_BYTES, n_bytes)
    return b"".join(parts)


async def _not_found(_: web.Request) -> web.StreamResponse:
    return _answer(404, OpenAi("chat").error(404, "there is nothing here"))


def _answer(status: int, body: bytes) -> web.Response:
    headers = {"Retry-After": "1"} if status == 429 else {}  # noqa: PLR2004 - too many requests
    return web.Response(status=status, body=body, content_type=_JSON, headers=headers)


def _key(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
