"""vLLM's parent, as a real process around a stand-in for vLLM (which keeps children as the real one does)."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutgen.processes import belongings, end_all

from .conftest import KEY, Serving

Start = Callable[..., Serving]


@pytest.fixture
def ready(start: Start, stand_in: Path) -> Serving:
    serving = start(VLLM_BIN=str(stand_in))
    serving.record("ready")
    return serving


@pytest.fixture
def mortal(start: Start, stand_in: Path) -> Serving:
    """A server that may not be restarted."""
    serving = start(VLLM_BIN=str(stand_in), VLLM_RESTARTS="0")
    serving.record("ready")
    return serving


def test_a_ready_server_is_told_and_answers(ready: Serving) -> None:
    """A14: one server, on 127.0.0.1; its record names it and every process of its session."""
    record = ready.record("ready")
    assert record.base_url.startswith("http://127.0.0.1:")
    assert record.base_url.endswith("/v1")
    request = urllib.request.Request(f"{record.base_url}/models", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert b"policy" in answer.read()
    assert record.vllm in record.members
    assert len(record.members) == 3


def test_term_ends_all_of_it(ready: Serving) -> None:
    ready.process.terminate()
    assert ready.wait() == 0
    assert ready.left() == []


@pytest.mark.parametrize("how", ["term", "kill"])
def test_no_shared_memory_and_no_temporary_file_is_left(mortal: Serving, how: str) -> None:
    record = mortal.record("ready")
    assert record.vllm is not None
    assert [path for path, _ in record.shared] == [f"/dev/shm/stand-in-{record.vllm.pid}"]
    assert len(mortal.traces()) == 2
    if how == "term":
        mortal.process.terminate()
    else:
        record.vllm.signal(signal.SIGKILL)
    mortal.wait()
    assert mortal.traces() == []


def test_a_second_signal_hurries_and_still_cleans(start: Start, stand_in: Path) -> None:
    serving = start(VLLM_BIN=str(stand_in), VLLM_ENV="STAND_IN=stubborn")
    serving.record("ready")
    serving.process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        serving.process.wait(2)
    serving.process.terminate()
    assert serving.process.wait(5) == 0
    assert serving.left() == []


def test_what_ignores_term_is_killed(start: Start, stand_in: Path) -> None:
    serving = start(VLLM_BIN=str(stand_in), VLLM_ENV="STAND_IN=stubborn")
    serving.record("ready")
    serving.process.terminate()
    assert serving.wait() == 0
    assert serving.left() == []


def test_death_of_the_server_is_told_and_its_engine_ends(mortal: Serving) -> None:
    """The engine outlives a SIGKILL of its parent: only the end of the whole session ends it."""
    vllm = mortal.record("ready").vllm
    assert vllm is not None
    vllm.signal(signal.SIGKILL)
    record = mortal.record("failed")
    assert mortal.wait() == 1
    assert "SIGKILL" in record.message
    assert "VLLM_RESTARTS=0 allows no restart" in record.message
    assert mortal.left() == []


def test_death_of_the_launcher_ends_all_of_it(ready: Serving) -> None:
    """kill -9 of infer.sh alone: as if interrupted."""
    ready.launcher.kill()
    ready.launcher.wait()
    assert ready.wait() == 0
    assert ready.left() == []


def test_sigkill_of_serve_ends_the_server_by_the_kernel(ready: Serving) -> None:
    vllm = ready.record("ready").vllm
    assert vllm is not None
    ready.process.kill()
    ready.process.wait()
    ready.wait_until_nothing_is_left()


async def test_sigkill_of_serve_and_server_leaves_what_can_be_proven_ours(ready: Serving) -> None:
    """A29: the engine shows no mark, but its session, or the record, proves whose it is."""
    record = ready.record("ready")
    assert record.vllm is not None
    os.kill(ready.process.pid, signal.SIGSTOP)  # so that it cannot act between the two kills
    record.vllm.signal(signal.SIGKILL)
    ready.process.kill()
    ready.process.wait()
    left = belongings(ready.folder.name, [record.vllm])()
    assert len(left) == 2
    assert await end_all(belongings(ready.folder.name, [record.vllm]), 1) == []
    assert ready.left() == []


async def test_without_any_mark_the_record_proves_it(ready: Serving) -> None:
    record = ready.record("ready")
    assert record.vllm is not None
    os.kill(ready.process.pid, signal.SIGSTOP)
    tracker = min(set(record.members) - {record.vllm}, key=lambda process: (process.start_time, process.pid))
    for process in (record.vllm, tracker):
        process.signal(signal.SIGKILL)
    ready.process.kill()
    ready.process.wait()
    assert belongings(ready.folder.name, [record.vllm])() == []
    find = belongings(ready.folder.name, [record.vllm], record.members)
    assert len(find()) == 1
    assert await end_all(find, 1) == []


def test_a_server_that_dies_at_its_start_says_why(start: Start, stand_in: Path) -> None:
    """The first error is shown, not the last of those that follow from it, with advice."""
    serving = start(VLLM_BIN=str(stand_in), VLLM_ENV="STAND_IN=die")
    record = serving.record("failed")
    assert serving.wait() == 1
    assert "ValueError: Free memory on device cuda:0" in record.message
    assert "GPU_MEMORY_UTILIZATION" in record.message
    assert record.evidence[0] == "Traceback (most recent call last):"
    assert "Free memory" in record.evidence[-1]


@pytest.mark.parametrize(
    ("mode", "words"),
    [("wrong-name", "another"), ("open", "wrong key"), ("mute", "no text")],
)
def test_a_server_that_is_not_ours_or_does_not_serve_is_refused(
    start: Start, stand_in: Path, mode: str, words: str
) -> None:
    """C22: 200 to everything proves nothing."""
    serving = start(VLLM_BIN=str(stand_in), VLLM_ENV=f"STAND_IN={mode}")
    assert words in serving.record("failed").message
    assert serving.wait() == 1
    assert serving.left() == []


def test_a_server_that_never_gets_ready_is_given_up(start: Start, stand_in: Path) -> None:
    serving = start(VLLM_BIN=str(stand_in), VLLM_ENV="STAND_IN=hang", SERVER_START_TIMEOUT_SEC="2")
    assert "SERVER_START_TIMEOUT_SEC=2" in serving.record("failed").message
    assert serving.wait() == 1
    assert serving.left() == []


def test_term_while_it_starts_ends_all_of_it(start: Start, stand_in: Path) -> None:
    serving = start(VLLM_BIN=str(stand_in), VLLM_ENV="STAND_IN=hang")
    while len(serving.record("starting").members) < 3:
        time.sleep(0.05)
    serving.process.terminate()
    assert serving.wait() == 0
    assert serving.left() == []


def test_a_port_in_use_is_refused_by_its_owner(start: Start, stand_in: Path) -> None:
    """C22: another server has VLLM_PORT."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        serving = start(VLLM_BIN=str(stand_in), VLLM_PORT=str(port))
        record = serving.record("failed")
    assert serving.wait() == 1
    assert f"VLLM_PORT={port} is in use by pid {os.getpid()}" in record.message
    assert record.vllm is None


