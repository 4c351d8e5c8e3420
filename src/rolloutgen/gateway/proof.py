"""What a gateway must know of model and server before the first attempt, asked once in a launch."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rolloutgen.errors import Finding, Level
from rolloutgen.gateway.canary import Canary, ServerLostError
from rolloutgen.gateway.failures import TryFailedError
from rolloutgen.gateway.pins import Pins
from rolloutgen.gateway.record import GatewayFailedError
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.tokenize import system_must_be_first
from rolloutgen.gateway.upstream import Upstream
from rolloutgen.scaffold import THOUGHT_READERS, TOOL_USERS
from rolloutgen.settings import Settings

_TRIES: Final = 3
_PAUSE_SEC: Final = 3.0
"""After an answer that did not come: vLLM's parent says what became of the server."""
_TOOL_TOKENS: Final = 2048


@dataclass(frozen=True, slots=True)
class Proof:
    """``findings`` are the canary's, a line each; ``system_first`` is said of the chat template (see ``Shared``)."""

    findings: tuple[str, ...]
    system_first: bool


async def prove(settings: Settings, key: str, server: ServerState, upstream: Upstream) -> Proof:
    """Waits for the server; one that is lost meanwhile is asked again when it is back.

    Raises GatewayFailedError with all findings where one is fatal, and where there is no server to ask.
    """
    for left in reversed(range(_TRIES)):
        await _ready(server)
        try:
            findings = _judged(await _canary(settings, key, server.base_url).sing())
            return Proof(findings, await system_must_be_first(Pins.of(settings), upstream))
        except (ServerLostError, TryFailedError) as error:
            if not left:
                raise GatewayFailedError(str(error)) from error
            await asyncio.sleep(_PAUSE_SEC)
    raise AssertionError  # the last one returns or raises


async def _ready(server: ServerState) -> None:
    while not server.ready:
        if server.gone:
            raise GatewayFailedError(f"the model server failed: {server.gone}")
        await server.changed(_PAUSE_SEC)


def _canary(settings: Settings, key: str, base_url: str) -> Canary:
    policy = settings.policy
    return Canary(
        base_url=base_url,
        key=key,
        model_name=policy.served_model_name,
        timeout_sec=policy.model_call_timeout_sec,
        reads_thoughts=settings.scaffold in THOUGHT_READERS,
        tools=settings.scaffold in TOOL_USERS or settings.tool_call_parser is not None,
        parser=settings.tool_call_parser or "",
        tool_tokens=min(policy.max_response_len, policy.vllm_max_model_len // 2, _TOOL_TOKENS),
        call_is_must=settings.tool_canary == "fatal",
    )


def _judged(findings: Sequence[Finding]) -> tuple[str, ...]:
    """A line each; gateway.json carries them to the launcher, who shows them."""
    lines = tuple(_line(finding) for finding in findings)
    fatal = [line for finding, line in zip(findings, lines, strict=True) if finding.level is Level.FATAL]
    if fatal:
        raise GatewayFailedError("; ".join(fatal), lines)
    return lines


def _line(finding: Finding) -> str:
    mend = f" -> {finding.mend}" if finding.mend else ""
    return f"{finding.level} {finding.subject}: {finding.message}{mend}"
