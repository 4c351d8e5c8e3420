"""infer.sh under signals and kills: what runs is ended, what is done stays, the last line says how it went."""

import os
import signal
import subprocess
import time

import pytest

from driving import FAILS, PASSES, tree, until
from launching import CLEANUP, Runner, commands_with, last_line_of_success
from rolloutgen.processes import Process, marked

LONG = "sleep 301; "
WAIT_SEC = 40


@pytest.fixture
def running(runner: Runner) -> Runner:
    """One quick task and one that takes five minutes; the quick one has its verdicts, the long one runs."""
    runner.site.tasks({"quick": PASSES, "long": LONG + FAILS})
    runner.site.keys["N_CONCURRENT"] = "3"
    runner.start()
    runner.driver()
    until(lambda: len(runner.site.outcomes()) == 2, "both quick trials have their verdict")
    return runner


def launch_id(runner: Runner) -> str:
    (record,) = runner.records()
    return record.launch_id


@pytest.mark.parametrize(
    ("signum", "status", "to_group"),
    [
        (signal.SIGTERM, 143, False),
        (signal.SIGTERM, 143, True),
        (signal.SIGINT, 130, True),
        (signal.SIGHUP, 129, False),
    ],
)
def test_a_signal_ends_all_of_it_and_it_resumes(
    running: Runner, signum: signal.Signals, status: int, to_group: bool
) -> None:
    process, mark, before = running.started[0], launch_id(running), running.site.outcomes()
    (os.killpg if to_group else os.kill)(process.pid, signum)
    assert process.wait(timeout=WAIT_SEC) == status
    assert running.last_line.startswith(f"=== inference incomplete: interrupted by {signum.name}")
    assert marked(mark) == []
    assert running.records() == []
    assert running.site.outcomes() == before
    assert not running.site.selected.exists()


def test_a_second_signal_hurries_and_still_cleans(running: Runner) -> None:
    process, mark = running.started[0], launch_id(running)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_SEC) == 143
    assert marked(mark) == []
    assert running.records() == []


def test_a_driver_that_does_not_end_is_killed_in_time(running: Runner) -> None:
    process, mark, driver = running.started[0], launch_id(running), running.driver()
    driver.signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    assert marked(mark) == []


def test_c25_a_hang_up_under_nohup_does_nothing(runner: Runner) -> None:
    """C25."""
    runner.site.tasks({"one": "sleep 3; " + PASSES})
    with runner.out.open("wb") as out:
        process = subprocess.Popen(
            ["nohup", "setsid", "--wait", "bash", "scripts/infer/infer.sh", str(runner.site.config)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    runner.started.append(process)
    runner.driver()
    (record,) = runner.records()
    record.launcher.signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0
    assert runner.last_line == last_line_of_success(runner.site)


def test_int_stays_ignored_where_it_was_ignored_on_entry(runner: Runner) -> None:
    runner.site.tasks({"one": "sleep 3; " + PASSES})
    line = f"bash scripts/infer/infer.sh {runner.site.config} >{runner.out} 2>&1 & wait $!"
    process = subprocess.Popen(["bash", "-c", line])
    runner.started.append(process)
    runner.driver()
    (record,) = runner.records()
    record.launcher.signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def test_a_driver_that_is_killed_fails_the_run_at_once(running: Runner) -> None:
    mark = launch_id(running)
    running.driver().signal(signal.SIGKILL)
    assert running.started[0].wait(timeout=WAIT_SEC) == 1
    assert running.last_line.startswith("=== inference failed: the driver ended with status 137")
    assert marked(mark) == []


def test_kill_9_of_the_launcher_alone_ends_the_driver_and_the_next_launch_goes_on(running: Runner) -> None:
    site, mark, before = running.site, launch_id(running), running.site.outcomes()
    running.started[0].kill()
    running.started[0].wait()
    until(lambda: not marked(mark), "the driver ends by itself", WAIT_SEC)
    assert commands_with("sleep 301") == []
    make_quick(running)
    again = running.finish()
    assert again.returncode == 0, again.stderr
    assert running.records() == []
    assert {path: site.outcomes()[path] for path in before} == before


def test_a20_a29_kill_9_of_everything_is_cleaned_up_and_resumed(running: Runner) -> None:
    """A20, A29."""
    site, mark, before = running.site, launch_id(running), running.site.outcomes()
    driver = running.driver()
    running.started[0].kill()
    os.killpg(driver.pid, signal.SIGKILL)
    running.started[0].wait()
    stored = tree(site.results)
    cleaned = subprocess.run(
        ["bash", str(CLEANUP), str(site.config)], capture_output=True, text=True, check=False, timeout=90, cwd="/"
    )
    assert cleaned.returncode == 0, cleaned.stderr
    assert f"{mark}: removed its record" in cleaned.stdout
    assert marked(mark) == []
    assert commands_with("sleep 301") == []
    assert tree(site.results) == stored
    make_quick(running)
    assert running.finish().returncode == 0
    assert {path: site.outcomes()[path] for path in before} == before


def test_a29_clean_up_leaves_a_live_launch_alone(running: Runner) -> None:
    """A29."""
    driver = running.driver()
    cleaned = subprocess.run(["bash", str(CLEANUP), str(running.site.config)], capture_output=True, check=False)
    assert cleaned.returncode == 0
    assert driver.alive()
    assert len(running.records()) == 1


def test_a11_a_second_runner_is_refused_by_name_of_the_owner(running: Runner) -> None:
    """A11."""
    mark, driver, log = launch_id(running), running.driver(), running.site.log.read_text()
    for arguments in ((), ("--dry-run",)):
        refused = running.finish(*arguments)
        assert refused.returncode == 2
        assert mark in refused.stderr
        assert f"pid {running.started[0].pid}" in refused.stderr
    assert driver.alive()
    assert running.site.log.read_text().startswith(log)
    assert running.site.log.read_text().count("=== launch ") == 1


def test_a11_an_ending_launch_is_waited_for(running: Runner) -> None:
    """A11."""
    (record,) = running.records()
    running.driver().signal(signal.SIGSTOP)
    running.started[0].send_signal(signal.SIGTERM)
    until(lambda: record.is_ending, "the launch is marked as ending")
    make_quick(running)
    waited = running.finish()
    assert waited.returncode == 0, waited.stderr
    assert f"waiting for launch {record.launch_id}" in waited.stderr
    assert running.started[0].wait() == 143


def test_a11_a_dry_run_does_not_disturb_a_start(runner: Runner) -> None:
    """A11, A15."""
    runner.site.tasks({"one": PASSES})
    assert runner.finish().returncode == 0
    runner.site.keys["N_TRIALS"] = "3"
    lock = runner.site.results / ".lock"
    looker = subprocess.Popen(["flock", "--shared", str(lock), "sleep", "0.7"])
    until(lambda: Process.of(looker.pid) is not None, "the lock is looked at")
    assert runner.finish().returncode == 0
    looker.wait()


def make_quick(runner: Runner) -> None:
    """The long task becomes one that fails at once. Its verdicts are not there yet, so that this is no other task."""
    (runner.site.folder / "tasks" / "long" / "tests" / "test.sh").write_text(f"#!/bin/bash\n{FAILS}\n")
