"""Calls to the model, by the OpenAI API of the gateway, which pins what is sampled, sends again, and keeps everything.

So a call here is one request. It waits for as long as the gateway holds it: one that is gone resets the connection.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from rolloutgen.errors import InferenceError
from rolloutgen.models import ModelEndpoint
from rolloutgen.settings import Policy

type Message = dict[str, Any]
"""A chat message: role and content."""

_CONNECT_SEC: Final = 30.0
_OK: Final = 200
_CONTEXT_FULL: Final = "context_length_exceeded"
"""The code of an error that says that the request does not fit, whatever the server's words."""


class ContextExceededError(Exception):
    """The conversation does not fit into the model's context any more."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. ``full`` says that it ended because the context was full."""

    text: str
    finish_reason: str
    full: bool


class ModelClient:
    """The one client of a run: its connections are shared by all attempts, each of which has its own key."""

    def __init__(self, policy: Policy, n_concurrent: int) -> None:
        self._context_len = policy.vllm_max_model_len
        self._max_tokens = policy.max_response_len
        self._connections = n_concurrent + 4
        self._session: aiohttp.ClientSession | None = None

    async def complete(
        self, endpoint: ModelEndpoint, messages: Sequence[Message], stop: str, *, continues: bool = False
    ) -> Reply:
        """Ask for the next message, or (``continues``) for the rest of the last one, up to ``stop`` (left out).

        Raises InferenceError and ContextExceededError.
        """
        body = {
            "model": endpoint.model_name,
            "messages": list(messages),
            "stop": [stop],
            "max_tokens": self._max_tokens,
        }
        if continues:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return self._reply(_checked(await self._post(endpoint, json.dumps(body).encode())))

    async def close(self) -> None:
        """Idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _reply(self, answer: Mapping[str, Any]) -> Reply:
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        reason = str(choice.get("finish_reason"))
        used = (usage.get("prompt_tokens") or 0) + (usage.get("completion_tokens") or 0)
        return Reply(choice["message"]["content"] or "", reason, reason == "length" and used >= self._context_len)

    async def _post(self, endpoint: ModelEndpoint, data: bytes) -> str:
        url = f"{endpoint.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
        try:
            async with self._open().post(url, data=data, headers=headers) as response:
                text = await response.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InferenceError(f"the connection to the gateway is lost: {error!r}") from error
        if response.status != _OK:
            _refuse(response.status, text)
        return text

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SEC),
            )
        return self._session


def _refuse(status: int, text: str) -> None:
    """Raise what an answer other than 200 means."""
    why = f"HTTP {status}: {text.strip()[:500]}"
    if _code(text) == _CONTEXT_FULL:
        raise ContextExceededError(why)
    raise InferenceError(f"a model call failed ({why})")


def _code(text: str) -> object:
    try:
        return json.loads(text)["error"]["code"]
    except (ValueError, LookupError, TypeError):
        return None


def _checked(text: str) -> Mapping[str, Any]:
    """The answer, where it has the shape of one."""
    try:
        answer = json.loads(text)
        content = answer["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise InferenceError(f"the answer is no chat completion: {text[:200]!r}") from error
    if not isinstance(content, str | None):
        raise InferenceError(f"the answer's content is no text: {content!r:.200}")
    return answer  # type: ignore[no-any-return]  # its shape was just checked
