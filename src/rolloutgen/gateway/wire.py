"""What vLLM's bytes say: whole answers, the chunks of a stream, errors. All raise TryFailedError and RefusedError."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Final

import aiohttp

from rolloutgen.gateway import jsons
from rolloutgen.gateway.answer import RAW_IDS
from rolloutgen.gateway.failures import SHOWN, RefusedError, TryFailedError, is_refusal
from rolloutgen.gateway.sse import DONE, Events

ANSWER_MAX_BYTES: Final = 256 * 2**20
_END_SEC: Final = 0.5
_OK: Final = 200
_LARGE_BYTES: Final = 16 * 2**10
_IDS: Final = b'"prompt_token_ids":['
"""In no text: quotes are escaped there."""
_BROKEN_OFF: Final = frozenset({"abort", "error"})
"""Reasons to finish that are the server's: an engine that is told to end gives half answers so, with status 200."""

type Json = dict[str, Any]


async def chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[Sequence[Json]]:
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
            await _end(response)
            break
    if not finished:
        raise TryFailedError("the stream ended before the answer did", status=_OK)


async def _end(response: aiohttp.ClientResponse) -> None:
    """The end of an HTTP body comes with its last event, and then the connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_END_SEC):
            await response.content.read()


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
    chunk = json_object(payload)
    if "error" in chunk:
        error = chunk["error"] if isinstance(chunk["error"], dict) else {}
        code = error.get("code")
        if isinstance(code, int) and is_refusal(code):
            raise RefusedError(code, payload)
        raise TryFailedError(f"error in the stream: {payload[:SHOWN].decode(errors='replace')}", status=_OK)
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise TryFailedError(f"no chunk of a stream: {payload[:SHOWN]!r}", status=_OK)
    for choice in choices:
        _check_end(choice)
    return chunk


def _finishes(chunk: Json) -> bool:
    return any(choice.get("finish_reason") for choice in chunk["choices"])


def whole(raw: bytes) -> Json:
    """A whole answer: one choice at least, with a message or a text."""
    answer = json_object(raw)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise TryFailedError(f"no completion: {raw[:SHOWN]!r}", status=_OK)
    if not isinstance(choices[0].get("message"), dict) and not isinstance(choices[0].get("text"), str):
        raise TryFailedError(f"a completion without message: {raw[:SHOWN]!r}", status=_OK)
    _check_end(choices[0])
    return answer


def _check_end(choice: Json) -> None:
    """The model came to its end, or to a limit: nothing else makes an answer whole."""
    if (reason := choice.get("finish_reason")) in _BROKEN_OFF:
        raise TryFailedError(f"the server broke the answer off (finish_reason {reason})", status=_OK)


def json_object(raw: bytes) -> Json:
    """Of an answer or a chunk. Prompt ids are cut out before: parsing a hundred thousand of them takes longer than all
    else, and the scaffold's first token would wait for it. They are kept as they are under ``RAW_IDS``."""
    ids = b""
    if len(raw) > _LARGE_BYTES and (begin := raw.find(_IDS) + len(_IDS)) > len(_IDS):
        end = raw.find(b"]", begin)
        raw, ids = b"%s null %s" % (raw[: begin - 1], raw[end + 1 :]), raw[begin:end]
    try:
        answer = jsons.loads(raw)
    except ValueError as error:
        raise TryFailedError(f"the answer is not JSON: {raw[:SHOWN]!r}", status=_OK) from error
    if not isinstance(answer, dict):
        raise TryFailedError(f"the answer is no JSON object: {raw[:SHOWN]!r}", status=_OK)
    return answer | {RAW_IDS: b"[%s]" % ids} if ids else answer


async def read(response: aiohttp.ClientResponse) -> bytes:
    parts, n_bytes = [], 0
    async for piece in response.content.iter_any():
        parts.append(piece)
        n_bytes += len(piece)
        if n_bytes > ANSWER_MAX_BYTES:
            raise TryFailedError(f"the answer has more than {ANSWER_MAX_BYTES} bytes", status=response.status)
    return b"".join(parts)


async def raise_for(response: aiohttp.ClientResponse) -> None:
    status, body = response.status, await read(response)
    if is_refusal(status):
        raise RefusedError(status, body)
    text = body.decode(errors="replace").strip()[:SHOWN]
    asked = response.headers.get("Retry-After", "")
    wait_sec = float(asked) if asked.isdecimal() else 0.0
    raise TryFailedError(f"HTTP {status}: {text}", status=status, retry_after_sec=wait_sec)
