"""What an attempt's end means: a pure function from evidence to decision, the table of design.md in code.

The order of the rules is the order of trust: our own record of the sandbox, of every call into it and of the model
calls comes before what Harbor made of an exception. Whatever no rule knows is ``Cause.INTERNAL``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rolloutgen.engine.evidence import AGENT_TIMEOUT, Evidence, Failure, Phase
from rolloutgen.engine.rewards import RewardError, Rewards
from rolloutgen.gateway.report import Report
from rolloutgen.outcomes import OUTAGE_SHARE, Cause, Flag, Result

KILLED: Final = 128 + 9
"""Exit status of a command that SIGKILL ended."""

_BY_KIND: Final[Mapping[str, Cause]] = {
    "EnvironmentStartTimeoutError": Cause.SANDBOX_START,
    "HealthcheckError": Cause.SANDBOX_START,
    "VerifierTimeoutError": Cause.VERIFIER_TIMEOUT,
    "AddTestsDirError": Cause.VERIFIER_START,
}
"""Harbor's exceptions that say by themselves what happened. Those about rewards do not: the file is read by us."""

_REWARD_KINDS: Final = frozenset({"RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"})
_BEFORE_SCRIPT: Final = frozenset({"RuntimeError", "FileNotFoundError"})
"""What Harbor raises where it cannot make ready for the verifier's script, or finds none."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The part of an Outcome that is a judgement; meanings as there."""

    result: Result
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    cause: Cause | None = None
    message: str = ""
    flags: tuple[Flag, ...] = ()


def decide(evidence: Evidence, pass_threshold: float) -> Decision:
    """The first rule that applies decides."""
    for rule in _RULES:
        decision = rule(evidence)
        if decision is not None:
            return decision
    if not isinstance(evidence.rewards, Rewards):
        return _error(Cause.INTERNAL, "the attempt ended without a reward, and nothing says why")
    return _verdict(evidence, evidence.rewards, pass_threshold)


def spoiled(evidence: Evidence) -> bool:
    """Whether grading could change nothing any more."""
    return any(rule(evidence) is not None for rule in _BEFORE_GRADING)


def _own_limit(evidence: Evidence) -> Decision | None:
    """The sandbox died of its own limit: the agent's doing before grading, the verifier's after it began."""
    died = evidence.sandbox
    if died.dead and died.own_fault and (evidence.separate or not evidence.verify_begun):
        if evidence.agent_begun:
            return Decision(Result.FAIL, flags=_flags(evidence))
        return _error(Cause.SANDBOX_START, f"the sandbox died of its own limit before the agent began: {died.dead}")
    grading = evidence.grading or died
    if evidence.verify_begun and grading.dead and grading.own_fault:
        return _error(Cause.VERIFIER_KILLED, f"the sandbox died of its own limit while grading: {grading.dead}")
    return None


def _no_room_to_grade(evidence: Evidence) -> Decision | None:
    """The agent left its sandbox so full that grading could not begin: the same as dying of its own limit."""
    begun = evidence.verify_begun and not evidence.separate and evidence.verifier_status is None
    if not begun or not any(failure.phase is Phase.VERIFY for failure in evidence.failures):
        return None
    no_memory = evidence.sandbox.oom > evidence.oom_before_verify
    no_disk = evidence.sandbox.disk_full and any(f.phase is Phase.VERIFY and f.no_space for f in evidence.failures)
    return Decision(Result.FAIL, flags=_flags(evidence)) if no_memory or no_disk else None


def _model_failed(evidence: Evidence) -> Decision | None:
    """The agent's last model call failed for our reasons, or the agent ended because of such a call."""
    model = evidence.model
    if model is None or not model.failure:
        return None
    return _error(Cause.MODEL_DOWN if model.server_down else Cause.MODEL_CALL, model.failure)


def _lost(evidence: Evidence) -> Decision | None:
    """A sandbox, a copy, an exec or the model was lost for reasons that are not the agent's."""
    failure = next((f for f in evidence.failures if _is_critical(f, evidence)), None)
    return None if failure is None or failure.cause is None else _error(failure.cause, failure.message)


def _unknown_before_grading(evidence: Evidence) -> Decision | None:
    """An exception of ours, or one nobody knows."""
    for failure in evidence.failures:
        if failure.phase is Phase.VERIFY or failure.cause is not None or failure.kind == AGENT_TIMEOUT:
            continue
        cause = _BY_KIND.get(failure.kind, Cause.INTERNAL)
        return _error(cause, f"{failure.kind} in phase {failure.phase}: {failure.message}")
    return None


