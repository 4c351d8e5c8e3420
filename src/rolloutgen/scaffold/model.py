"""Calls to the model server: chat completions, with the run's sampling parameters in every request.

What can heal is asked again within a bound (refused, reset, 5xx, 429, a hung or garbled answer), with jitter and
honouring Retry-After; then it is an ``InferenceError``, shared by all where the server cannot be reached at all.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from rolloutgen.errors import InferenceError
from rolloutgen.models import ModelEndpoint
from rolloutgen.outcomes import Cause, Flag
from rolloutgen.scaffold.base import State
from rolloutgen.settings import Policy
from rolloutgen.transcript.lines import Message, now

TRIES: Final = 6
FIRST_WAIT_SEC: Final = 0.5
_WAIT_MAX_SEC: Final = 20.0
_PROBE_SEC: Final = 10.0
_AGAIN: Final = frozenset({408, 409, 425, 429})
_CONTEXT: Final = re.compile(
    r"maximum (context|model|input) length|context.length|max_model_len|context window|too many tokens"
    r"|prompt is too long|longer than the maximum",
    re.IGNORECASE,
)
"""Wordings of servers for a request that does not fit."""


class ContextExceededError(Exception):
    """The conversation does not fit into the model's context any more."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. ``full`` says that it ended because the context was full; ``call`` is what the transcript keeps."""

    text: str
    finish_reason: str
    full: bool
    call: Mapping[str, Any]


@dataclass(slots=True)
class _Tries:
    """The HTTP tries of one call. ``since`` is when trouble began (monotonic; None: there was none)."""

    log: list[dict[str, Any]] = field(default_factory=list)
    since: float | None = None
    unreachable: bool = False

    def failed(self, began: float, why: str) -> None:
        self.log.append({"error": why, "sec": round(time.monotonic() - began, 3)})
        if self.since is None:
            self.since = began


class _TryAgain(Exception):  # noqa: N818 - not an error yet
    def __init__(self, why: str, *, wait_sec: float = 0.0, unreachable: bool = False) -> None:
        self.wait_sec = wait_sec
        self.unreachable = unreachable
        super().__init__(why)


