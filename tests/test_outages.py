"""Outages of the model server under a run through infer.sh: held calls, a restart, and not one attempt lost."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from driving import FAILS, PASSES, Site, read_json, until
from launching import Runner, ask_stand_in, last_line_of_success
from real_jobs import MODEL, need_real_parts
from rolloutgen.processes import Process
from rolloutgen.serving.record import ServerRecord
from rolloutgen.transcript.reader import read_calls

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

N_INSTANCES = 10
REWARDS = {f"task{i:02}": i / 5 for i in range(N_INSTANCES)}
"""Known beforehand, and all different; from 1 on they pass."""


def runner_in(folder: Path) -> Runner:
    folder.mkdir()
    runner = Runner(Site(folder))
    runner.site.tasks({name: f"echo {reward} > /logs/verifier/reward.txt" for name, reward in REWARDS.items()})
    ask_stand_in(runner.site)
    runner.site.keys |= {"N_TRIALS": "4", "N_CONCURRENT": "4", "ATTEMPTS_PER_TRIAL": "1"}
    return runner


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[tuple[Runner, Runner]]:
    """Two runs of the same; the model server of the first dies under its 15th call, and again under the next 20th."""
    disturbed, undisturbed = runner_in(tmp_path / "disturbed"), runner_in(tmp_path / "undisturbed")
    lives = tmp_path / "lives"
    disturbed.site.keys["VLLM_ENV"] = f"'STAND_IN=dies=15:dies=20:ok STAND_IN_LIVES={lives}'"
    yield disturbed, undisturbed
    for runner in (disturbed, undisturbed):
        runner.end_all()


def test_c10_a_server_that_dies_twice_changes_no_byte_of_the_summary(runners: tuple[Runner, Runner]) -> None:
    """Every trial has its verdict on its first attempt: with ATTEMPTS_PER_TRIAL=1 a lost one would show."""
    disturbed = runners[0]
    for runner in runners:
        assert runner.start().wait(timeout=600) == 0, runner.err.read_text()[-3000:]
        assert runner.last_line == last_line_of_success(runner.site)
    summaries = [(runner.site.results / "summary.csv").read_bytes() for runner in runners]
    assert summaries[0] == summaries[1]
    assert len(disturbed.site.outcomes()) == 4 * N_INSTANCES
    assert not list(disturbed.site.results.glob("*/*.attempt_*"))
    restarted = [len(re.findall("the model server is restarted", runner.site.log.read_text())) for runner in runners]
    assert restarted == [2, 0]
    assert any("inference_retry" in str(read_json(path)["flags"]) for path in disturbed.site.outcomes())


def engine_of(runner: Runner) -> Process:
    """vLLM's EngineCore, which holds the model."""
    (record,) = runner.records()
    server = ServerRecord.read(record.folder)
    assert server is not None
    (engine,) = [member for member in server.members if b"EngineCore" in command(member)]
    return engine


def command(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


def asking(site: Site) -> tuple[int, int, int]:
    """Running attempts that have asked the model, those of them that got an answer, and those that wait for one now."""
    begun = answered = waiting = 0
    for transcript in site.results.glob("*/*.attempt_1/transcript.jsonl"):
        kinds = [json.loads(line)["type"] for line in transcript.read_bytes().split(b"\n")[:-1]]
        begun += "request" in kinds
        answered += "reply" in kinds
        waiting += kinds.count("request") > kinds.count("reply")
    return begun, answered, waiting


def test_kill_9_of_the_engine_under_eight_running_trials_costs_none_of_them(tmp_path: Path) -> None:
    """A20: real vLLM. All eight have their own verdict on the first attempt, and the log says what happened."""
    need_real_parts()
    runner = Runner(Site(tmp_path))
    site = runner.site
    site.tasks({f"task{i}": f"sleep 15; {FAILS if i % 2 else PASSES}" for i in range(8)})
    site.keys |= {
        "SCAFFOLD": "shell",
        "MODEL_PATH": str(MODEL),
        "TEMPERATURE": "1.0",
        "VLLM_MAX_MODEL_LEN": "2048",
        "MAX_TURNS": "10",
        "MAX_RESPONSE_LEN": "200",
        "N_TRIALS": "1",
        "N_CONCURRENT": "8",
        "ATTEMPTS_PER_TRIAL": "1",
    }

    def in_the_middle() -> bool:
        begun, answered, waiting = asking(site)
        return process.poll() is not None or (begun == 8 and answered >= 3 and waiting >= 2)

    try:
        process = runner.start()
        until(in_the_middle, "calls of eight running trials", 500)
        assert process.poll() is None, runner.err.read_text()[-3000:]
        assert site.outcomes() == {}
        engine_of(runner).signal(signal.SIGKILL)
        assert process.wait(timeout=600) == 0, runner.err.read_text()[-3000:]
        assert runner.last_line == last_line_of_success(site)
        assert [row["pass_rate"] for row in site.summary()] == ["1", "0"] * 4
        outcomes = [read_json(path) for path in site.outcomes()]
        assert [outcome["attempt"] for outcome in outcomes] == [1] * 8
        assert not list(site.results.glob("*/*.attempt_*"))
        assert any("inference_retry" in str(outcome["flags"]) for outcome in outcomes)
        assert "the model server is restarted" in site.log.read_text()
        calls = [call for path in site.outcomes() for call in read_calls(path.with_name("transcript.jsonl"))]
        assert not {"failed", "unfinished"} & {call.end for call in calls}
        assert len({call.reply["server_seed"] for call in calls}) == 2  # a fresh one: no sample is drawn again
    finally:
        runner.end_all()
