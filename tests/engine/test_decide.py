"""What an error means: every row of the table, as evidence and decision (C1, C5, C8)."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.engine.decide import decide, spoiled
from rolloutgen.engine.evidence import Evidence, Failure, Phase
from rolloutgen.engine.rewards import RewardError, Rewards
from rolloutgen.gateway.report import Report
from rolloutgen.outcomes import Cause, Flag, Result
from rolloutgen.sandbox.base import SandboxReport

ONE, ZERO = Rewards(1.0, {"reward": 1.0}), Rewards(0.0, {"reward": 0.0})
MISSING = RewardError(Cause.REWARD_MISSING, "no file")
INVALID = RewardError(Cause.REWARD_INVALID, "reward.txt holds nan")
GRADED = Evidence(agent_begun=True, verify_begun=True, verifier_status=0, rewards=ONE, agent_limit_sec=100.0)
FAILED = replace(GRADED, rewards=ZERO)
OWN_DEATH = SandboxReport(oom=1, dead="the first process was killed", own_fault=True)
LOST = SandboxReport(dead="the node is gone")


def failure(phase: Phase, kind: str, cause: Cause | None = None, **facts: bool) -> Failure:
    return Failure(phase, kind, "what happened", cause, **facts)


TIMEOUT = failure(Phase.AGENT, "AgentTimeoutError")
COMMAND_LOST = {"kind": "CommandLostError", "cause": Cause.TRANSPORT, "command_lost": True}


def graded(*failures: Failure, rewards: Rewards | RewardError | None = ZERO, **changes: object) -> Evidence:
    return replace(GRADED, failures=failures, rewards=rewards, **changes)  # type: ignore[arg-type]  # fields by name


def ungraded(*failures: Failure, **changes: object) -> Evidence:
    changes = {"agent_begun": True, **changes}
    return Evidence(failures=failures, agent_limit_sec=100.0, **changes)  # type: ignore[arg-type]  # fields by name


VERDICTS = {
    "reward 1": (GRADED, Result.PASS, ()),
    "reward 0": (FAILED, Result.FAIL, ()),
    "C1: agent timeout, reward 1": (graded(TIMEOUT, rewards=ONE), Result.PASS, (Flag.AGENT_TIMEOUT,)),
    "C1: agent timeout, reward 0": (graded(TIMEOUT), Result.FAIL, (Flag.AGENT_TIMEOUT,)),
    "out of turns": (graded(flags=frozenset({Flag.MAX_TURNS})), Result.FAIL, (Flag.MAX_TURNS,)),
    "C8: out of context": (
        graded(flags=frozenset({Flag.CONTEXT_EXCEEDED})),
        Result.FAIL,
        (Flag.CONTEXT_EXCEEDED,),
    ),
    "the agent killed its own command": (
        graded(failure(Phase.AGENT, **COMMAND_LOST), rewards=ONE),
        Result.PASS,
        (Flag.AGENT_CRASH,),
    ),
    "a process of the agent met the memory limit": (
        graded(sandbox=SandboxReport(oom=2), oom_before_verify=2, rewards=ONE),
        Result.PASS,
        (Flag.OOM,),
    ),
    "a process of the tests met the memory limit, and the script went on": (
        graded(sandbox=SandboxReport(oom=1)),
        Result.FAIL,
        (Flag.OOM,),
    ),
    "the script ended with 137 by itself": (graded(verifier_status=137), Result.FAIL, ()),
    "timeout, small outage": (graded(TIMEOUT, lost_inference_sec=5.0), Result.FAIL, (Flag.AGENT_TIMEOUT,)),
    "timeout, long outage, reward 1": (
        graded(TIMEOUT, rewards=ONE, lost_inference_sec=50.0),
        Result.PASS,
        (Flag.AGENT_TIMEOUT,),
    ),
    "long outage, but the agent came to its end": (graded(lost_inference_sec=50.0), Result.FAIL, ()),
    "an earlier model call failed, and the agent or the call went on": (
        graded(model=Report(turns=3, retried=True, held_sec=80.0)),
        Result.FAIL,
        (Flag.INFERENCE_RETRY,),
    ),
    "C8: out of context, as the gateway saw it": (
        graded(model=Report(context_exceeded=True), rewards=ONE),
        Result.PASS,
        (Flag.CONTEXT_EXCEEDED,),
    ),
    "out of turns, as the gateway counted them": (graded(model=Report(max_turns=True)), Result.FAIL, (Flag.MAX_TURNS,)),
    "held and queued time is not lost time": (
        graded(TIMEOUT, model=Report(held_sec=90.0, queued_sec=90.0)),
        Result.FAIL,
        (Flag.AGENT_TIMEOUT,),
    ),
    "own memory limit before grading": (
        ungraded(failure(Phase.AGENT, "SandboxError", Cause.SANDBOX_LOST), sandbox=OWN_DEATH),
        Result.FAIL,
        (Flag.OOM,),
    ),
    "own disk limit before grading": (
        ungraded(sandbox=SandboxReport(disk_full=True, dead="no space", own_fault=True)),
        Result.FAIL,
        (Flag.DISK_FULL,),
    ),
    "no room for the tests": (
        graded(
            failure(Phase.VERIFY, "NoSpaceError", Cause.SANDBOX_LOST, no_space=True),
            failure(Phase.VERIFY, "AddTestsDirError"),
            sandbox=SandboxReport(disk_full=True),
            rewards=None,
            verifier_status=None,
        ),
        Result.FAIL,
        (Flag.DISK_FULL,),
    ),
    "no memory to make ready for the tests": (
        graded(
            failure(Phase.VERIFY, "RuntimeError"),
            sandbox=SandboxReport(oom=3),
            oom_before_verify=2,
            rewards=None,
            verifier_status=None,
        ),
        Result.FAIL,
        (Flag.OOM,),
    ),
    "a log could not be copied": (
        graded(failure(Phase.COLLECT, "TransportError", Cause.TRANSPORT), rewards=ONE),
        Result.PASS,
        (),
    ),
}

SANDBOX, VERIFY = failure(Phase.START, "SandboxError", Cause.SANDBOX_START), Phase.VERIFY
ERRORS = {
    "the sandbox does not start": (Evidence(failures=(SANDBOX,)), Cause.SANDBOX_START),
    "a registry's limit": (
        Evidence(failures=(failure(Phase.START, "SandboxError", Cause.REGISTRY_LIMIT),)),
        Cause.REGISTRY_LIMIT,
    ),
    "the start takes too long": (
        Evidence(failures=(failure(Phase.START, "EnvironmentStartTimeoutError"),)),
        Cause.SANDBOX_START,
    ),
    "the health check fails": (Evidence(failures=(failure(Phase.START, "HealthcheckError"),)), Cause.SANDBOX_START),
    "it dies of its own limit before the agent": (
        Evidence(failures=(SANDBOX,), sandbox=OWN_DEATH),
        Cause.SANDBOX_START,
    ),
    "the node is lost while the agent works": (
        ungraded(failure(Phase.AGENT, "SandboxError", Cause.SANDBOX_LOST), sandbox=LOST),
        Cause.SANDBOX_LOST,
    ),
    "C5: another machine before grading": (
        ungraded(failure(VERIFY, "SandboxError", Cause.SANDBOX_LOST)),
        Cause.SANDBOX_LOST,
    ),
    "the machine is lost while grading": (
        graded(failure(VERIFY, "SandboxError", Cause.SANDBOX_LOST), rewards=None),
        Cause.SANDBOX_LOST,
    ),
    "an exec is lost while the agent works": (
        ungraded(failure(Phase.AGENT, "TransportError", Cause.TRANSPORT)),
        Cause.TRANSPORT,
    ),
    "a copy is lost while grading": (
        graded(failure(VERIFY, "TransportError", Cause.TRANSPORT), rewards=None),
        Cause.TRANSPORT,
    ),
    "what is graded elsewhere could not be copied": (
        graded(failure(Phase.COLLECT, "TransportError", Cause.TRANSPORT), separate=True),
        Cause.TRANSPORT,
    ),
    "a setup command is lost": (
        Evidence(failures=(failure(Phase.START, **COMMAND_LOST),)),
        Cause.TRANSPORT,
    ),
    "a model call fails": (ungraded(failure(Phase.AGENT, "InferenceError", Cause.MODEL_CALL)), Cause.MODEL_CALL),
    "the model server is down": (
        ungraded(failure(Phase.AGENT, "InferenceError", Cause.MODEL_DOWN)),
        Cause.MODEL_DOWN,
    ),
    "the last model call failed for our reasons, whatever was graded": (
        graded(rewards=ONE, model=Report(turns=5, failure="HTTP 500")),
        Cause.MODEL_CALL,
    ),
    "the last model call failed since the server is down": (
        graded(TIMEOUT, model=Report(failure="held for 1800 s", server_down=True)),
        Cause.MODEL_DOWN,
    ),
    "a scaffold that lost its connection says less than the gateway": (
        ungraded(
            failure(Phase.AGENT, "InferenceError", Cause.MODEL_CALL), model=Report(failure="gone", server_down=True)
        ),
        Cause.MODEL_DOWN,
    ),
    "timeout, long outage of the model": (graded(TIMEOUT, lost_inference_sec=5.1), Cause.OUTAGE_INFERENCE),
    "timeout, long outage of the sandbox": (
        graded(TIMEOUT, lost_inference_sec=2.0, lost_sandbox_sec=4.0),
        Cause.OUTAGE_SANDBOX,
    ),
    "the verifier's time is up": (
        graded(failure(VERIFY, "VerifierTimeoutError"), rewards=None, verifier_status=None),
        Cause.VERIFIER_TIMEOUT,
    ),
    "the verifier's time is up after the agent's": (
        graded(TIMEOUT, failure(VERIFY, "VerifierTimeoutError"), rewards=None, verifier_status=None),
        Cause.VERIFIER_TIMEOUT,
    ),
    "the verifier's script meets the memory limit": (
        graded(sandbox=SandboxReport(oom=1), verifier_status=137),
        Cause.VERIFIER_KILLED,
    ),
    "a part of the verifier meets the memory limit, no reward": (
        graded(sandbox=SandboxReport(oom=1), rewards=MISSING, verifier_status=1),
        Cause.VERIFIER_KILLED,
    ),
    "the disk is full, no reward": (
        graded(sandbox=SandboxReport(disk_full=True), rewards=MISSING),
        Cause.VERIFIER_KILLED,
    ),
    "the verifier is killed from outside": (graded(rewards=MISSING, verifier_status=137), Cause.VERIFIER_KILLED),
    "the verifier's command is gone": (
        graded(failure(VERIFY, **COMMAND_LOST), rewards=None, verifier_status=None),
        Cause.VERIFIER_KILLED,
    ),
    "the sandbox dies of its limit while grading": (
        graded(failure(VERIFY, "SandboxError", Cause.SANDBOX_LOST), sandbox=OWN_DEATH, rewards=None),
        Cause.VERIFIER_KILLED,
    ),
    "the verifier's own sandbox dies of its limit": (
        graded(grading=OWN_DEATH, separate=True, rewards=None),
        Cause.VERIFIER_KILLED,
    ),
    "the verifier could not start, and the agent had met its limits before": (
        graded(
            failure(VERIFY, "AddTestsDirError"),
            sandbox=SandboxReport(oom=2, disk_full=True),
            oom_before_verify=2,
            rewards=None,
            verifier_status=None,
        ),
        Cause.VERIFIER_START,
    ),
    "the verifier could not start": (
        graded(failure(VERIFY, "AddTestsDirError"), rewards=None, verifier_status=None),
        Cause.VERIFIER_START,
    ),
    "the verifier's script could not be made ready": (
        graded(failure(VERIFY, "RuntimeError"), rewards=None, verifier_status=None),
        Cause.VERIFIER_START,
    ),
    "no folder of rewards": (
        graded(Failure(VERIFY, "DownloadVerifierDirError", "", origin="FileNotFoundError"), rewards=MISSING),
        Cause.REWARD_MISSING,
    ),
    "a bug while copying rewards": (
        graded(Failure(VERIFY, "DownloadVerifierDirError", "", origin="OSError"), rewards=MISSING),
        Cause.INTERNAL,
    ),
    "no reward": (graded(failure(VERIFY, "RewardFileNotFoundError"), rewards=MISSING), Cause.REWARD_MISSING),
    "a reward that is no number": (
        graded(failure(VERIFY, "VerifierOutputParseError"), rewards=INVALID),
        Cause.REWARD_INVALID,
    ),
    "a bug in the scaffold": (ungraded(failure(Phase.AGENT, "KeyError")), Cause.INTERNAL),
    "a bug before the start": (Evidence(failures=(failure(Phase.PREPARE, "KeyError"),)), Cause.INTERNAL),
    "a bug while grading": (graded(failure(VERIFY, "KeyError"), rewards=ONE), Cause.INTERNAL),
    "a bug after grading": (graded(failure(Phase.FINISH, "OSError"), rewards=ONE), Cause.INTERNAL),
    "nothing says why": (Evidence(), Cause.INTERNAL),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_verdicts(case: str) -> None:
    evidence, result, flags = VERDICTS[case]
    decision = decide(evidence, 1.0)
    assert (decision.result, decision.flags, decision.cause) == (result, flags, None)
    assert decision.reward == (evidence.rewards.value if isinstance(evidence.rewards, Rewards) else None)


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    evidence, cause = ERRORS[case]
    decision = decide(evidence, 1.0)
    assert (decision.result, decision.cause, decision.reward) == (Result.ERROR, cause, None)
    assert decision.message


def test_every_cause_that_can_be_decided_is_in_the_table() -> None:
    left_to_sandboxes = {Cause.SANDBOX_BUSY, Cause.CONTROL_PLANE}
    assert {cause for _, cause in ERRORS.values()} == set(Cause) - left_to_sandboxes


@pytest.mark.parametrize(("threshold", "result"), [(0.5, Result.PASS), (0.5000001, Result.FAIL)])
def test_the_threshold_belongs_to_the_pass(threshold: float, result: Result) -> None:
    assert decide(replace(GRADED, rewards=Rewards(0.5, {"reward": 0.5})), threshold).result is result


def test_what_is_spoiled_is_not_graded() -> None:
    assert spoiled(ungraded(failure(Phase.AGENT, "InferenceError", Cause.MODEL_CALL)))
    assert spoiled(ungraded(sandbox=OWN_DEATH))
    assert spoiled(ungraded(model=Report(failure="HTTP 503")))
    assert not spoiled(ungraded(TIMEOUT, model=Report(aborted=1)))
    assert not spoiled(ungraded(TIMEOUT))
    assert not spoiled(ungraded(failure(Phase.AGENT, **COMMAND_LOST)))


failures = st.builds(
    Failure,
    phase=st.sampled_from(Phase),
    kind=st.sampled_from(["KeyError", "AgentTimeoutError", "VerifierTimeoutError", "SandboxError", "OSError"]),
    message=st.just("m"),
    cause=st.none() | st.sampled_from(Cause),
    command_lost=st.booleans(),
)
reports = st.builds(
    SandboxReport,
    oom=st.integers(0, 2),
    disk_full=st.booleans(),
    dead=st.sampled_from(["", "d"]),
    own_fault=st.booleans(),
)
evidences = st.builds(
    Evidence,
    failures=st.lists(failures, max_size=3).map(tuple),
    sandbox=reports,
    grading=st.none() | reports,
    separate=st.booleans(),
    flags=st.frozensets(st.sampled_from(Flag)),
    agent_limit_sec=st.none() | st.just(10.0),
    model=st.none()
    | st.builds(Report, failure=st.sampled_from(["", "HTTP 500"]), server_down=st.booleans(), retried=st.booleans()),
    lost_inference_sec=st.sampled_from([0.0, 5.0]),
    agent_begun=st.booleans(),
    verify_begun=st.booleans(),
    verifier_status=st.none() | st.sampled_from([0, 1, 137]),
    rewards=st.sampled_from([None, ONE, ZERO, MISSING, INVALID]),
)


@given(evidences)
def test_no_evidence_makes_up_a_verdict(evidence: Evidence) -> None:
    """A pass needs a finite reward at the threshold; an error names its cause; nothing raises."""
    decision = decide(evidence, 1.0)
    assert (decision.result is Result.ERROR) == (decision.cause is not None)
    if decision.result is Result.PASS:
        assert evidence.rewards is ONE
        assert decision.reward is not None
        assert math.isfinite(decision.reward)
    if evidence.model is not None and evidence.model.failure:
        assert decision.result is not Result.PASS
    if any(f.cause is None and f.kind in {"KeyError", "OSError"} for f in evidence.failures):
        assert decision.result is not Result.PASS