def _verifier_killed(evidence: Evidence) -> Decision | None:
    report = evidence.grading or evidence.sandbox
    ooms = report.oom - (0 if evidence.grading else evidence.oom_before_verify)
    usable = isinstance(evidence.rewards, Rewards)
    if any(f.command_lost and f.phase is Phase.VERIFY for f in evidence.failures):
        return _error(Cause.VERIFIER_KILLED, "the verifier's script was killed: it left no exit status")
    if evidence.verifier_status == KILLED and (ooms > 0 or not usable):
        why = "at the sandbox's memory limit" if ooms > 0 else "from outside"
        return _error(Cause.VERIFIER_KILLED, f"the verifier's script was killed {why} (exit status {KILLED})")
    if evidence.verifier_status is not None and not usable and (ooms > 0 or report.disk_full):
        limit = "memory" if ooms > 0 else "disk"
        return _error(Cause.VERIFIER_KILLED, f"the verifier met the sandbox's {limit} limit and left no reward")
    return None


def _verifier_failed(evidence: Evidence) -> Decision | None:
    for failure in evidence.failures:
        if failure.phase is not Phase.VERIFY or _is_about_rewards(failure):
            continue
        unstarted = failure.kind in _BEFORE_SCRIPT and evidence.verifier_status is None
        known = _BY_KIND.get(failure.kind, Cause.VERIFIER_START if unstarted else Cause.INTERNAL)
        return _error(known, f"{failure.kind}: {failure.message}")
    return None


def _reward_unusable(evidence: Evidence) -> Decision | None:
    if isinstance(evidence.rewards, RewardError):
        status = evidence.verifier_status
        return _error(evidence.rewards.cause, f"{evidence.rewards} (exit status of the verifier: {status})")
    return None


_BEFORE_GRADING: Final = (_own_limit, _model_failed, _lost, _unknown_before_grading)
_RULES: Final[tuple[Callable[[Evidence], Decision | None], ...]] = (
    _no_room_to_grade,
    *_BEFORE_GRADING,
    _verifier_killed,
    _verifier_failed,
    _reward_unusable,
)


def _verdict(evidence: Evidence, rewards: Rewards, pass_threshold: float) -> Decision:
    flags = _flags(evidence)
    if rewards.value >= pass_threshold:
        return Decision(Result.PASS, rewards.value, rewards.all, flags=flags)
    lost = evidence.lost_inference_sec + evidence.lost_sandbox_sec
    limit = evidence.agent_limit_sec
    if Flag.AGENT_TIMEOUT in flags and limit is not None and lost > OUTAGE_SHARE * limit:
        inference = evidence.lost_inference_sec >= evidence.lost_sandbox_sec
        cause = Cause.OUTAGE_INFERENCE if inference else Cause.OUTAGE_SANDBOX
        return _error(cause, f"the agent timed out, and outages took {lost:.1f} s of its {limit:.0f} s")
    return Decision(Result.FAIL, rewards.value, rewards.all, flags=flags)


def _is_about_rewards(failure: Failure) -> bool:
    """What the reward's own reading says better: there is none, or no folder to look into."""
    no_folder = failure.kind == "DownloadVerifierDirError" and failure.origin == "FileNotFoundError"
    return failure.kind in _REWARD_KINDS or no_folder


def _is_critical(failure: Failure, evidence: Evidence) -> bool:
    """A copy of logs that fails costs no verdict; a copy of what is graded in another sandbox does."""
    if failure.cause is None:
        return False
    if failure.command_lost:
        return failure.phase not in {Phase.AGENT, Phase.COLLECT, Phase.VERIFY}
    return failure.phase is not Phase.COLLECT or evidence.separate


def _flags(evidence: Evidence) -> tuple[Flag, ...]:
    flags = set(evidence.flags)
    if any(f.kind == AGENT_TIMEOUT for f in evidence.failures):
        flags.add(Flag.AGENT_TIMEOUT)
    if any(f.command_lost and f.phase is Phase.AGENT for f in evidence.failures):
        flags.add(Flag.AGENT_CRASH)
    if evidence.sandbox.oom > 0:
        flags.add(Flag.OOM)
    if evidence.sandbox.disk_full:
        flags.add(Flag.DISK_FULL)
    if evidence.model is not None:
        flags |= {flag for flag, is_so in _seen_by_the_gateway(evidence.model) if is_so}
    return tuple(flag for flag in Flag if flag in flags)


def _seen_by_the_gateway(model: Report) -> Iterable[tuple[Flag, bool]]:
    yield Flag.INFERENCE_RETRY, model.retried
    yield Flag.CONTEXT_EXCEEDED, model.context_exceeded
    yield Flag.MAX_TURNS, model.max_turns


def _error(cause: Cause, message: str) -> Decision:
    return Decision(Result.ERROR, cause=cause, message=message)
