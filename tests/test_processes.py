"""Who a process is, what belongs to a launch, and how it ends: with real processes and real signals."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from rolloutgen.processes import MARK, Process, belongings, end_all, gone, marked, session

SLEEP = ["sleep", "600"]
FORKS = "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], env={}); print(flush=True); time.sleep(600)"

Spawn = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a process in a session of its own; all that is in it dies with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def spawn_one(command: list[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.PIPE))
        return started[-1]

    yield spawn_one
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def identity(process: subprocess.Popen[bytes]) -> Process:
    found = Process.of(process.pid)
    assert found is not None
    return found


def test_a_process_is_itself_until_it_is_a_zombie(spawn: Spawn) -> None:
    child = spawn(SLEEP)
    known = identity(child)
    assert known.alive()
    assert Process.read(dataclasses.asdict(known)) == known
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not known.alive()
    assert Process.of(child.pid) is None


def test_another_process_with_the_same_pid_gets_no_signal(spawn: Spawn) -> None:
    child = spawn(SLEEP)
    earlier = dataclasses.replace(identity(child), start_time=identity(child).start_time - 1)
    other_boot = dataclasses.replace(identity(child), boot_id="another")
    assert not earlier.alive()
    assert not earlier.signal(signal.SIGKILL)
    assert not other_boot.signal(signal.SIGKILL)
    assert child.poll() is None
    assert identity(child).signal(signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL


def test_the_mark_is_found_whole_only(spawn: Spawn) -> None:
    ours = spawn(SLEEP, {MARK: "launch-a", "PATH": os.environ["PATH"]})
    spawn(SLEEP, {MARK: "launch-ab", "PATH": os.environ["PATH"]})
    spawn(SLEEP, {"OTHER": f"{MARK}=launch-a", "PATH": os.environ["PATH"]})
    assert marked("launch-a") == [identity(ours)]


def test_a_session_without_proof_is_not_ours(spawn: Spawn) -> None:
    """A29: never by a pid alone."""
    child = spawn(SLEEP)
    known = identity(child)
    assert session(known, "launch-x") == [known]
    reused = dataclasses.replace(known, start_time=known.start_time - 1)
    assert session(reused, "launch-x") == []
    assert session(dataclasses.replace(known, boot_id="another"), "launch-x", [known]) == []


async def test_a_member_without_mark_is_ended_with_its_session(spawn: Spawn) -> None:
    leader = spawn([sys.executable, "-c", FORKS], {MARK: "launch-y", "PATH": os.environ["PATH"]})
    assert leader.stdout is not None
    leader.stdout.readline()
    known = identity(leader)
    members = session(known, "launch-y")
    assert len(members) == 2
    leader.kill()
    leader.wait()
    assert session(known, "launch-y") == []
    assert await end_all(belongings("launch-y", [known], members), 5) == []
    assert not any(member.alive() for member in members)


async def test_what_ignores_term_is_killed_after_the_grace_or_when_hurried(spawn: Spawn) -> None:
    deaf = ["bash", "-c", "trap '' TERM; echo; while :; do sleep 1; done"]
    for hurry, grace in ((None, 0.5), (asyncio.Event(), 600.0)):
        child = spawn(deaf)
        assert child.stdout is not None
        child.stdout.readline()
        if hurry:
            hurry.set()
        assert await end_all(belongings("launch-z", [identity(child)]), grace, hurry) == []
        assert child.wait(10) == -signal.SIGKILL


async def test_gone_returns_at_the_end_and_not_before(spawn: Spawn) -> None:
    child = spawn(SLEEP)
    waiting = asyncio.ensure_future(gone(identity(child)))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    child.kill()
    await asyncio.wait_for(waiting, 10)
    child.wait()
    await asyncio.wait_for(gone(Process(child.pid, 1, "this one never was")), 10)
