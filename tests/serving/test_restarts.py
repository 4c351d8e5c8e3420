"""vLLM's parent restarts it: after every kind of death and on request, within VLLM_RESTARTS, and leaves nothing."""

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from driving import until
from rolloutgen.processes import Process
from rolloutgen.serving.leavings import temporary_folder
from rolloutgen.serving.ports import free_port
from rolloutgen.serving.record import ServerRecord
from rolloutgen.serving.restart import FILE, Restarts, ask_restart, take_request

from .conftest import KEY, Serving

Start = Callable[..., Serving]
AGENTS = 100


@pytest.fixture
def lives(start: Start, stand_in: Path, tmp_path: Path) -> Callable[..., Serving]:
    """A server that behaves as STAND_IN says, life by life."""

    def begin(stand_in_lives: str, **texts: str) -> Serving:
        words = f"'STAND_IN={stand_in_lives}' 'STAND_IN_LIVES={tmp_path / 'lives'}'"
        return start(VLLM_BIN=str(stand_in), VLLM_ENV=words, **texts)

    return begin


@pytest.fixture
def ready(start: Start, stand_in: Path) -> Serving:
    serving = start(VLLM_BIN=str(stand_in))
    serving.record("ready")
    return serving


def vllm_of(record: ServerRecord) -> Process:
    assert record.vllm is not None
    return record.vllm


def engine_of(record: ServerRecord) -> Process:
    """The youngest of its session."""
    return max(record.members, key=lambda process: (process.start_time, process.pid))


def ask(record: ServerRecord) -> int:
    """One call of an agent; its status, 0 for a lost connection."""
    body = {"model": record.model_name, "messages": [{"role": "user", "content": "hello"}], "max_tokens": AGENTS}
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{record.base_url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_kill_9_of_the_parent_brings_another_server(ready: Serving) -> None:
    """With a fresh seed, or it would draw the samples of the first again; on the same port; the log tells."""
    first = ready.record("ready")
    vllm_of(first).signal(signal.SIGKILL)
    second = ready.restarted(1)
    assert vllm_of(second) != vllm_of(first)
    assert second.seed != first.seed
    assert re.findall(r"--seed (\d+)", ready.log) == [str(first.seed), str(second.seed)]
    assert second.base_url == first.base_url
    assert (second.message, second.evidence) == ("", ())
    assert "the model server is restarted (1 of VLLM_RESTARTS=3 this hour): " in ready.said
    assert "SIGKILL" in ready.said
    until(lambda: re.search(r"the model server is ready again after \d+ s\n", ready.said) is not None, "it says so")
    assert ask(second) == 200


def test_nothing_of_the_old_server_is_left_beside_the_new_one(ready: Serving) -> None:
    """Its engine outlives it, and its memory too; the socket of the gateway, in the same folder, is no leaving."""
    first = ready.record("ready")
    gateway = temporary_folder(ready.folder.name) / "gateway"
    gateway.touch()
    vllm_of(first).signal(signal.SIGKILL)
    second = ready.restarted(1)
    assert [member for member in first.members if member.alive()] == []
    assert [path for path, _ in first.shared if Path(path).exists()] == []
    assert set(first.members).isdisjoint(second.members)
    assert gateway.exists()
    gateway.unlink()
    ready.process.terminate()
    assert ready.wait() == 0
    assert ready.left() == []
    assert ready.traces() == []


def test_a_server_whose_engine_died_is_restarted_though_it_lives(lives: Callable[..., Serving]) -> None:
    """vLLM that outlives its engine answers 500 for ever, and 503 to /health."""
    serving = lives("broken=0:ok")
    first = serving.record("ready")
    assert ask(first) == 500
    assert ask(serving.restarted(1)) == 200
    assert "the model server's engine died" in serving.said
    assert not vllm_of(first).alive()


def test_a_server_that_ends_by_itself_is_restarted(lives: Callable[..., Serving]) -> None:
    serving = lives("dies=1")
    first = serving.record("ready")
    assert [ask(first), ask(first)] == [200, 0]
    second = serving.restarted(1)
    assert [ask(second), ask(second)] == [200, 0]
    serving.restarted(2)


def test_a_restart_is_asked_for_by_file(ready: Serving) -> None:
    """Only of the server that it names: one that was written for its predecessor was met already."""
    first = ready.record("ready")
    ask_restart(ready.folder, vllm_of(first), "it is stuck: no token for 60 s")
    second = ready.restarted(1)
    assert "(1 of VLLM_RESTARTS=3 this hour): it is stuck: no token for 60 s" in ready.said
    assert not (ready.folder / FILE).exists()
    assert not vllm_of(first).alive()
    ask_restart(ready.folder, vllm_of(first), "again")
    until(lambda: not (ready.folder / FILE).exists(), "it is read")
    ask_restart(ready.folder, vllm_of(second), "and now")
    assert ready.restarted(2).restarts == 2
    assert "): again" not in ready.said


def test_a_server_that_ignores_term_is_replaced_all_the_same(lives: Callable[..., Serving]) -> None:
    serving = lives("stubborn:ok")
    first = serving.record("ready")
    ask_restart(serving.folder, vllm_of(first), "stuck")
    serving.restarted(1)
    assert [member for member in first.members if member.alive()] == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"vllm": {"pid": "x"}, "why": 1}', "\xff"])
def test_what_is_no_request_asks_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    assert take_request(tmp_path, Process.me()) is None
    assert not (tmp_path / FILE).exists()


