"""kill -9 at random moments between begin and finish: no verdict lost, none counted twice, none invented (A20, C10)."""

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from rolloutgen.models import Instance, Trial
from rolloutgen.paths import ResultsPaths
from rolloutgen.results.store import Scan, Store
from rolloutgen.results.summary import write_tables
from samples import instances

N_INSTANCES, N_TRIALS, N_KILLS = 100, 4, 10
SOURCES = [Path(__file__).parents[2] / "src", Path(__file__).parents[1], Path(__file__).parent]

WORKER = """
import sys
from pathlib import Path
from samples import error, instances, verdict
from rolloutgen.paths import ResultsPaths
from rolloutgen.results.store import Store
from test_store_kill import fails_first, passes, shard
store = Store(ResultsPaths(Path(sys.argv[1])))
for trial in store.scan(shard(), int(sys.argv[2])).owed():
    while True:
        attempt = store.begin(trial)
        (attempt.folder / "transcript.jsonl").write_text("said")
        broken = attempt.number == 1 and fails_first(trial)
        store.finish(attempt, error() if broken else verdict(passes(trial)))
        if not broken:
            break
    print(trial.instance.instance_id, trial.number, flush=True)
"""


def shard() -> list[Instance]:
    return instances(f"i{number}" for number in range(N_INSTANCES))


def _chance(trial: Trial, salt: str) -> int:
    return hashlib.sha256(f"{trial.instance.instance_id} {trial.number} {salt}".encode()).digest()[0]


def passes(trial: Trial) -> bool:
    """The verdict that is known beforehand."""
    return _chance(trial, "pass") < 128


def fails_first(trial: Trial) -> bool:
    return _chance(trial, "error") < 64


def start(root: Path) -> "subprocess.Popen[str]":
    path = ":".join(map(str, SOURCES))
    command = [sys.executable, "-c", WORKER, str(root), str(N_TRIALS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": path})


def run_and_kill(root: Path, after_trials: int, then_sec: float) -> list[tuple[str, int]]:
    """Trials that were told to be durable before a kill ``then_sec`` after the first ``after_trials`` of them."""
    with start(root) as worker:
        assert worker.stdout is not None
        first = [worker.stdout.readline() for _ in range(after_trials)]
        time.sleep(then_sec)
        worker.send_signal(signal.SIGKILL)
        told = "".join(first) + worker.stdout.read()
    pairs = (line.split() for line in told.splitlines() if line.count(" ") == 1)
    return [(name, int(number)) for name, number in pairs]


def done(scan: Scan) -> dict[tuple[str, int], str]:
    return {(r.instance_id, r.trial): str(r.result) for found in scan.results.values() for r in found.done.values()}


def expected() -> dict[tuple[str, int], str]:
    trials = [Trial(instance, number) for instance in shard() for number in range(N_TRIALS)]
    return {(t.instance.instance_id, t.number): "pass" if passes(t) else "fail" for t in trials}


def test_kills_at_random_moments(tmp_path: Path) -> None:
    root, calm = tmp_path / "killed", tmp_path / "calm"
    root.mkdir()
    calm.mkdir()
    store, rng, truth = Store(ResultsPaths(root)), random.Random(7), expected()
    stood: dict[Path, bytes] = {}
    durable: set[tuple[str, int]] = set()
    for _ in range(N_KILLS):
        durable.update(run_and_kill(root, rng.randint(1, 8), rng.uniform(0, 0.003)))
        scan = store.scan(shard(), N_TRIALS)
        found = done(scan)
        assert durable <= found.keys(), "a verdict was lost"
        assert found.items() <= truth.items(), "a verdict was invented"
        assert scan.findings == ()
        assert {path: path.read_bytes() for path in stood} == stood, "a stored outcome changed"
        stood |= {path: path.read_bytes() for path in root.glob("*/trial_?/outcome.json")}
        assert len(stood) == scan.n_done, "a verdict was counted twice"
    assert 0 < scan.n_done < len(truth), "the kills must fall into the run"
    for folder in (root, calm):
        with start(folder) as worker:
            assert worker.stdout is not None
            assert worker.stdout.read()
        end = Store(ResultsPaths(folder)).scan(shard(), N_TRIALS)
        assert done(end) == truth
        write_tables(end, ResultsPaths(folder))
    assert (root / "summary.csv").read_bytes() == (calm / "summary.csv").read_bytes()
