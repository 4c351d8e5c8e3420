"""What is known of an attempt when it has ended: the only input of the decision. Plain data; no Harbor."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rolloutgen.engine.rewards import RewardError, Rewards
from rolloutgen.gateway.report import Report
from rolloutgen.outcomes import Cause, Flag
from rolloutgen.sandbox.base import SandboxReport

AGENT_TIMEOUT: Final = "AgentTimeoutError"
"""The kind of the failure that says that the agent's time was up."""


class Phase(StrEnum):
    """Where in its life an attempt was. The check before grading and a separate verifier's sandbox belong to VERIFY."""

    PREPARE = "prepare"
    START = "start"
    AGENT = "agent"
    COLLECT = "collect"
    VERIFY = "verify"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Failure:
    """One exception, in the order of their coming.

    ``kind`` is its type's name, ``origin`` that of the exception it came from at first; ``cause`` what it names itself
    (None: it is not an AttemptError), ``command_lost`` that only the command is gone and the machine is healthy.
    """

    phase: Phase
    kind: str
    message: str
    cause: Cause | None = None
    command_lost: bool = False
    no_space: bool = False
    origin: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the decision may look at.

    ``sandbox`` is the report of the sandbox that the agent worked in, ``grading`` that of the one graded in, where it
    is another; ``oom_before_verify`` the memory kills that the agent had by itself. ``agent_begun`` and
    ``verify_begun`` say that it worked, and that grading started in a sandbox that had been checked.
    ``verifier_status`` is the exit status of the verifier's script (None: it did not end), ``rewards`` what was read
    (None: grading was not reached). ``model`` is what the gateway knows of its calls (None: it made none).
    ``lost_inference_sec`` and ``lost_sandbox_sec`` are seconds of the agent's limit that outages of ours took.
    """

    failures: tuple[Failure, ...] = ()
    sandbox: SandboxReport = field(default_factory=SandboxReport)
    grading: SandboxReport | None = None
    separate: bool = False
    model: Report | None = None
    flags: frozenset[Flag] = frozenset()
    agent_limit_sec: float | None = None
    lost_inference_sec: float = 0.0
    lost_sandbox_sec: float = 0.0
    oom_before_verify: int = 0
    agent_begun: bool = False
    verify_begun: bool = False
    verifier_status: int | None = None
    rewards: Rewards | RewardError | None = None
