"""One attempt through Harbor, in a sandbox that starts no process and fails on demand (C1, C5, C14, C16)."""

import asyncio
import errno
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.null_sandbox import OK, NullBackend, NullSandbox, is_verifier
from rolloutgen.engine import Engine
from rolloutgen.errors import CommandLostError, SandboxError, StoreError, TransportError
from rolloutgen.models import Attempt, Outcome
from rolloutgen.outcomes import Cause, Flag, Result
from rolloutgen.paths import HARBOR, TRANSCRIPT
from rolloutgen.sandbox.base import ExecResult, Network, SandboxReport
from rolloutgen.transcript.lines import read
from rolloutgen.transcript.reader import read_messages

type Run = Callable[..., Any]


@pytest.fixture
def backend() -> NullBackend:
    return NullBackend()


@pytest.fixture
async def run(backend: NullBackend, make_settings: Any, make_task: Any, make_attempt: Any) -> AsyncIterator[Run]:
    """Runs one attempt; the sandboxes that it leaves behind are an error of every test."""
    engines: list[Engine] = []

    async def one(task: Path | None = None, *, number: int = 0, **keys: str) -> Outcome:
        engine = Engine(make_settings(**keys), backend, None)
        engines.append(engine)
        return await engine.run_attempt(make_attempt(task or make_task(), number))

    yield one
    for engine in engines:
        await engine.close()
    assert backend.left == []


def test_harbor_is_the_version_that_this_was_read_against() -> None:
    from rolloutgen.engine.trial import HARBOR_VERSION

    assert importlib.metadata.version("harbor") == HARBOR_VERSION


