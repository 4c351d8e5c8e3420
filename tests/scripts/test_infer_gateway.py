"""infer.sh with its three processes: server, gateway, driver. Each one's death, and every end, and nothing is left."""

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass

import pytest

from driving import PASSES, until
from launching import Runner, last_line_of_success
from rolloutgen import launches
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.processes import Process, marked
from rolloutgen.serving.record import ServerRecord

from .launched import WAIT_SEC, gateway_of, mark_of, nothing_is_left, server_of

ONCE_A_MINUTE_SEC = 61
TOLD_TO_END = "told to end"


@dataclass
class Launched:
    """A launch whose attempt runs, with all of its parts."""

    runner: Runner
    process: subprocess.Popen[bytes]
    driver: Process
    mark: str
    server: ServerRecord
    gateway: GatewayRecord

    def nothing_is_left(self) -> bool:
        return nothing_is_left(self.runner, self.mark, self.server)


@pytest.fixture
def launched(served: Runner) -> Launched:
    return launch(served)


def launch(served: Runner) -> Launched:
    process = served.start()
    driver = served.driver()
    return Launched(served, process, driver, mark_of(served), server_of(served), gateway_of(served))


def make_quick(runner: Runner) -> None:
    """Its verdict is not there yet, so that this is no other task."""
    (runner.site.folder / "tasks" / "long" / "tests" / "test.sh").write_text(f"#!/bin/bash\n{PASSES}\n")


def test_a_run_with_a_model_goes_through_all_three(served: Runner) -> None:
    """A24; what the gateway found out about the model is shown, and stands in the log once."""
    make_quick(served)
    done = served.finish()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [last_line_of_success(served.site)]
    order = ["the model server is ready", "TEMPERATURE: acts", "the gateway is ready", "long trial_0: pass"]
    assert sorted(order, key=done.stderr.index) == order
    assert served.site.log.read_text().count("TEMPERATURE: acts") == 1
    assert served.records() == []


def test_a15_a_dry_run_shows_the_command_lines_of_all_three(served: Runner) -> None:
    """A15."""
    shown = served.finish("--dry-run")
    assert shown.returncode == 0, shown.stdout
    places = [shown.stdout.index(text) for text in ("server: ", "gateway: ", "driver: ")]
    assert places == sorted(places)
    assert f"rolloutgen gateway {served.site.folder / 'run.env'} --launch DIR --launcher PID" in shown.stdout


def test_each_part_leads_a_session_and_carries_the_mark(launched: Launched) -> None:
    """So a signal to the launcher's group reaches none of them, and the sweep finds all (A29)."""
    parts = [launched.driver, launched.gateway.gateway, launched.server.serve]
    assert [os.getsid(part.pid) for part in parts] == [part.pid for part in parts]
    assert set(parts) <= set(marked(launched.mark))


def test_a_gateway_that_fails_its_canary_ends_the_launch(served: Runner) -> None:
    """A13: before any trial; the last line says why, and what was found is shown."""
    served.site.keys["VLLM_ENV"] = "STAND_IN=cold"
    failed = served.finish()
    assert failed.returncode == 1
    last = failed.stdout.splitlines()[-1]
    assert last.startswith("=== inference failed: the gateway ended: FATAL TEMPERATURE: does not act")
    assert "the model answers in words" in failed.stderr
    assert not list(served.site.results.glob("*/*.attempt_*"))
    assert served.records() == []


