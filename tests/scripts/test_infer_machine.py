"""infer.sh on odd machines: lost readers, a missing command, names and folders that a caller's shell brings along."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from driving import PASSES
from launching import INFER, Runner, last_line_of_success


@pytest.mark.parametrize("sink", ["| head -c 10", "> /dev/full 2>&1"])
def test_whoever_stops_reading_does_not_change_the_end(runner: Runner, sink: str) -> None:
    """A20, A24: ``| head``, and the disk of a nohup.out that is full."""
    site = runner.site
    site.tasks({"one": PASSES})
    line = f"bash {shlex.quote(str(INFER))} {site.config} 2>&1 {sink}; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=120)
    assert run.returncode == 0
    assert site.log.read_text().splitlines()[-1] == last_line_of_success(site)


@pytest.mark.parametrize("missing", ["setsid", "flock"])
def test_a_missing_command_is_named(runner: Runner, tmp_path: Path, missing: str) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for command in Path(folder).iterdir():
            if command.name != missing and not (commands / command.name).is_symlink():
                (commands / command.name).symlink_to(command)
    runner.site.tasks({"one": PASSES})
    refused = runner.finish(PATH=str(commands))
    assert refused.returncode == 2
    assert f"FATAL the command {missing} is not on PATH" in refused.stderr
    assert not runner.site.results.exists()


def test_a_temporary_folder_that_is_gone_is_named(runner: Runner) -> None:
    runner.site.tasks({"one": PASSES})
    refused = runner.finish(TMPDIR="/no/such/folder")
    assert refused.returncode == 2
    assert "FATAL TMPDIR=/no/such/folder" in refused.stderr


def test_a_log_that_cannot_be_written_is_refused(runner: Runner) -> None:
    """Exit 2: nothing was started."""
    site = runner.site
    site.tasks({"one": PASSES})
    site.log.mkdir(parents=True)
    refused = runner.finish()
    site.log.rmdir()
    assert refused.returncode == 2
    assert f"FATAL the log {site.log} cannot be written" in refused.stderr
    assert not runner.records()


def test_cdpath_leads_nowhere_else(runner: Runner) -> None:
    """An exported CDPATH makes ``cd`` print, and go to other folders."""
    runner.site.tasks({"one": PASSES})
    run = subprocess.run(
        ["bash", "scripts/infer/infer.sh", "--dry-run", str(runner.site.config)],
        capture_output=True,
        text=True,
        cwd=INFER.parents[2],
        env=os.environ | {"CDPATH": ".:/tmp"},
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr


def test_results_in_a_folder_with_an_odd_name(runner: Runner) -> None:
    """A24: the last line names it as it is."""
    site = runner.site
    site.tasks({"one": PASSES})
    results = site.folder / "it's a=réçu 1="
    site.keys["RESULTS_DIR"] = shlex.quote(str(results))
    run = runner.finish()
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == f"=== inference done: results={results}  selected={site.selected} ==="
    assert [path.name for path in results.iterdir() if path.is_dir()] == ["one"]


def test_a11_the_owner_is_named_by_the_host_it_runs_on(runner: Runner) -> None:
    """A11: a job inherits HOSTNAME from the machine where it was queued."""
    site = runner.site
    site.tasks({"one": "sleep 300; " + PASSES})
    process = runner.start(HOSTNAME="login-node")
    runner.driver()
    refused = runner.finish()
    process.terminate()
    process.wait(timeout=40)
    assert refused.returncode == 2
    assert f"on {os.uname().nodename}," in refused.stderr