def test_a_request_names_one_process_and_is_taken_once(tmp_path: Path) -> None:
    ask_restart(tmp_path, Process.me(), "two\nlines")
    assert take_request(tmp_path, Process.me()) == "two lines"
    assert take_request(tmp_path, Process.me()) is None
    ask_restart(tmp_path, replace(Process.me(), start_time=1), "another of that pid")
    assert take_request(tmp_path, Process.me()) is None
    ask_restart(tmp_path, Process.me(), "nobody runs")
    assert take_request(tmp_path, None) is None


def test_the_limit_holds_in_any_hour() -> None:
    now = 0.0
    restarts = Restarts(2, lambda: now)
    assert [restarts.take(), restarts.take(), restarts.take()] == [1, 2, None]
    now = 3599
    assert restarts.take() is None
    now = 3600
    assert [restarts.take(), restarts.take(), restarts.take()] == [1, 2, None]
    now = 7000
    assert restarts.take() is None
    assert Restarts(0).take() is None


def test_a_server_that_is_restarted_too_often_has_failed(lives: Callable[..., Serving]) -> None:
    """Exit 1; the message says why, how often, and how to mend it."""
    serving = lives("dies=0", VLLM_RESTARTS="2")
    for restarts in range(3):
        assert ask(serving.restarted(restarts)) == 0
    record = serving.record("failed")
    assert serving.wait() == 1
    assert "SIGKILL" in record.message
    assert "VLLM_RESTARTS=2 allows" in record.message
    assert "raise VLLM_RESTARTS" in record.message
    assert (record.base_url, record.restarts) == ("", 2)
    assert serving.left() == []
    assert serving.traces() == []


def test_a_restart_that_does_not_come_up_counts_and_is_tried_again(lives: Callable[..., Serving]) -> None:
    serving = lives("dies=0:die:ok")
    assert ask(serving.record("ready")) == 0
    record = serving.restarted(2)
    assert ask(record) == 200
    first, second = re.findall(r"\((\d) of VLLM_RESTARTS=3 this hour\): (.*)", serving.said)
    assert (first[0], second[0]) == ("1", "2")
    assert "ValueError: Free memory on device" in second[1]


def test_restarts_that_never_come_up_end_with_the_last_reason(lives: Callable[..., Serving]) -> None:
    serving = lives("dies=0:die", VLLM_RESTARTS="2")
    assert ask(serving.record("ready")) == 0
    record = serving.record("failed")
    assert serving.wait() == 1
    assert "Free memory on device cuda:0" in record.message
    assert "Free memory" in record.evidence[-1]
    assert serving.log.count(f"=== launch {serving.folder.name} ") == 3
    assert serving.left() == []


def test_a_restart_that_takes_too_long_counts(lives: Callable[..., Serving]) -> None:
    serving = lives("dies=0:hang", VLLM_RESTARTS="1", SERVER_START_TIMEOUT_SEC="3")
    assert ask(serving.record("ready")) == 0
    assert "SERVER_START_TIMEOUT_SEC=3" in serving.record("failed").message
    assert serving.wait() == 1
    assert serving.left() == []


@pytest.mark.parametrize("second_life", ["hang", "die", "stubborn,hang"])
def test_term_while_it_restarts_leaves_nothing(lives: Callable[..., Serving], second_life: str) -> None:
    """While the new one starts, and while it pauses after one that failed."""
    serving = lives(f"dies=0:{second_life}", VLLM_RESTARTS="100")
    first = serving.record("ready")
    assert ask(first) == 0
    record = serving.record("restarting")
    assert (record.base_url, record.restarts) == ("", 1)
    assert "SIGKILL" in record.message
    until(lambda: serving.log.count(f"=== launch {serving.folder.name} ") == 2, "the second life")
    if second_life == "die":
        until(lambda: serving.record("restarting").restarts == 2, "the second restart")
    serving.process.terminate()
    assert serving.wait() == 0
    assert serving.left() == []
    assert [member for member in first.members if member.alive()] == []
    assert serving.traces() == []


def test_a_death_before_it_was_ever_ready_is_no_restart(lives: Callable[..., Serving]) -> None:
    serving = lives("die:ok")
    record = serving.record("failed")
    assert serving.wait() == 1
    assert record.restarts == 0
    assert "restarted" not in serving.said


def test_the_port_that_was_named_is_kept(start: Start, stand_in: Path) -> None:
    port = free_port()
    serving = start(VLLM_BIN=str(stand_in), VLLM_PORT=str(port))
    vllm_of(serving.record("ready")).signal(signal.SIGKILL)
    assert serving.restarted(1).base_url == f"http://127.0.0.1:{port}/v1"


@pytest.mark.parametrize("named", [False, True])
def test_c22_a_port_that_somebody_took_meanwhile(start: Start, stand_in: Path, named: bool) -> None:
    """C22: any other port will do, unless VLLM_PORT names one."""
    port = free_port()
    texts = {"VLLM_PORT": str(port), "VLLM_RESTARTS": "1"} if named else {}
    serving = start(VLLM_BIN=str(stand_in), **texts)
    first = serving.record("ready")
    serving.process.send_signal(signal.SIGSTOP)
    vllm_of(first).signal(signal.SIGKILL)
    until(lambda: not vllm_of(first).alive(), "it is dead")
    with socket.create_server(("127.0.0.1", int(first.base_url.split(":")[2].removesuffix("/v1")))):
        serving.process.send_signal(signal.SIGCONT)
        if named:
            assert f"VLLM_PORT={port} is in use by pid" in serving.record("failed").message
        else:
            assert ask(serving.restarted(1)) == 200
            assert serving.record("ready").base_url != first.base_url
