"""Is the server that answers ours, and does it serve? (C22: others answer 200 to everything.)"""

from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from rolloutgen.errors import RolloutgenError

_QUICK: Final = aiohttp.ClientTimeout(total=10)
_OK, _UNAUTHORIZED, _UNAVAILABLE = 200, 401, 503
_SHOWN: Final = 300


class ProbeError(RolloutgenError):
    """The server that answers is not ours, or does not do its work."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks the server at ``root`` (no ``/v1``) for ``model_name`` with ``key``."""

    root: str
    model_name: str
    key: str

    async def healthy(self) -> bool:
        """Whether /health answers 200."""
        return await self._health() == _OK

    async def engine_is_dead(self) -> bool:
        """Whether /health of a server that was healthy says so; one that does not answer may be busy."""
        return await self._health() == _UNAVAILABLE

    async def check_identity(self) -> None:
        """It offers our name to our key, and nothing to any other. Raises ProbeError."""
        status, body = await self._models(self.key)
        names = [entry.get("id") for entry in body.get("data", [])] if isinstance(body, dict) else []
        if status != _OK or self.model_name not in names:
            raise ProbeError(f"{self.root}/v1/models answers {status} and offers {names}, not {self.model_name!r}")
        status, _ = await self._models(f"not-{self.key}")
        if status != _UNAUTHORIZED:
            raise ProbeError(f"{self.root} answers {status} to a wrong key, not 401: it is not the server we started")

    async def canary(self, timeout_sec: float) -> str:
        """One real completion; returns its text. Raises ProbeError where there is none."""
        body = {
            "model": self.model_name,
            "messages": [{"role": "user", "content": "Count from one to three."}],
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
        }
        status, answer = await self._post("/v1/chat/completions", body, timeout_sec)
        text = _text(answer)
        if status != _OK or not text:
            raise ProbeError(f"the first completion has no text; the server answered {status}: {str(answer)[:_SHOWN]}")
        return text

    async def _health(self) -> int | None:
        try:
            async with aiohttp.ClientSession(timeout=_QUICK) as session, session.get(f"{self.root}/health") as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _models(self, key: str) -> tuple[int, Any]:
        try:
            async with (
                aiohttp.ClientSession(timeout=_QUICK) as session,
                session.get(f"{self.root}/v1/models", headers=_authorization(key)) as answer,
            ):
                return answer.status, await _json(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProbeError(f"{self.root}/v1/models does not answer: {error!r}") from error

    async def _post(self, path: str, body: dict[str, object], timeout_sec: float) -> tuple[int, Any]:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_sec)) as session,
                session.post(self.root + path, json=body, headers=_authorization(self.key)) as answer,
            ):
                return answer.status, await _json(answer)
        except TimeoutError as error:
            raise ProbeError(f"the first completion took longer than {timeout_sec:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ProbeError(f"the first completion failed: {error!r}") from error


def _authorization(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def _json(answer: aiohttp.ClientResponse) -> Any:
    try:
        return await answer.json(content_type=None)
    except ValueError:
        return await answer.text()


def _text(answer: Any) -> str:
    """What the model said; models that think first may have got no further than that."""
    try:
        message = answer["choices"][0]["message"]
        return "".join(str(message.get(name) or "") for name in ("content", "reasoning", "reasoning_content")).strip()
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""
