"""``rolloutgen export`` as a command: files, and what it says where something is not there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from driving import environment
from exporting import OPENING, Results, conversation
from rolloutgen.paths import TRANSCRIPT
from rolloutgen.transcript.lines import Transcript


def test_a_verdict_whose_rename_a_kill_prevented_is_there(results: Results) -> None:
    folder = results.play("a", 0, True, conversation)
    folder.rename(folder.with_name("trial_0.attempt_1"))
    (results.paths.instance("a") / "trial_0").mkdir()
    assert len(results.rows()) == 1
    assert (results.paths.instance("a") / "trial_0.attempt_1").is_dir()


def test_nothing_there_is_told(results: Results) -> None:
    """No run; no verdict yet; no config that is right."""
    shown = results.export()
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "no trial of this shard has a verdict yet" in shown.stderr
    results.paths.run_json.unlink()
    shown = results.export("--output", str(results.site.folder / "x.jsonl"))
    assert (shown.returncode, f"no run in RESULTS_DIR={results.paths.root}" in shown.stderr) == (1, True)
    assert not list(results.site.folder.glob("*x.jsonl*"))
    shown = results.export("--output", "x.csv")
    assert (shown.returncode, "must end with .jsonl or .parquet" in shown.stderr) == (2, True)


def test_transcripts_that_cannot_be_used_are_named(results: Results) -> None:
    """The others are exported; exit 3, since something is missing that was said."""
    results.play("b", 0, True, conversation)
    gone = results.play("a", 0, True, None)
    torn = results.play("b", 1, True, conversation)
    old = results.play("a", 1, True, None)
    path = torn / TRANSCRIPT
    path.write_bytes(path.read_bytes().replace(b'"type":"reply"', b'"type":"reply', 1))
    with Transcript(old / TRANSCRIPT) as transcript:
        transcript.write("start", schema_version=1, model="policy", messages=OPENING)
    shown = results.export("--only", "all")
    assert shown.returncode == 3
    assert [json.loads(line)["instance_id"] for line in shown.stdout.splitlines()] == ["b"]
    for part in (f"without {TRANSCRIPT}: {gone}", f"{torn}", "of schema_version 1, from before", str(old)):
        assert part in shown.stderr
    assert shown.stderr.splitlines()[-1] == "1 rows of 1 trials"


def test_an_agent_without_a_model_has_no_rows(tmp_path: Path) -> None:
    results = Results(tmp_path, ["a"], SCAFFOLD="oracle")
    folder = results.play("a", 0, True, None)
    with Transcript(folder / TRANSCRIPT) as transcript:
        transcript.write("start", schema_version=2, scaffold="oracle", model=None, messages=OPENING)
    shown = results.export()
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "the agent asks no model" in shown.stderr


def test_ids_that_were_not_recorded_are_told(results: Results) -> None:
    results.play("a", 0, True, conversation, token_ids=False)
    shown = results.export("--format", "tokens")
    assert (shown.returncode, "RECORD_TOKEN_IDS=0" in shown.stderr) == (1, True)
    assert len(results.rows()) == 1


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_file_is_whole_or_not_there(results: Results, tmp_path: Path, name: str) -> None:
    """An older one stays where the export fails."""
    results.play("a", 0, True, conversation)
    output = tmp_path / name
    assert results.export("--output", str(output)).returncode == 0
    whole = output.read_bytes()
    assert len(whole) > 100
    (results.paths.instance("a") / "trial_0" / TRANSCRIPT).unlink()
    assert results.export("--output", str(output)).returncode == 1
    assert output.read_bytes() == whole
    assert [path.name for path in tmp_path.glob(f"*{name}*") if path.name != "index.parquet"] == [name]


def test_the_command_prints_json_lines_and_tells_the_rest_on_stderr(results: Results) -> None:
    """As people start it."""
    results.play("a", 0, True, conversation)
    shown = results.site.command("export")
    assert shown.returncode == 0
    assert [json.loads(line)["instance_id"] for line in shown.stdout.splitlines()] == ["a"]
    assert shown.stderr == "1 rows of 1 trials\n"


def test_a_reader_that_goes_away_early_is_no_crash(results: Results) -> None:
    results.play("a", 0, True, conversation)
    line = [sys.executable, "-m", "rolloutgen", "export", str(results.site.config)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, b"")


def test_a_full_disk_behind_stdout_is_told(results: Results) -> None:
    results.play("a", 0, True, conversation)
    line = [sys.executable, "-m", "rolloutgen", "export", str(results.site.config)]
    with Path("/dev/full").open("wb") as full:
        shown = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=environment(), text=True, check=False)
    assert shown.returncode == 1
    assert shown.stderr == "error: stdout could not be written: [Errno 28] No space left on device\n"
