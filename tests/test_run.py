"""The driver end to end, as processes: real sandboxes, real files, real signals; verdicts known beforehand."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from driving import FAILS, NO_REWARD, PASSES, REPOSITORY, Site, environment, kill_session, read_json, until
from rolloutgen.processes import marked


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.clean()


def known(n_instances: int, before: str = "") -> dict[str, str]:
    """Instance i passes if i is even, else fails."""
    return {f"task{i:02}": before + (FAILS if i % 2 else PASSES) for i in range(n_instances)}


def rates(site: Site) -> dict[str, str]:
    return {row["instance_id"]: row["pass_rate"] for row in site.summary()}


def test_a3_a4_a25_every_trial_gets_the_verdict_of_its_own_verifier(site: Site) -> None:
    site.tasks(known(4))
    assert site.launch() == 0
    assert rates(site) == {"task00": "1", "task01": "0", "task02": "1", "task03": "0"}
    assert len(site.outcomes()) == 8
    assert (site.results / "task00" / "trial_1" / "transcript.jsonl").exists()
    assert len(pd.read_parquet(site.selected)) == 0  # C19
    log = site.log.read_text()
    assert "task02 trial_1: pass, reward 1" in log
    assert f"selected index: {site.selected}" in log


def test_a_disk_that_refuses_an_outcome_ends_the_run_with_its_tables(site: Site) -> None:
    site.tasks(known(2))
    assert site.prepare().returncode == 0
    (site.results / "task01").write_text("in the way")
    assert site.start().wait(timeout=300) == 1
    assert [row["instance_id"] for row in site.summary()] == ["task00", "task01"]
    assert not site.selected.exists()
    assert "an attempt could not begin" in (site.launches[-1] / "reason").read_text()


def test_a_display_that_cannot_show_every_letter_ends_no_run(site: Site) -> None:
    """An id in letters that the terminal's encoding lacks is escaped there."""
    site.tasks({"naïve-名": PASSES})
    assert site.prepare().returncode == 0
    assert site.start(PYTHONIOENCODING="ascii").wait(timeout=300) == 0
    assert "na\\xefve-\\u540d trial_1: pass" in site.output


def test_a20_c11_c12_nothing_is_run_twice_and_only_what_is_missing_is_run(site: Site) -> None:
    site.tasks(known(3))
    site.keys["INSTANCES_FILE"] = str(site.folder / "ids")
    (site.folder / "ids").write_text("task00\ntask01\n")
    assert site.launch() == 0
    before = site.outcomes()
    assert site.prepare().returncode == 10
    (site.folder / "ids").write_text("task00\ntask01\ntask02\n")
    site.keys["N_TRIALS"] = "3"
    assert site.launch() == 0
    after = site.outcomes()
    assert len(after) == 9
    assert all(after[path] == content for path, content in before.items())
    site.keys["N_TRIALS"] = "1"
    prepared = site.prepare()
    assert prepared.returncode == 10
    assert "6 trials beyond N_TRIALS=1 are left alone" in prepared.stdout
    assert [row["n_trials"] for row in site.summary()] == ["1", "1", "1"]
    assert len(site.outcomes()) == 9


def test_a22_c15_a_shard_reports_itself_alone(site: Site) -> None:
    site.tasks(known(3))
    assert site.launch() == 0
    site.keys["INSTANCES_FILE"] = str(site.folder / "ids")
    (site.folder / "ids").write_text("task01\n")
    prepared = site.prepare()
    assert prepared.returncode == 10
    assert "2 folders belong to no instance of this shard" in prepared.stdout
    assert list(rates(site)) == ["task01"]


def test_c20_every_trial_errors(site: Site) -> None:
    site.tasks({"a": NO_REWARD, "b": NO_REWARD})
    site.keys["ATTEMPTS_PER_TRIAL"] = "2"
    assert site.launch() == 3
    assert rates(site) == {"a": "", "b": ""}
    reason = (site.launches[-1] / "reason").read_text()
    assert reason == "4 of 4 trials without a verdict (reward_missing 4)"
    assert "incomplete, so not selected: 2 instances: a, b" in site.output
    assert len(list(site.results.glob("a/trial_0.attempt_*"))) == 2
    assert len(pd.read_parquet(site.selected)) == 0


def test_retry_exhausted_asks_for_more_attempts(site: Site) -> None:
    site.tasks({"a": NO_REWARD, "b": PASSES})
    site.keys |= {"N_TRIALS": "1", "ATTEMPTS_PER_TRIAL": "1"}
    assert site.launch() == 3
    prepared = site.prepare()
    assert prepared.returncode == 3  # nothing may be tried: no server and no driver are started for it
    assert "1 trials have used up their attempts" in prepared.stdout
    site.keys["RETRY_EXHAUSTED"] = "1"
    assert site.launch() == 3
    assert len(list(site.results.glob("a/trial_0.attempt_*"))) == 2


