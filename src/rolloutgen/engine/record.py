"""What happens in one attempt, written down while it happens: the evidence grows here, and nothing is judged here."""

import asyncio
import errno
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutgen.engine.evidence import AGENT_TIMEOUT, Evidence, Failure, Phase
from rolloutgen.engine.rewards import RewardError, Rewards
from rolloutgen.errors import AttemptError, CommandLostError, NoSpaceError, StoreError
from rolloutgen.gateway.report import Report
from rolloutgen.models import Attempt, ModelEndpoint
from rolloutgen.outcomes import Flag
from rolloutgen.sandbox.base import ExecResult, Sandbox, SandboxReport
from rolloutgen.scaffold.base import State
from rolloutgen.transcript.lines import Transcript

_VERIFIER_OUTPUT: Final = "> /logs/verifier/test-stdout.txt"
"""How the verifier's script is known: Harbor sends its output there."""
_MESSAGE_MAX: Final = 4000
_TRACEBACK_MAX: Final = 8000
_DISK_REFUSED: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@dataclass(slots=True)
class Record:
    """The notes of one attempt. Sandboxes are entered before they start, so that none is ever forgotten.

    ``own_disk`` is what this machine's own disk refused (empty: nothing); a sandbox's own is in its report.
    ``endpoint`` is where the agent finds the model while it runs, ``model`` what the gateway knows of its calls
    afterwards; ``suspect_sec`` how long a silent server let it wait when its time was up.
    """

    attempt: Attempt
    state: State = field(default_factory=State)
    transcript: Transcript | None = None
    endpoint: ModelEndpoint | None = None
    model: Report | None = None
    suspect_sec: float = 0.0
    phase: Phase = Phase.PREPARE
    since: float = field(default_factory=time.monotonic)
    seconds: dict[Phase, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    sandboxes: list[Sandbox] = field(default_factory=list)
    reports: dict[int, SandboxReport] = field(default_factory=dict)
    separate: bool = False
    verify_begun: bool = False
    interrupted: bool = False
    own_disk: str = ""
    before_verify: SandboxReport = field(default_factory=SandboxReport)
    verifier_exec: ExecResult | None = None
    rewards: Rewards | RewardError | None = None
    _seen: list[BaseException] = field(default_factory=list)
    _removed: set[int] = field(default_factory=set)

    def enter(self, phase: Phase) -> None:
        """The attempt goes on to ``phase``; the seconds of each are added up."""
        now = time.monotonic()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self.since
        self.phase, self.since = phase, now

    def fail(self, error: BaseException) -> None:
        """Note ``error`` once, however often it is met on its way up."""
        if any(seen is error for seen in self._seen):
            return
        self._seen.append(error)
        self.own_disk = self.own_disk or _refused_by_disk(error)
        text = "".join(traceback.format_exception(error))
        self.failures.append(
            Failure(
                phase=self.phase,
                kind=type(error).__name__,
                message=str(error)[:_MESSAGE_MAX],
                cause=error.cause if isinstance(error, AttemptError) else None,
                command_lost=isinstance(error, CommandLostError),
                no_space=isinstance(error, NoSpaceError),
                origin=type(_origin(error)).__name__,
                traceback=text[-_TRACEBACK_MAX:],
            )
        )

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note an AttemptError that passes through."""
        try:
            yield
        except AttemptError as error:
            self.fail(error)
            raise

    def ended(self, command: str, result: ExecResult) -> None:
        """Note a command that has ended; of an agent without a model, the transcript says what it ran."""
        if result.truncated and self.phase is Phase.AGENT:
            self.state.flags.add(Flag.TRUNCATED)
        if self.phase is Phase.VERIFY and _VERIFIER_OUTPUT in command:
            self.verifier_exec = result
        if self.phase is Phase.AGENT and self.state.turns is None and self.transcript is not None:
            self.transcript.write(
                "command", command=command, exit_status=result.exit_status, timed_out=result.timed_out
            )

    async def take_reports(self) -> None:
        """Ask every sandbox that still stands for its evidence."""
        for number, sandbox in enumerate(self.sandboxes):
            if number not in self._removed:
                self.reports[number] = await sandbox.report()

    async def remove(self, sandbox: Sandbox) -> None:
        """Take its evidence, then remove it. Idempotent; raises SandboxError, which costs no verdict."""
        await self.take_reports()
        self._removed.add(self.sandboxes.index(sandbox))
        await sandbox.stop()

    @property
    def turns(self) -> int | None:
        """Model calls of the agent (None: it makes none): the gateway's count before the scaffold's."""
        return self.state.turns if self.model is None else self.model.turns

    @property
    def lost_inference_sec(self) -> float:
        return max(self.suspect_sec, 0.0 if self.model is None else self.model.suspect_sec)

    def ending(self) -> dict[str, Any]:
        """For the last line of a transcript: how it ended, as far as is known now."""
        self.interrupted = self.interrupted or is_cancelled()
        timed_out = any(failure.kind == AGENT_TIMEOUT for failure in self.failures)
        ended = self.state.ending or (Flag.AGENT_TIMEOUT.value if timed_out else self.phase.value)
        return {
            "ending": "interrupted" if self.interrupted else ended,
            "turns": self.turns,
            "flags": sorted(self.state.flags),
            "failures": [f"{failure.kind}: {failure.message}" for failure in self.failures],
        }

    def evidence(self) -> Evidence:
        """All that is known now."""
        agents = self.reports.get(0, SandboxReport())
        return Evidence(
            failures=tuple(self.failures),
            sandbox=agents,
            grading=self.reports.get(1),
            separate=self.separate,
            model=self.model,
            flags=frozenset(self.state.flags),
            agent_limit_sec=self.state.limit_sec,
            lost_inference_sec=self.lost_inference_sec,
            lost_sandbox_sec=agents.lost_sec,
            oom_before_verify=self.before_verify.oom,
            agent_begun=Phase.AGENT in self.seconds or self.phase is Phase.AGENT,
            verify_begun=self.verify_begun,
            verifier_status=None if self.verifier_exec is None else self.verifier_exec.exit_status,
            rewards=self.rewards,
        )


def is_cancelled() -> bool:
    """Whether somebody cancelled the attempt that runs here."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _refused_by_disk(error: BaseException | None) -> str:
    """What this machine's disk answered (empty: ``error`` does not come from that). Only writes get such answers.

    The gateway's disk is this machine's too: a transcript that it cannot begin is a StoreError by itself.
    """
    if isinstance(error, StoreError):
        return str(error)
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_REFUSED:
            return str(error)
        error = error.__cause__ or error.__context__
    return ""


def _origin(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
