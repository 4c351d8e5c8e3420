"""What a scaffold is: an agent program that works on one instruction in one sandbox, and the state it leaves behind.

A scaffold knows neither Harbor nor a backend: it sees a ``Workspace`` and its ``ModelEndpoint``, and keeps its
``State`` true at every await, because a time limit ends it by cancellation and what counts then is what stands there.
What is said is kept by the gateway, which also pins the sampling and lets calls wait for a server that is down.
"""

from dataclasses import dataclass, field
from typing import Protocol

from rolloutgen.models import ModelEndpoint
from rolloutgen.outcomes import Flag
from rolloutgen.sandbox.base import ExecResult


@dataclass(slots=True)
class State:
    """How far the agent came. ``turns`` counts model calls (None: it makes none).

    ``limit_sec`` is the time limit of the agent (None: none); ``ending`` how it ended by itself ('': it did not).
    """

    limit_sec: float | None = None
    turns: int | None = None
    flags: set[Flag] = field(default_factory=set)
    ending: str = ""


class Workspace(Protocol):
    """The sandbox, as the agent may use it."""

    async def exec(self, command: str, *, timeout_sec: float | None = None) -> ExecResult:
        """Run ``command`` as the agent's user in the working directory. Raises SandboxError and TransportError."""


class Scaffold(Protocol):
    """One agent program; an instance serves all attempts of a run."""

    name: str
    version: str

    async def run(self, instruction: str, workspace: Workspace, endpoint: ModelEndpoint, state: State) -> None:
        """Work until done, out of turns or out of context. ``endpoint`` is this attempt's alone, and short-lived.

        Raises AttemptError for what is not the agent's doing (``InferenceError`` of the last model call, errors of the
        workspace); any other exception is a bug. May be cancelled at every await.
        """

    async def close(self) -> None:
        """Release connections. Idempotent."""
