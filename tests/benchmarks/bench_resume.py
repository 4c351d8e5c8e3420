"""A finished RESULTS_DIR: from launch to "0 owed", tables and filtered index written.

    python tests/benchmarks/bench_resume.py [--instances 50000] [--trials 4] [--folder DIR]

Peers: the plain way to do the same reading (pathlib and json, one outcome.json after the other), and Harbor's own
resume of a finished job, at a size that it can bear. ``--folder`` keeps what was made there.
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from bench_index import make
from measure import fresh, show, show_ratio

OURS = """
import json, sys
from pathlib import Path
from rolloutgen.index import Index, select, write_filtered
from rolloutgen.paths import ResultsPaths
from rolloutgen.results.store import Store
from rolloutgen.results.summary import selected, write_tables
index, results, output = map(Path, sys.argv[1:4])
shard = select(Index.read(index), None)
paths = ResultsPaths(results)
scan = Store(paths).scan(shard.instances, int(sys.argv[4]))
totals = write_tables(scan, paths)
written = write_filtered(shard, selected(scan), output)
print(json.dumps({"owed": scan.n_owed, "pass": totals.n_pass, "fail": totals.n_fail, "written": written}))
"""
PLAIN = """
import json, sys
from pathlib import Path
done = {}
for path in Path(sys.argv[2]).glob("*/trial_*/outcome.json"):
    outcome = json.loads(path.read_text())
    done[outcome["instance_id"], outcome["trial"]] = outcome
print(json.dumps({"done": len(done)}))
"""
MAKE = """
import sys
from pathlib import Path
from rolloutgen.models import Attempt, Instance, Outcome, Times, Trial
from rolloutgen.outcomes import Flag, Result
from rolloutgen.paths import ResultsPaths
from rolloutgen.results.records import encode
paths, n_instances, n_trials = ResultsPaths(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
details = {"sandbox": {"backend": "local", "memory": "cgroup2", "commands": list(range(20))}, "note": "x" * 200}
for row in range(n_instances):
    instance = Instance(f"owner__repository-{row:07d}", Path("/tasks"))
    for number in range(n_trials):
        trial = Trial(instance, number)
        folder = paths.verdict(trial)
        folder.mkdir(parents=True)
        passed = (row * 7 + number * 3) % 5 > 1
        times = Times("2026-01-01T00:00:00.123456+00:00", "2026-01-01T00:10:00.654321+00:00", 2.5, 570.25, 27.125)
        flags = (Flag.MAX_TURNS,) if row % 3 else ()
        outcome = Outcome(
            Result.PASS if passed else Result.FAIL, times, f"{row:064x}", float(passed), {"reward": float(passed)},
            flags=flags, turns=row % 50, details=details,
        )
        (folder / "outcome.json").write_bytes(encode(Attempt(trial, 1, folder), outcome, "0123456789ab"))
        (folder / "transcript.jsonl").touch()
"""


RUN_FILE = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
HARBOR = Path(__file__).with_name("harbor_resume.py")
TASKS = Path(os.environ.get("TEST_INPUTS") or Path(__file__).parents[3] / "shared") / "quixbugs" / "tasks"


def finished(folder: Path, instances: int, trials: int) -> tuple[object, ...]:
    """A finished RESULTS_DIR in ``folder``, made where missing: the arguments of OURS."""
    results, index = folder / "results", folder / "index.parquet"
    if not results.exists():
        folder.mkdir(exist_ok=True, parents=True)
        make(index, instances)
        fresh(MAKE, results, instances, trials)
    return index, results, folder / "selected.parquet", trials


def against_plain(folder: Path, instances: int, trials: int) -> None:
    arguments = finished(folder, instances, trials)
    ours, plain = fresh(OURS, *arguments), fresh(PLAIN, *arguments)
    show(f"rolloutgen, all, {instances} x {trials}", ours)
    show("pathlib and json, reading only", plain)
    show_ratio(ours, plain, "the plain way")


def against_harbor(folder: Path, trials: int) -> None:
    """A trial each of ``trials`` distinct tasks (copies of real ones)."""
    tasks, real = folder / "tasks", sorted(TASKS.iterdir())
    for number in range(trials):
        source = real[number % len(real)]
        shutil.copytree(source, tasks / f"{source.name}_{number}")
    fresh(RUN_FILE, HARBOR, "make", folder, tasks, trials)
    harbor = fresh(RUN_FILE, HARBOR, "resume", folder, tasks, trials)
    ours = fresh(OURS, *finished(folder / "ours", harbor["trials"], 1))
    show(f"rolloutgen, all, {harbor['trials']} x 1", ours)
    show("Harbor, its own resume", harbor)
    show_ratio(ours, harbor, "Harbor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=50_000)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--harbor-trials", type=int, default=1_000, help="size of the comparison with Harbor; 0: none")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        against_plain(options.folder or Path(passing, "plain"), options.instances, options.trials)
        if options.harbor_trials:
            against_harbor(Path(passing, "harbor"), options.harbor_trials)


if __name__ == "__main__":
    main()