def test_a_command_that_is_not_there_is_told(start: Start) -> None:
    serving = start(VLLM_BIN="/none/vllm")
    assert "/none/vllm does not start" in serving.record("failed").message
    assert serving.wait() == 1
    assert serving.traces() == []


def test_the_key_is_in_no_argument_and_no_file(ready: Serving) -> None:
    vllm = ready.record("ready").vllm
    assert vllm is not None
    assert KEY.encode() not in Path(f"/proc/{vllm.pid}/cmdline").read_bytes()
    for file in ready.folder.parents[1].rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes()


def test_the_server_inherits_no_lock(start: Start, stand_in: Path, tmp_path: Path) -> None:
    """The lock of RESULTS_DIR is free when serve and driver are gone, whatever the server does."""
    lock = tmp_path / "lock"
    with lock.open("w") as file:
        serving = start(VLLM_BIN=str(stand_in), pass_fds=(file.fileno(),))
    record = serving.record("ready")
    assert str(lock) in _open_files(serving.process.pid)
    for member in record.members:
        assert str(lock) not in _open_files(member.pid)


def test_a_second_launch_appends_to_the_log_and_marks_itself(start: Start, stand_in: Path) -> None:
    launches = []
    for _ in range(2):
        serving = start(VLLM_BIN=str(stand_in))
        serving.record("ready")
        serving.process.terminate()
        serving.wait()
        launches.append(serving.folder.name)
    assert [serving.log.count(f"=== launch {launch} ") for launch in launches] == [1, 1]


def _open_files(pid: int) -> set[str]:
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
