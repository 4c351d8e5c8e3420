"""The nouns: Instance, Trial, Attempt, Outcome. Frozen, plain types only; variants by ``dataclasses.replace``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rolloutgen.outcomes import RULES, Cause, ErrorKind, Flag, Result

SCHEMA_VERSION: Final = 1
"""Of outcome.json and run.json. A reader accepts every version whose stable fields it finds."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One row of the task index: a pointer to one Harbor task directory (``task_path`` is absolute)."""

    instance_id: str
    task_path: Path


@dataclass(frozen=True, slots=True)
class Trial:
    """Instance x trial number 0..N_TRIALS-1: the unit of the pass rate."""

    instance: Instance
    number: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a trial. ``number`` counts from 1 across launches; ``folder`` is its own and exists."""

    trial: Trial
    number: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Times:
    """When an attempt ran (UTC, ISO 8601) and where its seconds went (None: that phase was not reached).

    ``lost_sec`` is what outages of ours took of the agent's limit. Parts of ``agent_sec`` (None: no model was asked):
    ``model_sec`` at the model server, ``held_sec`` waiting for one that was down or failed, ``queued_sec`` for a place.
    """

    started_at: str
    finished_at: str
    sandbox_sec: float | None = None
    agent_sec: float | None = None
    verifier_sec: float | None = None
    lost_sec: float = 0.0
    model_sec: float | None = None
    held_sec: float | None = None
    queued_sec: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended; what outcome.json holds beside the identity of the attempt.

    ``reward`` is the number that is compared with PASS_THRESHOLD (None: no verdict, or a fail by the sandbox's
    own limit), ``rewards`` all that it wrote. ``cause`` and ``message`` are set for errors only. ``turns`` counts
    model calls of the agent (None: the scaffold has none). ``details`` is evidence for people: plain JSON types.
    """

    result: Result
    times: Times
    task_digest: str
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    cause: Cause | None = None
    message: str = ""
    flags: tuple[Flag, ...] = ()
    turns: int | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_verdict(self) -> bool:
        return self.result is not Result.ERROR

    @property
    def kind(self) -> ErrorKind | None:
        return None if self.cause is None else RULES[self.cause].kind

    @property
    def charged(self) -> bool:
        """Whether the attempt uses up one of ATTEMPTS_PER_TRIAL."""
        return self.cause is None or RULES[self.cause].charged

    @property
    def shared(self) -> bool:
        """Whether the cause hits all trials alike, so that new attempts must pause."""
        return self.cause is not None and RULES[self.cause].shared


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where scaffolds find the policy. ``base_url`` ends with ``/v1``; the key never shows in a repr."""

    base_url: str
    model_name: str
    api_key: str = field(repr=False)