class ModelClient:
    """The one client of a run: its connections are shared by all attempts."""

    def __init__(
        self, endpoint: ModelEndpoint, policy: Policy, n_concurrent: int, *, first_wait_sec: float = FIRST_WAIT_SEC
    ) -> None:
        """``first_wait_sec`` before the second try; each later wait is twice as long."""
        self._first_wait_sec = first_wait_sec
        self._endpoint = endpoint
        self._context_len = policy.vllm_max_model_len
        self._timeout_sec = policy.model_call_timeout_sec
        self._connections = n_concurrent + 4
        self._session: aiohttp.ClientSession | None = None
        self.parameters: Final[Mapping[str, Any]] = {
            "model": endpoint.model_name,
            "temperature": policy.temperature,
            "top_p": policy.top_p,
            "top_k": policy.top_k,
            "min_p": policy.min_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "n": 1,
            "max_tokens": policy.max_response_len,
            "stream": False,
        }

    async def complete(self, messages: Sequence[Message], stop: str, state: State, *, continues: bool = False) -> Reply:
        """Ask for the next message, or (``continues``) for the rest of the last one, up to ``stop`` (left out).

        Raises InferenceError and ContextExceededError. Waits on failing tries are added to ``state.lost_sec``.
        """
        body: dict[str, Any] = {**self.parameters, "messages": list(messages), "stop": [stop]}
        if continues:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        tries, started_at, began = _Tries(), now(), time.monotonic()
        lost_until: float | None = None
        try:
            answer, last_began = await self._ask(body, tries)
            lost_until = last_began
        finally:
            if tries.since is not None:
                state.lost_sec += (lost_until or time.monotonic()) - tries.since
        if tries.since is not None:
            state.flags.add(Flag.INFERENCE_RETRY)
        sec = round(time.monotonic() - began, 3)
        call = {"stop": stop, "continues": continues, "started_at": started_at, "sec": sec, "tries": tries.log}
        return self._reply(answer, call)

    async def close(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _reply(self, answer: Mapping[str, Any], call: dict[str, Any]) -> Reply:
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        reason = str(choice.get("finish_reason"))
        used = (usage.get("prompt_tokens") or 0) + (usage.get("completion_tokens") or 0)
        call |= {"id": answer.get("id"), "finish_reason": reason, "usage": usage}
        full = reason == "length" and used >= self._context_len
        return Reply(choice["message"]["content"] or "", reason, full, call)

    async def _ask(self, body: Mapping[str, Any], tries: _Tries) -> tuple[Mapping[str, Any], float]:
        """The answer, and when the try began that brought it."""
        data = json.dumps(body).encode()
        for number in range(TRIES):
            began = time.monotonic()
            try:
                answer = await self._post(data)
            except _TryAgain as error:
                tries.failed(began, str(error))
                tries.unreachable = error.unreachable
                if number + 1 < TRIES:
                    await asyncio.sleep(max(self._wait_sec(number), min(error.wait_sec, _WAIT_MAX_SEC)))
            else:
                tries.log.append({"status": 200, "sec": round(time.monotonic() - began, 3)})
                return answer, began
        down = tries.unreachable or not await self._is_alive()
        why = tries.log[-1]["error"]
        raise InferenceError(
            f"{TRIES} tries of a model call failed, the last one so: {why}",
            Cause.MODEL_DOWN if down else Cause.MODEL_CALL,
        )

    def _wait_sec(self, number: int) -> float:
        longest = min(self._first_wait_sec * 2.0**number, _WAIT_MAX_SEC)
        return random.uniform(0.5, 1.0) * longest  # noqa: S311 - spreads load; nothing secret

    async def _post(self, data: bytes) -> Mapping[str, Any]:
        url = f"{self._endpoint.base_url}/chat/completions"
        try:
            async with self._open().post(url, data=data) as response:
                text = await response.text(errors="replace")
                if response.status != 200:  # noqa: PLR2004 - OK
                    _refuse(response.status, text, response.headers.get("Retry-After", ""))
                return _checked(text)
        except TimeoutError as error:
            raise _TryAgain(f"no answer within {self._timeout_sec:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise _TryAgain(f"cannot connect: {error}", unreachable=True) from error
        except aiohttp.ClientError as error:
            raise _TryAgain(f"connection lost: {error!r}") from error

    async def _is_alive(self) -> bool:
        """Whether the server answers at all; any answer does."""
        url = self._endpoint.base_url.removesuffix("/v1") + "/health"
        try:
            async with self._open().get(url, timeout=aiohttp.ClientTimeout(total=_PROBE_SEC)):
                return True
        except (TimeoutError, aiohttp.ClientError):
            return False

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            key = self._endpoint.api_key
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                timeout=aiohttp.ClientTimeout(total=self._timeout_sec, sock_connect=_PROBE_SEC),
                headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            )
        return self._session


def _refuse(status: int, text: str, retry_after: str) -> None:
    """Raise what an answer other than 200 means."""
    why = f"HTTP {status}: {text.strip()[:500]}"
    if status >= 500 or status in _AGAIN:  # noqa: PLR2004 - the server's own errors
        raise _TryAgain(why, wait_sec=float(retry_after) if retry_after.isdigit() else 0.0)
    if status in {400, 413, 422} and _CONTEXT.search(text):
        raise ContextExceededError(why)
    raise InferenceError(f"the model server refuses the request ({why})")


def _checked(text: str) -> Mapping[str, Any]:
    """The answer, where it has the shape of one."""
    try:
        answer = json.loads(text)
        content = answer["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise _TryAgain(f"the answer is no chat completion: {text[:200]!r}") from error
    if not isinstance(content, str | None):
        raise _TryAgain(f"the answer's content is no text: {content!r:.200}")
    return answer  # type: ignore[no-any-return]  # its shape was just checked
