"""The main job with every part real: infer.sh, vLLM, a model, sandboxes, tasks. One run, and all that it promises.

Also the real tasks of HumanEval: a shard with the model, and all of them with the checks that need none.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from driving import REPOSITORY, Site, read_json, until
from launching import Runner, last_line_of_success
from real_jobs import MODEL, VLLM, DemoSite, need_real_parts
from rolloutgen.config import load_config
from rolloutgen.index import Index, select
from rolloutgen.processes import marked
from rolloutgen.results.summary import SUMMARY_COLUMNS
from rolloutgen.transcript.lines import read
from rolloutgen.transcript.reader import read_calls

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRACKERS = ("wandb", "tensorboard", "mlflow")
TASKS = REPOSITORY / "scripts" / "demo"
N_TRIALS = 4


def ids_of(index: Path) -> list[str]:
    return [instance.instance_id for instance in select(Index.read(index), None).instances]


@dataclass
class Job:
    """A finished run of the demo, and what was seen while it ran: of each process its environment and its command."""

    runner: Runner
    model_before: str
    status: int = -1
    environments: dict[int, dict[str, str]] = field(default_factory=dict)
    commands: dict[int, str] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    told: str = ""

    @property
    def site(self) -> Site:
        return self.runner.site

    @property
    def ids(self) -> list[str]:
        return ids_of(TASKS / "index.parquet")

    @property
    def trials(self) -> list[Path]:
        return [self.site.results / name / f"trial_{k}" for name in self.ids for k in range(N_TRIALS)]

    @property
    def written(self) -> Iterator[Path]:
        logs = self.site.log.parent.glob(f"{self.site.exp}*")
        return (path for path in (*self.site.results.rglob("*"), *logs, self.site.selected) if path.is_file())

    def look(self) -> None:
        """At every process of the launch, and at what it tells of itself."""
        (record,) = self.runner.records()
        self.told = self.site.command("status").stdout
        for process in marked(record.launch_id):
            folder = Path(f"/proc/{process.pid}")
            try:
                entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                self.environments[process.pid] = dict(entry.split("=", 1) for entry in entries if "=" in entry)
                self.commands[process.pid] = (folder / "cmdline").read_bytes().decode(errors="replace")
                self.loaded |= set(re.findall(r"/\S+$", (folder / "maps").read_text(), re.MULTILINE))
            except OSError:
                continue


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(f"{path} {path.lstat().st_mtime_ns}".encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    need_real_parts()
    runner = Runner(DemoSite(tmp_path_factory.mktemp("demo")))
    job = Job(runner, digest(MODEL))
    process = runner.start(WANDB_API_KEY="x", MLFLOW_TRACKING_URI="y", TENSORBOARD_LOGDIR="z")
    until(lambda: process.poll() is not None or len(runner.site.outcomes()) > 1, "first verdicts", 500)
    if process.poll() is None:
        job.look()
    job.status = process.wait(timeout=600)
    yield job
    runner.end_all()


def test_a24_it_ends_well_and_says_so_in_the_last_line(job: Job) -> None:
    """A23, A24."""
    assert job.status == 0, job.runner.err.read_text()[-3000:]
    assert job.runner.last_line == last_line_of_success(job.site)
    assert job.runner.records() == []


def test_a2_a4_a12_the_difficulty_of_every_instance(job: Job) -> None:
    """A2, A3, A4, A12; the demo has one instance at 0 and two in the band at least."""
    rows = job.site.summary()
    assert tuple(rows[0]) == SUMMARY_COLUMNS
    assert [row["instance_id"] for row in rows] == job.ids
    assert all(row["complete"] == "true" and row["n_error"] == "0" for row in rows)
    assert all(int(row["n_pass"]) + int(row["n_fail"]) == N_TRIALS for row in rows)
    rates = [row["pass_rate"] for row in rows]
    assert set(rates) <= {"0", "0.25", "0.5", "0.75", "1"}
    assert "0" in rates
    assert sum(0 < float(rate) < 1 for rate in rates) >= 2


def test_a5_a26_the_filtered_index_is_the_band_and_an_index_itself(job: Job, tmp_path: Path) -> None:
    """A5, A26: the same schema; it works wherever it lies, as INDEX_FILE of another run."""
    band = [row["instance_id"] for row in job.site.summary() if 0 < float(row["pass_rate"]) < 1]
    copy = shutil.copy(job.site.selected, tmp_path / "elsewhere.parquet")
    base = pq.read_table(TASKS / "index.parquet")
    assert pq.read_schema(copy).equals(base.schema, check_metadata=True)
    table = pq.read_table(copy).to_pylist()
    assert [row["extra_info"]["instance_id"] for row in table] == band
    for row in table:
        path = row["extra_info"]["harbor_task_path"]
        assert Path(path).is_absolute()
        assert row["prompt"] == [{"role": "user", "content": path}]
        assert row["reward_model"] == {"style": "rule", "ground_truth": None}
        assert row["extra_info"]["data_source"] == "harbor"
    again = Runner(DemoSite(tmp_path, {"INDEX_FILE": str(copy)}))
    shown = again.finish("--dry-run")
    assert shown.returncode == 0, shown.stdout
    assert f"trials: {len(band) * N_TRIALS} planned, 0 done" in shown.stdout


def test_a2_a6_a13_a25_every_transcript_is_kept_whole(job: Job) -> None:
    """A2, A6, A25: one per trial, usable as SFT data. A13: the temperature and all other parameters are recorded."""
    assert sorted(job.site.results.glob("*/trial_?")) == sorted(job.trials)
    settings = load_config(job.site.config).settings
    for trial in job.trials:
        lines = list(read(trial / "transcript.jsonl"))
        assert (lines[0]["type"], lines[-1]["type"]) == ("start", "end")
        calls = read_calls(trial / "transcript.jsonl")
        for call in calls:
            sent = call.sent()
            assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["min_p"]) == (1.0, 1.0, -1, 0.0)
            assert sent["max_tokens"] == settings.max_response_len
            assert call.prompt_ids()
            assert call.response_ids
        messages = calls[-1].conversation()
        assert {message["role"] for message in messages} == {"system", "user", "assistant"}
        instruction = (task_of(trial) / "instruction.md").read_text().strip()
        at = [message["content"] for message in messages].index(instruction)
        assert messages[at]["role"] == "user"
        assert messages[at + 1]["role"] == "assistant"
        assert 1 <= len(calls) <= settings.max_turns
        assert read_json(trial / "outcome.json")["turns"] == len(calls)


def test_a_run_tells_what_it_waits_for(job: Job) -> None:
    """From outside, while it runs; and in every outcome."""
    assert "server ready: " in job.told
    assert "% in the model" in job.told
    for trial in job.trials:
        times = read_json(trial / "outcome.json")["times"]
        assert isinstance(times, dict)
        assert 0 < times["model_sec"] <= times["agent_sec"]
        assert times["held_sec"] == 0


def task_of(trial: Path) -> Path:
    return TASKS / "tasks" / trial.parent.name


def test_a1_the_model_is_as_it_was(job: Job) -> None:
    """A1: no byte and no file of MODEL_PATH has changed."""
    assert digest(MODEL) == job.model_before


def test_a14_one_server(job: Job) -> None:
    """A14: one vLLM, of one node, as GEN_TP and GEN_DP say."""
    started = re.findall(r"^=== launch .*: (.*)$", job.site.log.with_suffix(".vllm.log").read_text(), re.MULTILINE)
    assert len(started) == 1
    assert "--tensor-parallel-size 1" in started[0]
    assert "--host 127.0.0.1" in started[0]


def test_a28_no_child_can_reach_a_dashboard(job: Job) -> None:
    """A28: nothing in any child's environment, imports or files; telemetry is off."""
    assert len(job.environments) >= 3
    for environment in job.environments.values():
        assert not [name for name in environment if name.lower().startswith(TRACKERS)]
    assert not [path for path in job.loaded if any(name in path for name in TRACKERS)]
    for python in (sys.prefix, VLLM.parent.parent):
        packages = [folder.name.lower() for folder in Path(python).glob("lib/python3*/site-packages/*")]
        assert not [name for name in packages if name.startswith(TRACKERS)]
    assert not [path for path in job.written if any(name in path.name for name in TRACKERS)]
    servers = [environment for pid, environment in job.environments.items() if "vllm" in job.commands[pid]]
    assert any(env.get("VLLM_NO_USAGE_STATS") == "1" and env.get("DO_NOT_TRACK") == "1" for env in servers)


