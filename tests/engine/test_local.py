"""The engine over real sandboxes of this machine: real processes, real limits (A3, A6, C1, C8)."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.upstream import Upstream
from local_gateway import LocalGateway
from rolloutgen.engine import Engine
from rolloutgen.models import Attempt, Outcome
from rolloutgen.outcomes import Cause, Flag, Result
from rolloutgen.paths import HARBOR, TRANSCRIPT
from rolloutgen.sandbox.base import Network
from rolloutgen.sandbox.local.backend import LocalBackend
from rolloutgen.transcript.reader import read_calls

type Run = Callable[..., Any]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(
        launch_id=f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        images={"*": "host"},
        hidden=(tmp_path / "results",),
        egress=Network.NONE,
    )
    await backend.open()
    yield backend
    await backend.close()


@pytest.fixture
async def run(backend: LocalBackend, make_settings: Any, make_task: Any, make_attempt: Any) -> AsyncIterator[Run]:
    """One attempt at a task with this solution and these tests."""
    engines: list[Engine] = []

    async def one(solution: str = "", tests: str = "", *, toml: str = "", **keys: str) -> Outcome:
        task = make_task(toml=toml)
        for path, body in ((task / "solution" / "solve.sh", solution), (task / "tests" / "test.sh", tests)):
            if body:
                path.write_text(f"#!/bin/bash\n{body}\n")
        engines.append(Engine(make_settings(SANDBOX_EGRESS="none", **keys), backend, None))
        return await engines[-1].run_attempt(make_attempt(task))

    yield one
    for engine in engines:
        await engine.close()


async def test_oracle_passes_and_nop_fails(run: Run, tmp_path: Path) -> None:
    assert (await run()).result is Result.PASS
    log = tmp_path / "results" / "task" / "trial_0.attempt_1" / HARBOR / "agent" / "oracle.txt"
    assert log.is_file()


async def test_nop_fails(run: Run) -> None:
    outcome = await run(SCAFFOLD="nop")
    assert (outcome.result, outcome.reward) == (Result.FAIL, 0.0)


@pytest.mark.parametrize(("before", "result"), [("echo yes > done", Result.PASS), ("true", Result.FAIL)])
async def test_c1_after_an_agent_timeout_the_work_so_far_is_graded(run: Run, before: str, result: Result) -> None:
    outcome = await run(f"{before}\nsleep 60", AGENT_TIMEOUT_SEC="2")
    assert (outcome.result, outcome.flags) == (result, (Flag.AGENT_TIMEOUT,))


async def test_an_agent_that_kills_all_its_processes_is_graded(run: Run) -> None:
    outcome = await run("echo yes > done\nkill -9 -1")
    assert outcome.result is Result.PASS
    assert outcome.flags == (Flag.AGENT_CRASH,)


async def test_a_verifier_that_hangs(run: Run) -> None:
    outcome = await run(tests="sleep 60", VERIFIER_TIMEOUT_SEC="2")
    assert outcome.cause is Cause.VERIFIER_TIMEOUT


async def test_a_verifier_that_is_killed(run: Run) -> None:
    outcome = await run(tests="kill -9 $$")
    assert (outcome.result, outcome.cause) == (Result.ERROR, Cause.VERIFIER_KILLED)


async def test_an_agent_that_fills_its_disk_has_failed(run: Run) -> None:
    """Grading cannot begin then; that is the agent's doing, no fault of the machine, and so no error."""
    outcome = await run("yes > fill", toml="[environment]\nmemory_mb = 128\nstorage_mb = 2048\n")
    assert (outcome.result, outcome.reward) == (Result.FAIL, None)
    assert Flag.DISK_FULL in outcome.flags


async def test_a_full_disk_that_was_made_free_again_is_graded(run: Run) -> None:
    outcome = await run("yes > fill; rm fill; echo yes > done", toml="[environment]\nmemory_mb = 128\n")
    assert outcome.result is Result.PASS


@pytest.mark.parametrize("leave", ["ln -s /etc/passwd", "mkdir", "mkfifo", "echo 1 >"])
async def test_what_the_agent_leaves_where_the_reward_belongs_does_not_count(run: Run, leave: str) -> None:
    outcome = await run(f"{leave} /logs/verifier/reward.txt", tests="true")
    assert outcome.result is Result.ERROR


@pytest.mark.parametrize("leave", ["rm -rf /logs/*", "rm -rf /logs", "rm -r /logs/verifier; touch /logs/verifier"])
async def test_an_agent_that_deletes_all_logs_is_graded(run: Run, leave: str) -> None:
    """As in Harbor's containers, where a mount stands there."""
    assert (await run(f"echo yes > done; {leave}")).result is Result.PASS


async def test_rewards_by_name(run: Run) -> None:
    outcome = await run(
        tests="""echo '{"reward": 0.5, "speed": 2}' > /logs/verifier/reward.json""", PASS_THRESHOLD="0.5"
    )
    assert (outcome.result, outcome.reward, dict(outcome.rewards)) == (Result.PASS, 0.5, {"reward": 0.5, "speed": 2.0})


async def test_the_task_cannot_see_the_results(run: Run, tmp_path: Path) -> None:
    outcome = await run(f"ls {tmp_path}/results/task && touch done", "[ -e done ]; echo $? > /logs/verifier/reward.txt")
    assert (outcome.result, outcome.flags) == (Result.PASS, (Flag.AGENT_CRASH,))


async def test_a_separate_verifier_sees_what_was_collected_alone(run: Run) -> None:
    tests = "[ -e /logs/artifacts/work ] && [ ! -e /app/done ] && echo 1 > /logs/verifier/reward.txt"
    outcome = await run(
        "echo yes > done; echo x > /logs/artifacts/work", tests, toml='[verifier]\nenvironment_mode = "separate"\n'
    )
    assert outcome.result is Result.PASS


async def test_shell_with_a_scripted_model(
    backend: LocalBackend, make_settings: Any, make_task: Any, make_attempt: Any
) -> None:
    """A6: what was said is kept; the model's command decides."""
    answers = ["echo yes > done", "exit"]
    settings = make_settings(SCAFFOLD="shell", SANDBOX_EGRESS="none")
    upstream = Upstream(lambda call: answers[call.number])
    async with upstream, LocalGateway(settings, upstream) as gateway:
        engine = Engine(settings, backend, gateway.client)
        attempt: Attempt = make_attempt(make_task())
        outcome = await engine.run_attempt(attempt)
        await engine.close()
    assert (outcome.result, outcome.turns, outcome.details["ending"]) == (Result.PASS, 2, "done")
    said = read_calls(attempt.folder / TRANSCRIPT)[-1].conversation()
    assert [message["content"] for message in said[-3:]] == ["echo yes > done", "(exit status 0)", "exit"]


def processes_of(launch_id: str) -> list[int]:
    """Processes of this machine whose environment or command names the launch."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if launch_id.encode() in told:
            found.append(int(folder.name))
    return found


async def test_a_cancelled_attempt_leaves_no_process(
    backend: LocalBackend, make_settings: Any, make_task: Any, make_attempt: Any
) -> None:
    mark = f"31415.{uuid.uuid4().int % 10**9:09}"
    task = make_task()
    (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\nsleep {mark}\n")
    engine = Engine(make_settings(SANDBOX_EGRESS="none"), backend, None)
    running = asyncio.create_task(engine.run_attempt(make_attempt(task)))
    while not processes_of(mark):  # noqa: ASYNC110 - a process outside sets no event
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await engine.close()
    assert processes_of(mark) == []
