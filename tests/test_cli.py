"""The commands: help, quick starts, errors at one door with what is wrong, where, and how to mend it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from driving import PASSES, REPOSITORY, Site, environment, tree

_HEAVY = "harbor litellm pandas pyarrow kubernetes numpy rich aiohttp"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.clean()


def rolloutgen(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rolloutgen", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=REPOSITORY,
        check=False,
    )


def test_help_names_every_command_and_exit_code() -> None:
    shown = rolloutgen("--help")
    assert shown.returncode == 0
    for_people, for_the_launcher = ("check", "status", "export", "cleanup"), ("prepare", "serve", "gateway", "run")
    for name in (*for_people, *for_the_launcher, "parameters", "resolve", "143", "infer.sh"):
        assert name in shown.stdout


@pytest.mark.parametrize("arguments", [[], ["runn"], ["check"], ["run", "x.env"]])
def test_wrong_usage_is_2_and_says_why(arguments: list[str]) -> None:
    shown = rolloutgen(*arguments)
    assert shown.returncode == 2
    assert "usage: " in shown.stderr
    assert shown.stdout == ""


@pytest.mark.parametrize("command", ["--help", "resolve", "status --help"])
def test_quick_commands_import_nothing_heavy(command: str, site: Site) -> None:
    arguments = [*command.split(), *([str(site.config)] if command == "resolve" else [])]
    program = f"""
import sys
from rolloutgen.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print("heavy:", *(name for name in {_HEAVY.split()!r} if name in sys.modules), file=sys.stderr)
"""
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), cwd=REPOSITORY, check=True
    )
    assert shown.stderr.strip() == "heavy:"


def test_a_broken_config_is_told_whole_and_nothing_is_on_stdout(site: Site) -> None:
    site.keys |= {"N_TRIALS": "four", "N_CONCURENT": "3", "SCAFFOLD": "shel"}
    shown = rolloutgen("resolve", str(site.config))
    assert shown.returncode == 2
    assert shown.stdout == ""
    for part in (
        "FATAL N_TRIALS",
        "'four'",
        "run.env:",
        "did you mean N_CONCURRENT?",
        "must be one of: shell, oracle, nop",
    ):
        assert part in shown.stderr


def test_what_cannot_be_checked_yet_is_one_line_beside_what_is_wrong(site: Site) -> None:
    """An index that is not there: its place, and no crowd of warnings that all follow from it."""
    site.keys["INDEX_FILE"] = "/no/such/index.parquet"
    shown = site.command("check")
    assert shown.returncode == 2
    line = site.config.read_text().splitlines().index("INDEX_FILE=/no/such/index.parquet") + 1
    assert f"FATAL INDEX_FILE: /no/such/index.parquet: does not exist  [{site.config}:{line}]" in shown.stdout
    (skipped,) = [line for line in shown.stdout.splitlines() if "not checked before" in line]
    assert skipped.startswith("WARN  INDEX_FILE, RESULTS_DIR, tasks, ")


def test_a17_preflight_only_is_refused_and_points_to_dry_run(site: Site) -> None:
    site.tasks({"a": PASSES})
    site.keys["PREFLIGHT_ONLY"] = "1"
    shown = site.command("check")
    assert shown.returncode == 2
    assert "belongs to the train runner" in shown.stdout
    assert "--dry-run CONFIG" in shown.stdout


def test_a15_a_dry_run_shows_everything_and_writes_nothing(site: Site) -> None:
    site.tasks({"a": PASSES, "b": PASSES})
    assert site.config.exists()
    before, logs = tree(site.folder), tree(REPOSITORY / "logs")
    shown = site.command("check", "--dry-run")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert {path: seen for path, seen in tree(site.folder).items() if not path.endswith("run.env")} == {
        path: seen for path, seen in before.items() if not path.endswith("run.env")
    }
    mine = {path for path in tree(REPOSITORY / "logs").keys() - logs.keys() if site.exp in path}
    assert mine == set()
    assert "N_TRIALS                  = 2  [" in shown.stdout
    assert "trials: 4 planned, 0 done, 4 owed" in shown.stdout
    assert "disk wanted: " in shown.stdout
    assert "-m rolloutgen run " in shown.stdout
    assert "a sandbox was started, ran `true` and was removed" in shown.stdout


def test_a15_a_dry_run_of_a_finished_run_says_that_nothing_is_owed(site: Site) -> None:
    site.tasks({"a": PASSES})
    assert site.launch() == 0
    before = tree(site.results)
    shown = site.command("check", "--dry-run")
    assert shown.returncode == 10
    assert "trials: 2 planned, 2 done, 0 owed" in shown.stdout
    assert "a sandbox was started" not in shown.stdout
    assert tree(site.results) == before


def test_secrets_are_masked_wherever_settings_are_shown(site: Site) -> None:
    site.tasks({"a": PASSES})
    site.keys |= {"SCAFFOLD": "shell", "VLLM_ENV": "'HF_TOKEN=hunter2 OMP_NUM_THREADS=4'"}
    site.keys["VLLM_EXTRA_ARGS"] = "'--api-key hunter3 --max-num-seqs 8 --ssl-keyfile=hunter4'"
    shown = site.command("check", "--dry-run")
    assert "hunter" not in shown.stdout + shown.stderr
    assert "OMP_NUM_THREADS=4" in shown.stdout
    assert "--max-num-seqs 8" in shown.stdout
