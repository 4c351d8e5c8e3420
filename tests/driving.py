"""Real runs of the driver for tests: tiny Harbor tasks with known verdicts, a config, and commands as subprocesses."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rolloutgen.results.summary import read_summary
from rolloutgen.sandbox.local.cgroups import sweep_cgroups

REPOSITORY = Path(__file__).resolve().parents[1]

PASSES = "echo 1 > /logs/verifier/reward.txt"
FAILS = "echo 0 > /logs/verifier/reward.txt"
NO_REWARD = "true"

_TASK = """version = "1.0"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
cpus = 1
memory_mb = 256
"""


def make_task(folder: Path, verifier: str, extra: str = "") -> Path:
    """A Harbor task whose tests/test.sh is ``verifier``."""
    (folder / "tests").mkdir(parents=True)
    (folder / "solution").mkdir()
    (folder / "environment").mkdir()
    (folder / "environment" / "Dockerfile").write_text("FROM scratch\nWORKDIR /app\n")
    (folder / "task.toml").write_text(_TASK + extra)
    (folder / "instruction.md").write_text(f"Solve {folder.name}.\n")
    (folder / "solution" / "solve.sh").write_text("#!/bin/bash\ntrue\n")
    (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\n{verifier}\n")
    return folder


def make_index(path: Path, tasks: Mapping[str, str]) -> Path:
    """An index of instance id -> task path (relative to the index's folder, or absolute)."""
    rows = [
        {
            "prompt": [{"role": "user", "content": task}],
            "reward_model": {"style": "rule", "ground_truth": None},
            "extra_info": {"harbor_task_path": task, "instance_id": name, "data_source": "harbor"},
        }
        for name, task in tasks.items()
    ]
    schema = pa.schema(
        {
            "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
            "extra_info": pa.struct(
                {"harbor_task_path": pa.string(), "instance_id": pa.string(), "data_source": pa.string()}
            ),
        }
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


@dataclass
class Site:
    """One run: its folder, its config, its commands."""

    folder: Path
    keys: dict[str, str] = field(default_factory=dict)
    exp: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")
    launches: list[Path] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def selected(self) -> Path:
        return self.folder / "selected.parquet"

    @property
    def log(self) -> Path:
        return REPOSITORY / "logs" / f"{self.exp}.log"

    @property
    def config(self) -> Path:
        """Written anew at each use, so that ``keys`` may change between launches."""
        keys = {
            "PROJECT_NAME": "test",
            "EXP_NAME": self.exp,
            "SCAFFOLD": "nop",
            "BACKEND": "local",
            "LOCAL_IMAGES": "'*=host'",
            "SANDBOX_EGRESS": "none",
            "INDEX_FILE": str(self.folder / "index.parquet"),
            "RESULTS_DIR": str(self.results),
            "OUTPUT_INDEX": str(self.selected),
            "N_TRIALS": "2",
            "N_CONCURRENT": "4",
            "SANDBOX_START_TIMEOUT_SEC": "60",
            "EXEC_OUTPUT_MAX_MB": "16",
        } | self.keys
        path = self.folder / "run.env"
        path.write_text("".join(f"{key}={text}\n" for key, text in keys.items() if text is not None))
        return path

    def tasks(self, verifiers: Mapping[str, str], extra: str = "") -> None:
        for name, verifier in verifiers.items():
            make_task(self.folder / "tasks" / name, verifier, extra)
        make_index(self.folder / "index.parquet", {name: f"tasks/{name}" for name in verifiers})

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``rolloutgen NAME CONFIG ...`` to its end."""
        return subprocess.run(
            self._line(name, *arguments),
            capture_output=True,
            text=True,
            env=environment(),
            cwd=REPOSITORY,
            check=False,
            timeout=300,
        )

    def _line(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "rolloutgen", name, str(self.config), *arguments]

    def new_launch(self) -> Path:
        launch = REPOSITORY / "logs" / ".launches" / f"20260101t000000-{secrets.token_hex(3)}"
        self.launches.append(launch)
        return launch

    def prepare(self, launch: Path | None = None) -> subprocess.CompletedProcess[str]:
        launch = launch or self.new_launch()
        return self.command("prepare", "--launch", str(launch), "--launcher", str(os.getpid()))

    def start(self, launch: Path | None = None, launcher: int | None = None, **env: str) -> "subprocess.Popen[bytes]":
        """``rolloutgen run``, see ``spawn``."""
        return self.spawn("run", launch or self.launches[-1], launcher, **env)

    def spawn(self, name: str, launch: Path, launcher: int | None = None, **env: str) -> "subprocess.Popen[bytes]":
        """``rolloutgen NAME`` of a launch in a session of its own, its output in ``run.out``."""
        launch.mkdir(parents=True, exist_ok=True)
        with (self.folder / "run.out").open("ab") as out:
            return subprocess.Popen(
                self._line(name, "--launch", str(launch), "--launcher", str(launcher or os.getpid())),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment() | {"ROLLOUTGEN_LAUNCH": launch.name} | env,
                cwd=REPOSITORY,
                start_new_session=True,
            )

    def launch(self) -> int:
        """Prepare and run, as the launcher does; the exit code."""
        prepared = self.prepare()
        if prepared.returncode != 0:
            return prepared.returncode
        return self.start().wait(timeout=300)

    @property
    def output(self) -> str:
        return (self.folder / "run.out").read_text()

    def summary(self) -> list[dict[str, str]]:
        return read_summary(self.results / "summary.csv")

    def outcomes(self) -> dict[Path, bytes]:
        """Every stored verdict: path -> bytes."""
        return {
            path: path.read_bytes() for path in sorted(self.results.glob("*/trial_*/outcome.json")) if _counts(path)
        }

    def clean(self) -> None:
        for launch in self.launches:
            sweep_cgroups(launch.name)
            shutil.rmtree(launch, ignore_errors=True)
        for log in self.log.parent.glob(f"{self.exp}*.log"):
            log.unlink()


def _counts(path: Path) -> bool:
    return ".attempt_" not in path.parent.name


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}


def until(condition: Callable[[], bool], what: str, at_most_sec: float = 60.0) -> None:
    """Wait for ``condition``; a test that waits in vain fails by name."""
    deadline = time.monotonic() + at_most_sec
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to the driver and everything in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below ``folder`` with its size and time of change: two looks tell whether anything was written."""
    stats: Iterator[tuple[Path, os.stat_result]] = ((path, path.lstat()) for path in sorted(folder.rglob("*")))
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in stats}


def read_json(path: Path) -> dict[str, object]:
    content = json.loads(path.read_bytes())
    assert isinstance(content, dict)
    return content
