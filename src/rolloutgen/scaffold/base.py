"""What a scaffold is: an agent program that works on one instruction in one sandbox, and the state it leaves behind.

A scaffold knows neither Harbor nor a backend: it sees a ``Workspace``, writes the ``Transcript`` and keeps its
``State`` true at every await, because a time limit ends it by cancellation and what counts then is what stands there.
"""

from dataclasses import dataclass, field
from typing import Protocol

from rolloutgen.outcomes import Flag
from rolloutgen.sandbox.base import ExecResult
from rolloutgen.transcript.lines import Transcript


@dataclass(slots=True)
class State:
    """How far the agent came. ``turns`` counts model calls (None: it makes none), ``lost_sec`` waits on failing ones.

    ``limit_sec`` is the time limit of the agent (None: none); ``ending`` how it ended by itself ('': it did not).
    """

    limit_sec: float | None = None
    turns: int | None = None
    lost_sec: float = 0.0
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

    async def run(self, instruction: str, workspace: Workspace, transcript: Transcript, state: State) -> None:
        """Work until done, out of turns or out of context.

        Raises AttemptError for what is not the agent's doing (``InferenceError`` of the last model call, errors of the
        workspace); any other exception is a bug. May be cancelled at every await.
        """

    async def close(self) -> None:
        """Release connections. Idempotent."""
