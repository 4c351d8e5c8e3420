"""What an error means: one table from the cause of an attempt's end to what is done about it.

Everything that decides whether an attempt counts, is charged to its trial, or pauses the run reads this table. A cause
that is not in it cannot be built, and an exception that names no cause is ``Cause.INTERNAL``: the unknown never counts.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Result(StrEnum):
    """How an attempt ended. Only ``PASS`` and ``FAIL`` are verdicts."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"


class ErrorKind(StrEnum):
    """The boundary at which an attempt without a verdict was lost."""

    SANDBOX = "sandbox"
    TRANSPORT = "transport"
    INFERENCE = "inference"
    VERIFIER = "verifier"
    INTERNAL = "internal"


class Flag(StrEnum):
    """A circumstance of a verdict; it never changes whether the verdict counts."""

    AGENT_TIMEOUT = "agent_timeout"
    MAX_TURNS = "max_turns"
    CONTEXT_EXCEEDED = "context_exceeded"
    AGENT_CRASH = "agent_crash"
    OOM = "oom"
    DISK_FULL = "disk_full"
    INFERENCE_RETRY = "inference_retry"
    TRUNCATED = "truncated"


class Cause(StrEnum):
    """Why an attempt has no verdict."""

    SANDBOX_START = "sandbox_start"
    SANDBOX_LOST = "sandbox_lost"
    SANDBOX_BUSY = "sandbox_busy"
    REGISTRY_LIMIT = "registry_limit"
    CONTROL_PLANE = "control_plane"
    TRANSPORT = "transport"
    MODEL_CALL = "model_call"
    MODEL_DOWN = "model_down"
    OUTAGE_INFERENCE = "outage_inference"
    OUTAGE_SANDBOX = "outage_sandbox"
    VERIFIER_START = "verifier_start"
    VERIFIER_TIMEOUT = "verifier_timeout"
    VERIFIER_KILLED = "verifier_killed"
    REWARD_MISSING = "reward_missing"
    REWARD_INVALID = "reward_invalid"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows from a cause.

    ``charged``: the attempt uses up one of the trial's ATTEMPTS_PER_TRIAL. ``shared``: the cause hits all trials alike,
    so new attempts pause (see ``scheduler``); a shared cause is never charged.
    """

    kind: ErrorKind
    charged: bool
    shared: bool


_TRIAL: Final = {"charged": True, "shared": False}
_EVERYONE: Final = {"charged": False, "shared": True}

RULES: Final[dict[Cause, Rule]] = {
    Cause.SANDBOX_START: Rule(ErrorKind.SANDBOX, **_TRIAL),
    Cause.SANDBOX_LOST: Rule(ErrorKind.SANDBOX, **_TRIAL),
    Cause.SANDBOX_BUSY: Rule(ErrorKind.SANDBOX, **_EVERYONE),
    Cause.REGISTRY_LIMIT: Rule(ErrorKind.SANDBOX, **_EVERYONE),
    Cause.CONTROL_PLANE: Rule(ErrorKind.SANDBOX, **_EVERYONE),
    Cause.TRANSPORT: Rule(ErrorKind.TRANSPORT, **_TRIAL),
    Cause.MODEL_CALL: Rule(ErrorKind.INFERENCE, **_TRIAL),
    Cause.MODEL_DOWN: Rule(ErrorKind.INFERENCE, **_EVERYONE),
    Cause.OUTAGE_INFERENCE: Rule(ErrorKind.INFERENCE, **_TRIAL),
    Cause.OUTAGE_SANDBOX: Rule(ErrorKind.SANDBOX, **_TRIAL),
    Cause.VERIFIER_START: Rule(ErrorKind.VERIFIER, **_TRIAL),
    Cause.VERIFIER_TIMEOUT: Rule(ErrorKind.VERIFIER, **_TRIAL),
    Cause.VERIFIER_KILLED: Rule(ErrorKind.VERIFIER, **_TRIAL),
    Cause.REWARD_MISSING: Rule(ErrorKind.VERIFIER, **_TRIAL),
    Cause.REWARD_INVALID: Rule(ErrorKind.VERIFIER, **_TRIAL),
    Cause.INTERNAL: Rule(ErrorKind.INTERNAL, **_TRIAL),
}
"""Every ``Cause`` has exactly one rule; a test holds it."""

OUTAGE_SHARE: Final = 0.05
"""Above this share of the agent's time limit lost to outages of ours, a timeout with a low reward is an error."""