def test_a_port_of_the_gateway_in_use_is_named(served: Runner) -> None:
    """C22."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        served.site.keys["GATEWAY_PORT"] = str(port)
        failed = served.finish()
    assert failed.returncode == 2
    assert "GATEWAY_PORT" in failed.stderr
    assert f"127.0.0.1:{port} is in use by pid {os.getpid()}" in failed.stderr
    assert served.records() == []


def test_a_server_that_fails_under_the_canary_is_the_reason(served: Runner) -> None:
    served.site.keys |= {"VLLM_ENV": "STAND_IN=checks,broken=0", "VLLM_RESTARTS": "0"}
    failed = served.finish()
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1].startswith("=== inference failed: the model server ended: ")
    assert served.records() == []


def test_a_gateway_that_dies_within_a_minute_ends_the_run(launched: Launched) -> None:
    """Exit 1 and resumable: the same command goes on."""
    launched.gateway.gateway.signal(signal.SIGKILL)
    assert launched.process.wait(timeout=WAIT_SEC) == 1
    assert launched.nothing_is_left()
    assert launched.runner.last_line.startswith("=== inference failed: the gateway ended: it was killed (log: ")
    assert TOLD_TO_END in launched.runner.site.log.read_text()
    make_quick(launched.runner)
    assert launched.runner.finish().returncode == 0


@pytest.mark.slow
def test_a_gateway_that_dies_later_is_started_again_and_once_a_minute_at_most(launched: Launched) -> None:
    time.sleep(ONCE_A_MINUTE_SEC)
    launched.gateway.gateway.signal(signal.SIGKILL)

    def is_back() -> bool:
        record = gateway_of(launched.runner)
        return record.state == "ready" and record.gateway != launched.gateway.gateway

    until(is_back, "another gateway", WAIT_SEC)
    assert "the gateway ended with status 137; it is started again" in launched.runner.site.log.read_text()
    assert launched.driver.alive()
    gateway_of(launched.runner).gateway.signal(signal.SIGKILL)
    assert launched.process.wait(timeout=WAIT_SEC) == 1
    assert launched.nothing_is_left()


def test_a_server_that_failed_for_good_is_told_by_the_driver_itself(served: Runner) -> None:
    """The driver hears of it through the gateway; it is not ended by the launcher, and leaves its tables.

    No server answers an agent: one that had its answer would be with its verifier, for longer than the driver is given.
    """
    served.site.keys["VLLM_ENV"] = "STAND_IN=deaf=0"
    launched = launch(served)
    for restarts in range(4):
        kill_server(launched, restarts)
    assert launched.process.wait(timeout=WAIT_SEC) == 1
    assert launched.nothing_is_left()
    assert "VLLM_RESTARTS=3 allows" in launched.runner.last_line
    assert TOLD_TO_END not in launched.runner.site.log.read_text()
    assert (launched.runner.site.results / "summary.csv").exists()


def kill_server(launched: Launched, restarts: int) -> None:
    """When it is ready after so many restarts."""

    def is_ready() -> bool:
        server = server_of(launched.runner)
        return (server.state, server.restarts) == ("ready", restarts)

    until(is_ready, "a server", WAIT_SEC)
    vllm = server_of(launched.runner).vllm
    assert vllm is not None
    vllm.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("signum", "status", "to_group"),
    [(signal.SIGTERM, 143, True), (signal.SIGINT, 130, False), (signal.SIGHUP, 129, False)],
)
def test_a_signal_ends_all_three(launched: Launched, signum: signal.Signals, status: int, to_group: bool) -> None:
    (os.killpg if to_group else os.kill)(launched.process.pid, signum)
    assert launched.process.wait(timeout=WAIT_SEC) == status
    assert launched.nothing_is_left()
    assert launched.runner.last_line.startswith(f"=== inference incomplete: interrupted by {signum.name}")


def test_a_second_signal_hurries_all_three(launched: Launched) -> None:
    launched.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.process.wait(timeout=WAIT_SEC) == 143
    assert launched.nothing_is_left()


@pytest.mark.parametrize("hung", [["gateway"], ["driver", "gateway", "serve", "vllm"]])
def test_what_hangs_is_killed(launched: Launched, hung: list[str]) -> None:
    """Each part has its limit, and all of them together half a minute."""
    assert launched.server.vllm is not None
    parts = {"driver": launched.driver, "gateway": launched.gateway.gateway}
    parts |= {"serve": launched.server.serve, "vllm": launched.server.vllm}
    for name in hung:
        parts[name].signal(signal.SIGSTOP)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.process.wait(timeout=WAIT_SEC) == 143
    assert launched.nothing_is_left()


def test_a_signal_while_the_gateway_starts(served: Runner) -> None:
    served.site.keys["VLLM_ENV"] = "STAND_IN=checks,deaf=0"
    process = served.start()
    until(lambda: any((record.folder / "gateway.json").exists() for record in served.records()), "the gateway starts")
    mark, server = mark_of(served), server_of(served)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_SEC) == 143
    assert nothing_is_left(served, mark, server)


def test_kill_9_of_the_launcher_ends_the_gateway_too(launched: Launched) -> None:
    launched.process.kill()
    until(lambda: not marked(launched.mark), "all end", WAIT_SEC)
    assert not launched.gateway.gateway.alive()
    assert not any(member.alive() for member in launched.server.members)


def test_a29_a_gateway_that_is_left_alone_is_swept(launched: Launched) -> None:
    """A29: after kill -9 of all others, its socket included."""
    os.kill(launched.gateway.gateway.pid, signal.SIGSTOP)
    launched.process.kill()
    for process in (launched.driver, launched.server.serve, *launched.server.members):
        process.signal(signal.SIGKILL)
    launched.process.wait()
    (record,) = launched.runner.records()
    lines = launches.end_launch(record, 0)
    assert f"{launched.mark}: ended process {launched.gateway.gateway.pid}" in lines
    assert launched.nothing_is_left()
    assert not os.path.exists(launched.gateway.socket)  # noqa: PTH110  # a name
