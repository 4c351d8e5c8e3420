"""What a trial costs the driver: nop trials through our driver and through Harbor's own job, on the same tasks.

    python tests/benchmarks/bench_engine.py [N_TASKS=1000] [N_CONCURRENT=80]

Both have a sandbox that starts no process and takes START_SEC to be ready; one task has 500 files in tests/. Each side
runs in a process of its own. Wanted: our CPU (RUSAGE_SELF) at most 0.6 of Harbor's, no stall of the event loop of
250 ms, slots at least 95 % busy. Our side includes the scheduler and the durable results; Harbor's its result files.
"""

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
START_SEC = "2.0"
CPU_SHARE, STALL_SEC, BUSY = 0.6, 0.25, 0.95


def make_tasks(folder: Path, n_tasks: int) -> None:
    """Small distinct tasks, and one with 500 files in its tests."""
    for number in range(n_tasks):
        task = folder / f"task-{number:04}"
        for part in ("environment", "tests", "solution"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text('version = "1.0"\n[environment]\ndocker_image = "debian:12"\ncpus = 1\n')
        (task / "instruction.md").write_text(f"Do nothing, {number} times.\n")
        (task / "environment" / "Dockerfile").write_text("FROM debian:12\nWORKDIR /app\n")
        (task / "tests" / "test.sh").write_text("#!/bin/bash\necho 0 > /logs/verifier/reward.txt\n")
    for number in range(500):
        (folder / "task-0000" / "tests" / f"case_{number}.txt").write_text(f"{number}\n")


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[dict[str, float]]:
    """Longest stall of the event loop, CPU and wall seconds of the block.

    ``stall_cpu_sec`` is the part of the longest stall in which the loop's own thread worked: on a machine that others
    use too, the rest is theirs.
    """
    seen = {"stall_sec": 0.0, "stall_cpu_sec": 0.0}

    async def watch() -> None:
        while True:
            began, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.01)
            seen["stall_sec"] = max(seen["stall_sec"], time.perf_counter() - began - 0.01)
            seen["stall_cpu_sec"] = max(seen["stall_cpu_sec"], time.thread_time() - worked)

    watcher, before, began = asyncio.create_task(watch()), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield seen
    after = resource.getrusage(resource.RUSAGE_SELF)
    seen["wall_sec"] = time.perf_counter() - began
    seen["cpu_sec"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seen["process_cpu_sec"] = after.ru_utime + after.ru_stime
    seen["peak_mb"] = after.ru_maxrss / 1024
    watcher.cancel()


async def ours(tasks: Path, results: Path, n_concurrent: int) -> dict[str, Any]:
    """Scheduler, engine and store, put together as the driver does."""
    from concurrent.futures import ThreadPoolExecutor

    from fakes.null_sandbox import NullBackend, NullSandbox
    from rolloutgen.config.reading import read_settings
    from rolloutgen.engine import Engine
    from rolloutgen.knobs import Value
    from rolloutgen.models import Instance, Outcome, Trial
    from rolloutgen.paths import ResultsPaths
    from rolloutgen.results.store import Store
    from rolloutgen.scheduler import Scheduler

    keys = {
        "PROJECT_NAME": "bench",
        "INDEX_FILE": "i",
        "RESULTS_DIR": "r",
        "OUTPUT_INDEX": "o",
        "N_TRIALS": "1",
        "N_CONCURRENT": str(n_concurrent),
        "SCAFFOLD": "nop",
        "BACKEND": "local",
        "SANDBOX_EGRESS": "open",
        "SANDBOX_START_TIMEOUT_SEC": "60",
        "EXEC_OUTPUT_MAX_MB": "16",
    }
    settings = read_settings({key: Value(text, "bench") for key, text in keys.items()}, results).settings

    async def ready(sandbox: NullSandbox) -> None:
        await asyncio.sleep(float(START_SEC))

    engine = Engine(settings, NullBackend(reward=b"0\n", on_start=ready, keep=False), None)
    store, executor = Store(ResultsPaths(results)), ThreadPoolExecutor(16)
    busy = Busy(n_concurrent)

    async def run(trial: Trial) -> Outcome:
        loop = asyncio.get_running_loop()
        attempt = await loop.run_in_executor(executor, store.begin, trial)
        outcome = await engine.run_attempt(attempt)
        await loop.run_in_executor(executor, store.finish, attempt, outcome)
        return outcome

    def trials() -> Iterator[Trial]:
        for folder in sorted(tasks.iterdir()):
            yield Trial(Instance(folder.name, folder), 0)

    scheduler = Scheduler(
        run,
        n_concurrent=n_concurrent,
        attempts_per_trial=1,
        attempts_used=lambda _: 0,
        stall_timeout_sec=60,
        observer=busy,
    )
    async with watched() as seen:
        await scheduler.run_all(trials())
    await engine.close()
    assert busy.results == {"fail": sum(1 for _ in tasks.iterdir())}, busy.results
    return {**seen, "busy": busy.share()}


class Busy:
    """The scheduler's observer: which share of the slots was busy while there was work for all of them."""

    def __init__(self, n_slots: int) -> None:
        self._n_slots, self._n, self._mark = n_slots, 0, time.perf_counter()
        self._area = self._span = self._full_area = self._full_span = 0.0
        self.results: dict[str, int] = {}

    def _step(self, change: int) -> None:
        now = time.perf_counter()
        self._area += self._n * (now - self._mark)
        self._span += now - self._mark
        self._n, self._mark = self._n + change, now

    def started(self, trial: object) -> None:
        self._step(1)
        self._full_area, self._full_span = self._area, self._span

    def finished(self, trial: object, outcome: Any, *, retry: bool) -> None:
        self._step(-1)
        self.results[outcome.result.value] = self.results.get(outcome.result.value, 0) + 1

    def paused(self, reason: str, sec: float) -> None: ...

    def resumed(self) -> None: ...

    def share(self) -> float:
        """Until the last attempt began: then the work runs out."""
        return self._full_area / (self._full_span * self._n_slots)


async def harbors(tasks: Path, results: Path, n_concurrent: int) -> dict[str, Any]:
    """What ``harbor run --path TASKS --agent nop`` does."""
    from harbor.job import Job
    from harbor.models.job.config import DatasetConfig, JobConfig
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig

    config = JobConfig(
        jobs_dir=results,
        n_concurrent_trials=n_concurrent,
        quiet=True,
        agents=[AgentConfig(name="nop")],
        environment=EnvironmentConfig(import_path="benchmarks.null_harbor:NullEnvironment"),
        datasets=[DatasetConfig(path=tasks)],
    )
    async with watched() as seen:
        job = await Job.create(config)
        await job.run()
    return dict(seen)


def measure(side: str, folder: Path, n_concurrent: int) -> dict[str, Any]:
    """One side, in a fresh process."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}",
        "NULL_START_SEC": START_SEC,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HARBOR_TELEMETRY": "0",
    }
    results = folder / side
    results.mkdir()
    command = [sys.executable, __file__, side, str(folder / "tasks"), str(results), str(n_concurrent)]
    ended = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, cwd=folder)
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(f"{side:<8}", "  ".join(f"{key}={value:.3f}" for key, value in told.items()), flush=True)
    return told


def main() -> None:
    n_tasks, n_concurrent = (int(text) for text in (*sys.argv[1:], "1000", "80")[:2])
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        make_tasks(folder / "tasks", n_tasks)
        us = measure("ours", folder, n_concurrent)
        them = measure("harbors", folder, n_concurrent)
    share = us["process_cpu_sec"] / them["process_cpu_sec"]
    per_trial = 1000 / n_tasks
    print(f"CPU {share:.2f} of Harbor's ({us['cpu_sec'] * per_trial:.1f} ms a trial)")
    ok = share <= CPU_SHARE and us["stall_sec"] < STALL_SEC and us["busy"] >= BUSY
    print("as wanted" if ok else f"WANTED: CPU <= {CPU_SHARE}, stall < {STALL_SEC} s, busy >= {BUSY}")


if __name__ == "__main__":
    if len(sys.argv) == 5:
        side = {"ours": ours, "harbors": harbors}[sys.argv[1]]
        print(json.dumps(asyncio.run(side(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))))
    else:
        main()