def test_the_key_is_nowhere_but_in_memory(job: Job) -> None:
    keys = {env["ROLLOUTGEN_MODEL_KEY"] for env in job.environments.values() if env.get("ROLLOUTGEN_MODEL_KEY")}
    (key,) = keys
    assert len(key) >= 32
    assert not [command for command in job.commands.values() if key in command]
    assert not [path for path in job.written if key.encode() in path.read_bytes()]
    assert key not in job.runner.err.read_text() + job.runner.out.read_text()
    of_an_attempt = re.compile(rb"rg-[0-9a-f]{48}")
    assert not [path for path in job.written if of_an_attempt.search(path.read_bytes())]


def test_a20_a_second_start_owes_nothing(job: Job) -> None:
    """A20: no server, the same results byte for byte; also told from outside."""
    before = {path: path.read_bytes() for path in job.written if ".log" not in path.name and path.name != ".lock"}
    again = job.runner.finish()
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == last_line_of_success(job.site)
    assert "starting the model server" not in again.stderr
    after = {path: path.read_bytes() for path in job.written if ".log" not in path.name and path.name != ".lock"}
    assert after == before
    told = job.site.command("status").stdout
    assert f"every trial has a verdict: {len(job.trials)}/{len(job.trials)} trials done" in told


@pytest.fixture
def site(tmp_path: Path, humaneval: Path) -> Iterator[Site]:
    """A run over the real tasks of HumanEval, every part of it real."""
    site = Site(tmp_path, {"INDEX_FILE": str(humaneval / "index.parquet"), "N_CONCURRENT": "16"})
    yield site
    site.clean()