def test_the_engine_is_imported_without_harbor_and_made_without_litellm(repository: Path) -> None:
    """A28: nor does it bring in anything that tells others what is run."""
    code = """
import sys
from rolloutgen.engine import Engine
assert "harbor" not in sys.modules
import rolloutgen.engine.agents, rolloutgen.engine.trial
assert "harbor" in sys.modules
assert not {"litellm", "harbor.telemetry", "wandb", "tensorboard", "mlflow"} & set(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": str(repository / "src")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


async def test_oracle_passes_and_leaves_its_files(run: Run, backend: NullBackend, tmp_path: Path) -> None:
    """A6, A25: the transcript says what ran; Harbor's folder holds Harbor's files."""
    outcome = await run(SCAFFOLD="oracle")
    assert (outcome.result, outcome.reward, outcome.turns, outcome.flags) == (Result.PASS, 1.0, None, ())
    assert len(outcome.task_digest) == 64
    assert None not in (outcome.times.sandbox_sec, outcome.times.agent_sec, outcome.times.verifier_sec)
    folder = tmp_path / "results" / "task" / "trial_0.attempt_1"
    assert sorted(path.name for path in folder.iterdir()) == [HARBOR, TRANSCRIPT]
    lines = list(read(folder / TRANSCRIPT))
    assert [line["type"] for line in lines] == ["start", "command", "command", "end"]
    assert "/solution/solve.sh" in lines[2]["command"]
    assert read_messages(folder / TRANSCRIPT)[0]["content"] == "Write yes into the file done.\n"
    result = json.loads((folder / HARBOR / "result.json").read_text())
    assert (result["verifier_result"]["rewards"], result["task_checksum"]) == ({"reward": 1.0}, outcome.task_digest)
    assert {"config.json", "trial.log", "verifier"} <= {path.name for path in (folder / HARBOR).iterdir()}
    (sandbox,) = backend.sandboxes
    assert (sandbox.spec.workdir, sandbox.spec.network) == ("/app", Network.OPEN)


async def test_nop_runs_the_verifier_alone(run: Run, backend: NullBackend) -> None:
    backend.reward = b"0"
    outcome = await run(SCAFFOLD="nop")
    assert (outcome.result, outcome.reward) == (Result.FAIL, 0.0)
    assert not any("/solution" in command for command, _ in backend.sandboxes[0].commands)


async def test_the_working_directory_is_the_tasks_then_the_dockerfiles(
    run: Run, make_task: Any, backend: NullBackend
) -> None:
    await run(make_task("a", toml='[environment]\nworkdir = "/srv"\n'))
    await run(make_task("b", dockerfile="FROM x\nWORKDIR /one\nWORKDIR two\n"))
    await run(make_task("c", dockerfile="FROM x\n"))
    assert [sandbox.spec.workdir for sandbox in backend.sandboxes] == ["/srv", "/one/two", None]


async def test_sizes_come_from_the_settings_then_from_the_task(run: Run, make_task: Any, backend: NullBackend) -> None:
    toml = '[environment]\ncpus = 0.5\nmemory_mb = 128\nstorage_mb = 64\ndocker_image = "x:1"\nenv = { A = "b" }\n'
    await run(make_task("a", toml=toml))
    await run(make_task("b", toml=toml), SANDBOX_CPU="2", SANDBOX_MEMORY_MB="512")
    one, two = (sandbox.spec for sandbox in backend.sandboxes)
    assert (one.cpus, one.memory_mb, one.storage_mb, one.image, one.env) == (0.5, 128, 64, "x:1", {"A": "b"})
    assert (two.cpus, two.memory_mb, two.storage_mb) == (2, 512, 64)
    assert one.name != two.name


@pytest.mark.parametrize(
    ("toml", "egress", "network"),
    [
        ("", "open", Network.OPEN),
        ("", "none", Network.NONE),
        ('[environment]\nnetwork_mode = "no-network"\n', "open", Network.NONE),
        ('[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n', "none", Network.NONE),
        ("", "model-only", Network.MODEL_ONLY),
    ],
)
async def test_the_network_is_the_stricter_of_two(
    run: Run, make_task: Any, backend: NullBackend, toml: str, egress: str, network: Network
) -> None:
    outcome = await run(make_task(toml=toml), SANDBOX_EGRESS=egress)
    assert outcome.is_verdict
    assert backend.sandboxes[0].spec.network is network


@pytest.mark.parametrize(
    "toml",
    [
        '[agent]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n',
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.org"]\n',
    ],
)
async def test_a_network_that_cannot_be_had_is_an_error_not_a_guess(run: Run, make_task: Any, toml: str) -> None:
    outcome = await run(make_task(toml=toml))
    assert (outcome.result, outcome.cause) == (Result.ERROR, Cause.SANDBOX_START)
    assert "network" in outcome.message or "example.org" in outcome.message


async def hang(sandbox: NullSandbox, command: str) -> ExecResult | None:
    if command.startswith("(/solution"):
        await asyncio.sleep(3600)
    return None


@pytest.mark.parametrize(("reward", "result"), [(b"1", Result.PASS), (b"0", Result.FAIL)])
async def test_c1_the_verifier_runs_after_the_agents_time_is_up(
    run: Run, backend: NullBackend, reward: bytes, result: Result
) -> None:
    backend.on_exec, backend.reward = hang, reward
    outcome = await run(AGENT_TIMEOUT_SEC="1")
    assert (outcome.result, outcome.flags) == (result, (Flag.AGENT_TIMEOUT,))


async def test_outages_of_the_sandbox_make_a_timeout_an_error(run: Run, backend: NullBackend) -> None:
    async def lose(sandbox: NullSandbox, command: str) -> ExecResult | None:
        sandbox.reported = SandboxReport(lost_sec=0.5)
        return await hang(sandbox, command)

    backend.on_exec, backend.reward = lose, b"0"
    outcome = await run(AGENT_TIMEOUT_SEC="1")
    assert (outcome.result, outcome.cause, outcome.times.lost_sec) == (Result.ERROR, Cause.OUTAGE_SANDBOX, 0.5)


async def test_a_solution_that_fails_is_graded(run: Run, backend: NullBackend) -> None:
    async def fail(sandbox: NullSandbox, command: str) -> ExecResult | None:
        return ExecResult(3, b"", b"") if command.startswith("(/solution") else None

    backend.on_exec = fail
    outcome = await run()
    assert (outcome.result, outcome.flags) == (Result.PASS, (Flag.AGENT_CRASH,))


async def test_c5_a_replaced_machine_is_not_graded(run: Run, backend: NullBackend) -> None:
    async def replaced(sandbox: NullSandbox) -> None:
        raise SandboxError("the pod's uid has changed")

    backend.on_check = replaced
    outcome = await run()
    assert (outcome.result, outcome.cause) == (Result.ERROR, Cause.SANDBOX_LOST)
    assert not any(is_verifier(command) for command, _ in backend.sandboxes[0].commands)


async def test_own_memory_limit_before_grading_is_a_fail_with_its_evidence(run: Run, backend: NullBackend) -> None:
    async def die(sandbox: NullSandbox, command: str) -> ExecResult | None:
        if command.startswith("(/solution"):
            sandbox.reported = SandboxReport(
                oom=1, dead="killed at its memory limit", own_fault=True, details={"mb": 64}
            )
            raise SandboxError("it is dead")
        return None

    backend.on_exec = die
    outcome = await run()
    assert (outcome.result, outcome.reward, outcome.flags) == (Result.FAIL, None, (Flag.OOM,))
    assert outcome.details["sandboxes"][0]["details"] == {"mb": 64}  # type: ignore[index]  # plain JSON


async def raise_in(phase: str, error: Exception, sandbox: NullSandbox, command: str) -> ExecResult | None:
    if command.startswith(phase):
        raise error
    return None


@pytest.mark.parametrize(
    ("where", "error", "cause"),
    [
        ("mkdir", SandboxError("gone"), Cause.SANDBOX_LOST),
        ("mkdir", TransportError("no status"), Cause.TRANSPORT),
        ("(/solution", TransportError("no status"), Cause.TRANSPORT),
        ("(/tests", TransportError("no status"), Cause.TRANSPORT),
        ("(/tests", CommandLostError("gone"), Cause.VERIFIER_KILLED),
        ("(/tests", SandboxError("gone"), Cause.SANDBOX_LOST),
        ("(/tests", ZeroDivisionError("a bug"), Cause.INTERNAL),
        ("rm -f", ZeroDivisionError("a bug"), Cause.INTERNAL),
        ("(/solution", ZeroDivisionError("a bug"), Cause.INTERNAL),
        ("mkdir", ZeroDivisionError("a bug"), Cause.INTERNAL),
    ],
)
async def test_what_goes_wrong_in_a_sandbox(
    run: Run, backend: NullBackend, where: str, error: Exception, cause: Cause
) -> None:
    backend.on_exec = lambda sandbox, command: raise_in(where, error, sandbox, command)
    outcome = await run()
    assert (outcome.result, outcome.cause) == (Result.ERROR, cause)
    failures = outcome.details["failures"]
    assert str(error) in json.dumps(failures)
    assert "Traceback" in json.dumps(failures)


async def test_a_lost_command_of_the_agent_is_graded(run: Run, backend: NullBackend) -> None:
    backend.on_exec = lambda sandbox, command: raise_in("(/solution", CommandLostError("gone"), sandbox, command)
    outcome = await run()
    assert (outcome.result, outcome.flags) == (Result.PASS, (Flag.AGENT_CRASH,))


async def test_a_copy_of_logs_that_fails_costs_no_verdict(run: Run, backend: NullBackend) -> None:
    async def lose(sandbox: NullSandbox, source: str) -> None:
        if source in {"/logs/agent", "/logs/artifacts"}:
            raise TransportError("lost")

    backend.on_download = lose
    outcome = await run(SCAFFOLD="nop")
    assert outcome.result is Result.PASS


async def test_verifier_timeout(run: Run, backend: NullBackend) -> None:
    async def slow(sandbox: NullSandbox, command: str) -> ExecResult | None:
        if is_verifier(command):
            await asyncio.sleep(3600)
        return None

    backend.on_exec = slow
    outcome = await run(VERIFIER_TIMEOUT_SEC="1")
    assert (outcome.result, outcome.cause) == (Result.ERROR, Cause.VERIFIER_TIMEOUT)


async def test_verifier_timeout_after_agent_timeout(run: Run, backend: NullBackend) -> None:
    """Harbor keeps the first exception alone."""

    async def slow(sandbox: NullSandbox, command: str) -> ExecResult | None:
        if is_verifier(command):
            await asyncio.sleep(3600)
        return await hang(sandbox, command)

    backend.on_exec = slow
    outcome = await run(VERIFIER_TIMEOUT_SEC="1", AGENT_TIMEOUT_SEC="1")
    assert outcome.cause is Cause.VERIFIER_TIMEOUT


@pytest.mark.parametrize(
    ("reward", "cause"),
    [(b"", Cause.REWARD_MISSING), (b"nan", Cause.REWARD_INVALID), (b"yes", Cause.REWARD_INVALID)],
)
async def test_a_reward_that_is_none(run: Run, backend: NullBackend, reward: bytes, cause: Cause) -> None:
    backend.reward = reward
    outcome = await run()
    assert (outcome.result, outcome.cause, outcome.reward) == (Result.ERROR, cause, None)


async def test_no_reward_file(run: Run, backend: NullBackend) -> None:
    async def nothing(sandbox: NullSandbox, command: str) -> ExecResult | None:
        return ExecResult(1, b"out", b"err") if is_verifier(command) else None

    backend.on_exec = nothing
    outcome = await run()
    assert outcome.cause is Cause.REWARD_MISSING
    assert outcome.details["verifier"] == {"exit_status": 1, "output": "outerr"}


async def test_a_verifier_that_cannot_be_made_ready(run: Run, backend: NullBackend) -> None:
    async def refuse(sandbox: NullSandbox, command: str) -> ExecResult | None:
        return ExecResult(127, b"", b"rm: not found") if command.startswith("rm -f") else None

    backend.on_exec = refuse
    outcome = await run()
    assert outcome.cause is Cause.VERIFIER_START
    assert "rm: not found" in outcome.message


async def test_the_verifiers_folder_is_gone(run: Run, backend: NullBackend) -> None:
    async def gone(sandbox: NullSandbox, source: str) -> None:
        if source == "/logs/verifier":
            raise FileNotFoundError(source)

    backend.on_download = gone
    outcome = await run()
    assert outcome.cause is Cause.REWARD_MISSING


async def test_a_separate_verifier_has_a_sandbox_of_its_own(run: Run, make_task: Any, backend: NullBackend) -> None:
    toml = '[verifier]\nenvironment_mode = "separate"\n'
    outcome = await run(make_task(toml=toml))
    assert outcome.result is Result.PASS
    agent, verifier = backend.sandboxes
    assert any(command.startswith("(/solution") for command, _ in agent.commands)
    assert not any(is_verifier(command) for command, _ in agent.commands)
    assert any(is_verifier(command) for command, _ in verifier.commands)


async def test_the_sandbox_must_start_in_time(run: Run, backend: NullBackend) -> None:
    async def never(sandbox: NullSandbox) -> None:
        await asyncio.sleep(3600)

    backend.on_start = never
    outcome = await run(SANDBOX_START_TIMEOUT_SEC="1")
    assert (outcome.result, outcome.cause) == (Result.ERROR, Cause.SANDBOX_START)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda task: (task / "task.toml").unlink(),
        lambda task: (task / "task.toml").write_text("[["),
        lambda task: (task / "tests" / "test.sh").unlink(),
        lambda task: (task / "task.toml").write_text('version = "1.0"\n[[steps]]\nname = "one"\n'),
        lambda task: (task / "environment" / "docker-compose.yaml").write_text("services: {}"),
        lambda task: (task / "solution" / "solve.sh").unlink(),
        lambda task: os.mkfifo(task / "pipe"),
    ],
)
async def test_a_broken_task_is_an_error_that_names_it(
    run: Run, make_task: Any, break_it: Callable[[Path], object]
) -> None:
    task = make_task()
    break_it(task)
    outcome = await run(task)
    assert (outcome.result, outcome.cause) == (Result.ERROR, Cause.INTERNAL)
    assert str(task) in outcome.message


async def test_trials_of_a_task_share_what_was_read(make_settings: Any, make_task: Any, make_attempt: Any) -> None:
    """And none changes it for the others: all have the same digest and pass."""
    engine = Engine(make_settings(), NullBackend(), None)
    task = make_task()
    outcomes = await asyncio.gather(*(engine.run_attempt(make_attempt(task, number)) for number in range(20)))
    await engine.close()
    assert {(outcome.result, outcome.task_digest) for outcome in outcomes} == {(Result.PASS, outcomes[0].task_digest)}


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("where", ["mkdir", "(/solution", "(/tests"])
async def test_a_cancelled_attempt_leaves_no_sandbox(
    backend: NullBackend, make_settings: Any, make_task: Any, make_attempt: Any, where: str, cancels: int
) -> None:
    """However often it is cancelled while it cleans up."""
    reached = asyncio.Event()

    async def stay(sandbox: NullSandbox, command: str) -> ExecResult | None:
        if command.startswith(where):
            reached.set()
            await asyncio.sleep(3600)
        return None

    backend.on_exec, backend.stop_sec = stay, 0.2
    engine = Engine(make_settings(), backend, None)
    attempt: Attempt = make_attempt(make_task())
    running = asyncio.create_task(engine.run_attempt(attempt))
    await reached.wait()
    for _ in range(cancels):
        running.cancel()
        await asyncio.sleep(0.02)
    with pytest.raises(asyncio.CancelledError):
        await running
    await engine.close()
    assert backend.left == []
    assert list(read(attempt.folder / TRANSCRIPT))[-1]["ending"] == "interrupted"


async def test_an_attempt_cancelled_while_it_is_made_leaves_nothing(
    make_settings: Any, make_task: Any, make_attempt: Any
) -> None:
    backend = NullBackend()
    engine = Engine(make_settings(), backend, None)
    running = asyncio.create_task(engine.run_attempt(make_attempt(make_task())))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await engine.close()
    assert backend.sandboxes == []


@pytest.mark.parametrize(
    ("error", "cause"), [(SandboxError("it stays"), None), (ZeroDivisionError("a bug"), Cause.INTERNAL)]
)
async def test_a_removal_that_fails_costs_no_verdict_and_one_with_a_bug_raises_nothing(
    run: Run, backend: NullBackend, error: Exception, cause: Cause | None, caplog: pytest.LogCaptureFixture
) -> None:
    backend.stop_error = error
    outcome = await run()
    assert outcome.cause is cause
    assert "could not be removed" in caplog.text


async def test_a_cancellation_that_nobody_asked_for_is_an_error(run: Run, backend: NullBackend) -> None:
    async def fall_apart(sandbox: NullSandbox, command: str) -> ExecResult | None:
        if command.startswith("(/solution"):
            raise asyncio.CancelledError
        return None

    backend.on_exec = fall_apart
    outcome = await run()
    assert (outcome.result, outcome.cause) == (Result.ERROR, Cause.INTERNAL)


async def test_harbor_is_quiet_in_the_drivers_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    await run()
    assert caplog.records == []


async def test_c14_an_outcome_is_plain_json(run: Run, backend: NullBackend) -> None:
    async def odd(sandbox: NullSandbox, command: str) -> ExecResult | None:
        sandbox.reported = SandboxReport(oom=1, details={"path": Path("/x"), "set": {1}, 3: b"bytes", "flag": Flag.OOM})
        return OK if is_verifier(command) else None

    backend.on_exec = odd
    outcome = await run()
    details = json.loads(json.dumps(outcome.details))
    assert details == outcome.details
    assert details["sandboxes"][0]["details"] == {"path": "/x", "set": [1], "3": "b'bytes'", "flag": "oom"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
async def test_a_full_disk_of_this_machine_ends_the_run_and_charges_no_trial(
    run: Run, backend: NullBackend, number: int
) -> None:
    """All trials would meet it: at six hours every one of them would use up its attempts."""

    async def refuse(sandbox: NullSandbox, source: str) -> None:
        if source == "/logs/verifier":
            raise TransportError("lost") from OSError(number, os.strerror(number))

    backend.on_download = refuse
    with pytest.raises(StoreError, match=re.escape(os.strerror(number))):
        await run()


async def test_a_reward_of_megabytes_is_never_read_whole(run: Run, backend: NullBackend) -> None:
    """Harbor reads it whole and on the event loop: gigabytes of it would end the driver."""
    backend.reward = b"1\n" * (1 << 20)
    outcome = await run()
    assert (outcome.cause, outcome.message) == (Cause.REWARD_INVALID, "reward.txt is over 1048576 bytes")


async def test_what_a_sandbox_says_of_a_failure_is_kept_in_bounds(run: Run, backend: NullBackend) -> None:
    """Harbor puts the output of a failed command into its message, and outcome.json is read at every resume."""

    async def fail(sandbox: NullSandbox, command: str) -> ExecResult | None:
        return ExecResult(1, b"", b"x" * (1 << 20)) if command.startswith("rm -f -- /logs/verifier") else None

    backend.on_exec = fail
    outcome = await run()
    assert outcome.cause is Cause.VERIFIER_START
    assert len(json.dumps(outcome.details)) < 1 << 16