def test_a5_the_mixed_instances_are_selected(site: Site) -> None:
    coin = "echo $((RANDOM % 2)) > /logs/verifier/reward.txt"
    site.tasks({"fails": FAILS, "coin": coin, "passes": PASSES})
    site.keys |= {"N_TRIALS": "24", "N_CONCURRENT": "8"}  # all alike: once in 2**23
    assert site.launch() == 0
    rows = pd.read_parquet(site.selected)
    assert [extra["instance_id"] for extra in rows["extra_info"]] == ["coin"]
    task = str(site.folder / "tasks" / "coin")
    assert rows["extra_info"][0]["harbor_task_path"] == task
    assert rows["prompt"][0][0]["content"] == task
    assert 0 < float(rates(site)["coin"]) < 1


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_resumable_and_leaves_nothing_running(site: Site, signum: int, code: int) -> None:
    site.tasks(known(6, "sleep 1; "))
    site.selected.write_text("an older index")
    assert site.prepare().returncode == 0
    process = site.start()
    until(lambda: bool(site.outcomes()), "a first verdict")
    process.send_signal(signum)
    assert process.wait(timeout=30) == code
    assert marked(site.launches[-1].name) == []
    assert "interrupted; resumable" in (site.launches[-1] / "reason").read_text()
    assert site.selected.read_text() == "an older index"
    assert "is of an earlier launch" in site.output
    stored = site.outcomes()
    assert sum(int(row["n_scored"]) for row in site.summary()) == len(stored) < 12
    assert site.launch() == 0
    assert rates(site) == {f"task{i:02}": str(1 - i % 2) for i in range(6)}
    assert all(site.outcomes()[path] == content for path, content in stored.items())


def test_a20_a_launch_whose_launcher_is_dead_leaves_no_record(site: Site, tmp_path: Path) -> None:
    """It would be taken for a live one for ever: an orphan's parent is the machine's first process."""
    site.tasks(known(1))
    launcher = subprocess.Popen(["true"])
    launcher.wait()
    folder = tmp_path / "launch"
    folder.mkdir()
    done = site.command("prepare", "--launch", str(folder), "--launcher", str(launcher.pid))
    assert (done.returncode, list(folder.iterdir())) == (1, [])
    assert "the launcher" in done.stderr + done.stdout
    assert site.command("prepare", "--launch", str(folder)).returncode == 2


def test_the_driver_ends_when_its_launcher_dies(site: Site) -> None:
    site.tasks(known(4, "sleep 60; "))
    assert site.prepare().returncode == 0
    launcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = site.start(launcher=launcher.pid)
    until(lambda: bool(list(site.results.glob("*/*.attempt_1"))), "a first attempt")
    launcher.kill()
    launcher.wait()
    assert process.wait(timeout=30) == 143
    assert marked(site.launches[-1].name) == []


def _has_more(site: Site, process: "subprocess.Popen[bytes]", n_verdicts: int) -> Callable[[], bool]:
    return lambda: len(site.outcomes()) >= n_verdicts or process.poll() is not None


@pytest.mark.slow
def test_c10_killed_at_random_moments_the_summary_is_that_of_an_undisturbed_run(site: Site, tmp_path: Path) -> None:
    """No verdict lost, none counted twice, none invented."""
    undisturbed = Site(tmp_path / "undisturbed")
    undisturbed.folder.mkdir()
    verdicts = known(10, "sleep 0.2; ")
    undisturbed.tasks(verdicts)
    try:
        assert undisturbed.launch() == 0
    finally:
        undisturbed.clean()
    site.tasks(verdicts)
    chance = random.Random(20)
    for _ in range(6):
        prepared = site.prepare()
        if prepared.returncode != 0:
            break
        process = site.start()
        before = site.outcomes()
        until(_has_more(site, process, len(before) + chance.randint(1, 4)), "verdicts")
        kill_session(process)
        assert all(site.outcomes()[path] == content for path, content in before.items())
    stored = site.outcomes()
    assert site.launch() in (0, 10)
    assert all(site.outcomes()[path] == content for path, content in stored.items())
    assert len(site.outcomes()) == 20
    assert (site.results / "summary.csv").read_bytes() == (undisturbed.results / "summary.csv").read_bytes()


def test_a_full_disk_is_loud_and_resumable(site: Site) -> None:
    """Results that cannot be stored end the run with the reason; nothing is guessed."""
    site.tasks(known(4))
    assert site.prepare().returncode == 0
    site.results.joinpath("task01").write_text("in the way")
    process = site.start()
    assert process.wait(timeout=60) == 1
    assert "task01" in (site.launches[-1] / "reason").read_text()
    assert marked(site.launches[-1].name) == []


def test_a_lost_terminal_does_not_end_a_run(site: Site) -> None:
    """C25: what the driver prints to is gone; the results and the log are not."""
    site.tasks(known(3, "sleep 0.3; "))
    assert site.prepare().returncode == 0
    launch = site.launches[-1]
    line = [sys.executable, "-m", "rolloutgen", "run", str(site.config), "--launch", str(launch)]
    process = subprocess.Popen(
        [*line, "--launcher", str(os.getpid())],
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=REPOSITORY,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert "task02 trial_1" in site.log.read_text()


def test_progress_is_told_from_outside_while_it_runs_and_after(site: Site) -> None:
    site.tasks(known(4, "sleep 2; "))
    assert "never started: 4 instances, 8 trials planned" in site.command("status").stdout
    assert site.prepare().returncode == 0
    process = site.start()
    progress = site.launches[-1] / "progress.json"
    until(lambda: progress.exists() and read_json(progress)["running"] == 4, "four running attempts")
    running = site.command("status").stdout
    assert running.startswith("running: launch ")
    assert "0/8 trials done" in running or "/8 trials done" in running
    assert "4 running" in running
    kill_session(process)
    site.clean()
    stopped = site.command("status").stdout
    assert "not running: " in stopped
    assert "interrupted" in stopped
    assert site.launch() == 0
    site.clean()
    assert "ended, every trial has a verdict: 8/8 trials done (4 pass, 4 fail)" in site.command("status").stdout
    (site.results / "run.json").unlink()
    assert "run.json is missing: nothing says what 8 verdicts measured" in site.command("status").stdout
