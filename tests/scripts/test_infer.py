"""infer.sh from its arguments to its last line; real sandboxes, real files, no model."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from driving import NO_REWARD, PASSES, REPOSITORY, tree
from launching import INFER, Runner, last_line_of_success

SLOW = "sleep 300; "


def infer(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["bash", str(INFER), *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_the_header_is_the_help() -> None:
    shown = infer("--help")
    assert shown.returncode == 0
    assert "usage: bash scripts/infer/infer.sh [--dry-run] CONFIG" in shown.stdout
    assert "exit: 0 every trial has a verdict" in shown.stdout
    assert "set -euo" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no CONFIG"),
        (("--fast", "x"), "--fast"),
        (("a.env", "b.env"), "not two"),
        (("/no/such.env",), "/no/such.env"),
        (("/tmp",), "is a folder"),
    ],
)
def test_usage_errors_are_named_and_exit_2(arguments: tuple[str, ...], said: str) -> None:
    refused = infer(*arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "=== inference done" not in refused.stdout


def test_a20_a23_a_second_launch_owes_nothing_and_starts_no_driver(runner: Runner) -> None:
    """A20, A23."""
    site = runner.site
    site.tasks({"one": PASSES})
    first = runner.finish()
    assert first.returncode == 0
    assert first.stdout.splitlines() == [last_line_of_success(site)]
    assert "one trial_0: pass" in first.stderr
    before = site.outcomes()
    again = runner.finish()
    assert again.returncode == 0
    assert again.stdout.splitlines()[-1] == last_line_of_success(site)
    assert site.outcomes() == before
    log = site.log.read_text()
    assert log.count("=== launch ") == 2
    assert log.count("one trial_0: pass") == 1


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, so that nobody else writes into its logs/."""
    root = tmp_path / "checkout"
    for folder in ("scripts", "src"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "logs").mkdir()
    shutil.copy(REPOSITORY / "logs" / ".gitignore", root / "logs")
    return root


@pytest.mark.parametrize("order", ["before", "behind"])
def test_a15_a_dry_run_writes_nothing(runner: Runner, checkout: Path, order: str) -> None:
    """A15."""
    site = runner.site
    site.tasks({"one": PASSES})
    script, config = str(checkout / "scripts" / "infer" / "infer.sh"), str(site.config)
    before = written(site.folder)
    line = ["bash", script, *(["--dry-run", config] if order == "before" else [config, "--dry-run"])]
    shown = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert written(site.folder) == before
    assert f"rolloutgen run {config}" in shown.stdout
    assert "2 owed" in shown.stdout


def test_a15_a_dry_run_of_what_would_be_refused_exits_2(runner: Runner) -> None:
    """A15."""
    site = runner.site
    site.tasks({"one": PASSES})
    site.keys["INSTANCES_FILE"] = "/no/such/file"
    shown = runner.finish("--dry-run")
    assert shown.returncode == 2
    assert "INSTANCES_FILE" in shown.stdout
    assert not site.log.exists()
    assert not site.results.exists()


def test_a17_preflight_only_is_refused_and_points_to_dry_run(runner: Runner) -> None:
    """A17: that key belongs to the train runner."""
    runner.site.tasks({"one": PASSES})
    runner.site.keys["PREFLIGHT_ONLY"] = "1"
    refused = runner.finish()
    assert refused.returncode == 2
    assert "--dry-run" in refused.stdout
    assert not runner.site.results.exists()


def test_c24_every_problem_of_a_config_at_once_and_nothing_is_started(runner: Runner) -> None:
    """C24."""
    site = runner.site
    site.tasks({"one": PASSES})
    site.keys |= {"N_TRIALS": "four", "N_CONCURRENT": "'4 '", "N_TRAILS": "4", "PASS_THRESHOLD": "$nowhere"}
    refused = runner.finish()
    assert refused.returncode == 2
    for said in ("N_TRIALS: must be", "N_CONCURRENT: must be", "did you mean N_TRIALS?", "nowhere: unbound variable"):
        assert said in refused.stdout
    assert refused.stdout.splitlines()[-1].startswith("=== inference failed: ")
    assert not site.results.exists()
    assert not site.log.exists()


def test_keys_in_the_callers_environment_are_dropped_by_name(runner: Runner) -> None:
    site = runner.site
    site.tasks({"one": PASSES})
    run = runner.finish(N_TRIALS="7", EXEC_OUTPUT_MAX_MB="1", VENV_PATH="/nowhere")
    assert run.returncode == 0, run.stderr
    (warning,) = [line for line in run.stderr.splitlines() if "not taken from the environment" in line]
    assert {"N_TRIALS", "EXEC_OUTPUT_MAX_MB", "VENV_PATH"} <= set(warning.split())
    assert len(site.outcomes()) == 2


def test_a28_children_get_an_environment_of_few_names(runner: Runner) -> None:
    """A28."""
    runner.site.tasks({"one": SLOW + PASSES})
    process = runner.start(WANDB_API_KEY="x", TENSORBOARD_LOGDIR="y", ROLLOUTGEN_MODEL_KEY="z", AWS_SECRET="s")
    driver = runner.driver()
    names = {entry.split(b"=")[0].decode() for entry in _environ(driver.pid).split(b"\0") if entry}
    assert "ROLLOUTGEN_LAUNCH" in names
    assert not names & {"WANDB_API_KEY", "TENSORBOARD_LOGDIR", "ROLLOUTGEN_MODEL_KEY", "AWS_SECRET", "TEST_INPUTS"}
    process.terminate()
    process.wait(timeout=40)


def test_c23_exit_3_goes_through_a_pipe_and_stands_in_the_last_line(runner: Runner) -> None:
    """C23, A23."""
    site = runner.site
    site.tasks({"one": NO_REWARD, "two": PASSES})
    site.keys["ATTEMPTS_PER_TRIAL"] = "1"
    line = f"bash {shlex.quote(str(INFER))} {site.config} | tee {runner.out}; exit ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=120)
    assert piped.returncode == 3
    assert runner.last_line.startswith("=== inference incomplete: ")
    assert "(exit 3)" in runner.last_line


def test_a18_the_log_folder_ships() -> None:
    """A18."""
    ignored = (REPOSITORY / "logs" / ".gitignore").read_text().split()
    assert "!.gitignore" in ignored


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """All but the byte code that Python keeps beside its sources."""
    return {path: stat for path, stat in tree(folder).items() if f"{folder}/checkout/src/" not in path}


def _environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