def test_a_shard_of_real_tasks_with_the_real_model(site: Site, humaneval: Path) -> None:
    """A10, A22: 24 instances by INSTANCES_FILE: 48 verdicts, no errors."""
    need_real_parts()
    shard = ids_of(humaneval / "index.parquet")[::7]
    assert len(shard) == 24
    listed = site.folder / "ids"
    listed.write_text("".join(f"{name}\n" for name in reversed(shard)))
    site.keys |= {
        "SCAFFOLD": "shell",
        "MODEL_PATH": str(MODEL),
        "TEMPERATURE": "1.0",
        "VLLM_MAX_MODEL_LEN": "2048",
        "MAX_TURNS": "3",
        "MAX_RESPONSE_LEN": "96",
        "INSTANCES_FILE": str(listed),
    }
    runner = Runner(site)
    try:
        assert runner.start().wait(timeout=800) == 0, runner.err.read_text()[-3000:]
        assert runner.last_line == last_line_of_success(site)
    finally:
        runner.end_all()
    rows = site.summary()
    assert [row["instance_id"] for row in rows] == shard
    assert sum(int(row["n_scored"]) for row in rows) == len(site.outcomes()) == 48
    assert {row["n_error"] for row in rows} == {"0"}


@pytest.mark.parametrize(("scaffold", "rate"), [("oracle", "1"), ("nop", "0")])
def test_all_real_tasks_with_their_solution_and_without(site: Site, humaneval: Path, scaffold: str, rate: str) -> None:
    """164 passes, or 164 fails; no errors, and nothing at all in the band."""
    site.keys |= {"SCAFFOLD": scaffold, "N_TRIALS": "1"}
    runner = Runner(site)
    done = runner.finish()
    assert done.returncode == 0, done.stderr[-3000:]
    rows = site.summary()
    assert [row["instance_id"] for row in rows] == ids_of(humaneval / "index.parquet")
    assert len(rows) == len(site.outcomes()) == 164
    assert {row["pass_rate"] for row in rows} == {rate}
    assert pq.read_metadata(site.selected).num_rows == 0
