"""Attempts and outcomes on disk, and what a scan makes of them (A3, A20, A25, C9, C11-C13, C15, C16)."""

import os
from pathlib import Path

import orjson
import pytest

from rolloutgen.errors import Level, StoreError
from rolloutgen.models import Instance, Trial
from rolloutgen.outcomes import Cause, Result
from rolloutgen.paths import ResultsPaths
from rolloutgen.results.scan import scan
from rolloutgen.results.store import Scan, Store
from samples import error, fill, instances, play, verdict

A, B = instances(["a", "b"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(ResultsPaths(tmp_path), "0123456789ab")


def state(root: Path) -> dict[str, bytes]:
    """Every file below, links by their target: what must stay as it is."""
    files = (p for p in root.rglob("*") if p.is_symlink() or p.is_file())
    return {str(p.relative_to(root)): p.readlink().name.encode() if p.is_symlink() else p.read_bytes() for p in files}


def owed(found: Scan) -> list[tuple[str, int]]:
    return [(trial.instance.instance_id, trial.number) for trial in found.owed()]


def test_nothing_is_done_where_nothing_is(store: Store, tmp_path: Path) -> None:
    """A3: exactly N_TRIALS trials an instance, instance by instance; also where RESULTS_DIR is not there yet."""
    for place in (store, Store(ResultsPaths(tmp_path / "none"))):
        found = place.scan([A, B], 2)
        assert owed(found) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        assert (found.n_planned, found.n_done, found.n_owed) == (4, 0, 4)
    assert list(tmp_path.iterdir()) == []


def test_a_verdict_takes_the_trials_name(store: Store, tmp_path: Path) -> None:
    """A25, and outcome.json says all that there is."""
    attempt = store.begin(Trial(A, 1))
    assert (attempt.number, attempt.folder) == (1, tmp_path / "a" / "trial_1.attempt_1")
    (attempt.folder / "transcript.jsonl").write_text("said\n")
    store.finish(attempt, verdict(True, turns=3, details={"why": ["so"]}))
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["trial_1"]
    assert (tmp_path / "a/trial_1/transcript.jsonl").read_text() == "said\n"
    kept = orjson.loads((tmp_path / "a/trial_1/outcome.json").read_bytes())
    assert {
        k: kept[k] for k in ("schema_version", "run_id", "instance_id", "trial", "attempt", "result", "reward")
    } == {
        "schema_version": 1,
        "run_id": "0123456789ab",
        "instance_id": "a",
        "trial": 1,
        "attempt": 1,
        "result": "pass",
        "reward": 1.0,
    }
    assert kept["details"] == {"why": ["so"]}
    assert owed(store.scan([A], 2)) == [("a", 0)]


def test_attempts_without_a_verdict_are_kept_and_one_counts(store: Store, tmp_path: Path) -> None:
    """C16."""
    play(store, Trial(A, 0), error(), error(Cause.MODEL_DOWN), verdict(True))
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["trial_0", "trial_0.attempt_1", "trial_0.attempt_2"]
    found = store.scan([A], 1)
    assert (found.n_done, found.n_pass, found.n_owed) == (1, 1, 0)
    assert found.of(0).done[0].attempt == 3
    assert found.attempts_used(Trial(A, 0)) == 0


def test_attempts_are_counted_across_launches(tmp_path: Path) -> None:
    """Charged: errors of the trial itself. Not charged: a kill, an interrupt, and what hits all alike."""
    for launch in range(3):
        store = Store(ResultsPaths(tmp_path), f"launch{launch}")
        play(store, Trial(A, 0), error(Cause.TRANSPORT), error(Cause.MODEL_DOWN))
        store.begin(Trial(A, 0))
        found = Store(ResultsPaths(tmp_path)).scan([A], 1)
        assert found.attempts_used(Trial(A, 0)) == launch + 1
        assert found.of(0).unfinished[0].attempts == 3 * (launch + 1)
    assert (found.n_exhausted(3), found.n_exhausted(4)) == (1, 0)
    assert found.n_owed == 1


def test_an_attempts_number_is_never_used_twice(store: Store, tmp_path: Path) -> None:
    store.begin(Trial(A, 0))
    store.begin(Trial(A, 0)).folder.rename(tmp_path / "a" / "trial_0.attempt_7")
    store.begin(Trial(A, 1))
    assert store.begin(Trial(A, 0)).number == 8
    assert store.begin(Trial(A, 1)).number == 2


def test_a_folder_and_a_log_are_no_verdict(store: Store, tmp_path: Path) -> None:
    """C9: not done; the next attempt keeps what was there."""
    (tmp_path / "a/trial_0/harbor").mkdir(parents=True)
    (tmp_path / "a/trial_0/harbor/result.json").write_text('{"verifier_result": {"rewards": {"reward": 1}}}')
    assert owed(store.scan([A], 1)) == [("a", 0)]
    play(store, Trial(A, 0), verdict(False))
    assert (tmp_path / "a/trial_0.attempt_1/harbor/result.json").exists()
    found = store.scan([A], 1)
    assert (found.n_fail, found.of(0).done[0].attempt) == (1, 2)


def kill_before_rename(store: Store, trial: Trial, passed: bool) -> Path:
    """What a kill between outcome.json and the rename leaves."""
    attempt = store.begin(trial)
    store.finish(attempt, verdict(passed))
    done = attempt.folder.with_name(f"trial_{trial.number}")
    done.rename(attempt.folder)
    return attempt.folder


def test_a_scan_completes_a_rename_that_a_kill_prevented(store: Store, tmp_path: Path) -> None:
    play(store, Trial(A, 0), error())
    folder = kill_before_rename(store, Trial(A, 0), True)
    before = (folder / "outcome.json").read_bytes()
    assert store.scan([A], 1).n_pass == 1
    assert (tmp_path / "a/trial_0/outcome.json").read_bytes() == before
    assert not folder.exists()


def test_a_look_from_outside_moves_nothing(store: Store, tmp_path: Path) -> None:
    """A15: a dry run writes nothing to RESULTS_DIR, yet counts the same."""
    kill_before_rename(store, Trial(A, 0), True)
    (tmp_path / "a/trial_1").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert store.scan([A], 2, repair=False).n_done == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_of_two_verdicts_the_earlier_counts_once(store: Store, tmp_path: Path) -> None:
    first = kill_before_rename(store, Trial(A, 0), False)
    second = kill_before_rename(store, Trial(A, 0), True)
    assert (first.name, second.name) == ("trial_0.attempt_1", "trial_0.attempt_2")
    for _ in range(2):
        found = store.scan([A], 1)
        assert (found.n_done, found.n_pass, found.n_fail) == (1, 0, 1)
    assert second.is_dir()


def test_a_rename_is_completed_past_an_empty_trials_folder(store: Store, tmp_path: Path) -> None:
    kill_before_rename(store, Trial(A, 0), True)
    (tmp_path / "a/trial_0").mkdir()
    (tmp_path / "a/trial_0/log").touch()
    assert store.scan([A], 1).n_pass == 1
    assert (tmp_path / "a/trial_0.attempt_2/log").exists()
    assert store.scan([A], 1).n_pass == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"result": "pass"}',
        b'{"schema_version":1,"instance_id":"a","trial":0,"result":"won","reward":1}',
    ],
)
def test_a_torn_outcome_is_not_done_and_told(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a/trial_0").mkdir(parents=True)
    (tmp_path / "a/trial_0/outcome.json").write_bytes(content)
    found = store.scan([A], 1)
    assert found.n_done == 0
    assert [(f.level, "a/trial_0" in f.message) for f in found.findings] == [(Level.WARN, True)]
    play(store, Trial(A, 0), verdict(True))
    assert (tmp_path / "a/trial_0.attempt_1/outcome.json").read_bytes() == content
    assert store.scan([A], 1).n_pass == 1


def test_temporary_files_are_ignored(store: Store, tmp_path: Path) -> None:
    attempt = store.begin(Trial(A, 0))
    (attempt.folder / ".outcome.json.tmp").write_bytes(b'{"half')
    (tmp_path / ".summary.csv.tmp").touch()
    found = store.scan([A], 1)
    assert (found.n_owed, found.findings) == (1, ())
    store.finish(attempt, verdict(True))
    assert store.scan([A], 1).n_pass == 1


@pytest.mark.parametrize("version", [0, 99])
def test_a_record_with_unknown_fields_or_without_new_ones_is_read(store: Store, tmp_path: Path, version: int) -> None:
    """C13: by its stable fields and schema_version; nothing is run again for it."""
    stable = {"schema_version": version, "instance_id": "a", "trial": 0, "result": "fail", "reward": 0}
    for number, record in enumerate([stable, {**stable, "trial": 1, "mood": {"x": 1}, "flags": 7, "times": None}]):
        (tmp_path / f"a/trial_{number}").mkdir(parents=True)
        (tmp_path / f"a/trial_{number}/outcome.json").write_bytes(orjson.dumps(record))
    found = store.scan([A], 2)
    assert (found.n_fail, found.n_owed, found.findings) == (2, 0, ())


def test_a_record_of_any_length_is_read(store: Store) -> None:
    play(store, Trial(A, 0), verdict(True, details={"log": "x" * 300_000}))
    play(store, Trial(A, 1), verdict(True, details={"log": "x" * (1 << 22)}))
    assert store.scan([A], 2).n_pass == 2


def test_raised_n_trials_and_a_longer_shard_owe_only_what_is_missing(store: Store, tmp_path: Path) -> None:
    """C11."""
    fill(store, [A], ["pfpf"])
    before = state(tmp_path)
    found = store.scan([A, B], 8)
    assert owed(found) == [("a", n) for n in range(4, 8)] + [("b", n) for n in range(8)]
    for trial in found.owed():
        play(store, trial, verdict(True))
    assert store.scan([A, B], 8).n_owed == 0
    assert state(tmp_path).items() >= before.items()


def test_lowered_n_trials_leaves_the_extra_ones_alone(store: Store, tmp_path: Path) -> None:
    """C12."""
    fill(store, [A], ["ppppffek"])
    before = state(tmp_path)
    found = store.scan([A], 4)
    assert (found.n_done, found.n_pass, found.n_owed, found.extra_trials) == (4, 4, 0, 4)
    assert [(f.level, f.subject, "4 trials" in f.message) for f in found.findings] == [(Level.WARN, "N_TRIALS", True)]
    assert state(tmp_path) == before


def test_strangers_are_counted_and_told(store: Store, tmp_path: Path) -> None:
    """C15, A22: results of instances outside the shard give no rows, and a warning counts them."""
    others = instances(f"other{number}" for number in range(12))
    fill(store, [A, *others], ["p"] * 13)
    (tmp_path / "notes.txt").touch()
    found = store.scan([A], 1)
    assert (found.n_planned, found.n_done, len(found.strangers)) == (1, 1, 12)
    (finding,) = found.findings
    assert finding.level is Level.WARN
    assert "12 folders" in finding.message
    assert "2 more" in finding.message


def test_an_outcome_of_another_instance_is_told_and_never_counts(store: Store, tmp_path: Path) -> None:
    fill(store, [A, B], ["p", "p"])
    (tmp_path / "a/trial_0").rename(tmp_path / "b/trial_1")
    (tmp_path / "b/trial_0").rename(tmp_path / "b/trial_2")
    before = state(tmp_path)
    found = store.scan([A, B], 3)
    assert found.n_done == 0
    (finding,) = found.findings
    assert finding.level is Level.FATAL
    for part in ("b/trial_1 (of 'a', trial 0)", "b/trial_2 (of 'b', trial 0)"):
        assert part in finding.message
    assert state(tmp_path) == before


def test_links_are_not_followed(store: Store, tmp_path: Path) -> None:
    """A link could point at any other trial's verdict."""
    fill(store, [A, B], ["p", "p"])
    (tmp_path / "a/trial_1").symlink_to(tmp_path / "a/trial_0")
    (tmp_path / "a/trial_2.attempt_1").symlink_to(tmp_path / "a/trial_0")
    (tmp_path / "b/trial_1").mkdir()
    (tmp_path / "b/trial_1/outcome.json").symlink_to(tmp_path / "b/trial_0/outcome.json")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    found = store.scan([A, B, *instances("c")], 3)
    assert found.n_done == 2
    assert {f.level: f.message.count("trial_") for f in found.findings} == {Level.FATAL: 2, Level.WARN: 1}
    assert any(str(tmp_path / "c") in f.message for f in found.findings)


def test_what_is_no_file_does_not_stop_the_scan(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a/trial_0").mkdir(parents=True)
    os.mkfifo(tmp_path / "a/trial_0/outcome.json")
    (tmp_path / "a/trial_1/outcome.json").mkdir(parents=True)
    (tmp_path / "a/trial_2").touch()
    found = store.scan([A], 3)
    assert found.n_done == 0
    assert {f.level for f in found.findings} == {Level.WARN, Level.FATAL}


def test_a_done_trial_cannot_run_again(store: Store) -> None:
    attempt = store.begin(Trial(A, 0))
    fill(store, [A], ["p"])
    with pytest.raises(StoreError, match="holds a verdict already"):
        store.begin(Trial(A, 0))
    with pytest.raises(StoreError, match="holds a verdict already"):
        store.finish(attempt, verdict(False))
    assert store.scan([A], 1).n_pass == 1


def test_a_failed_write_is_loud(store: Store, tmp_path: Path) -> None:
    """C14: the record cannot be kept: StoreError, and nothing looks done."""
    attempt = store.begin(Trial(A, 0))
    attempt.folder.rename(tmp_path / "gone")
    with pytest.raises(StoreError, match="could not be written"):
        store.finish(attempt, verdict(True))
    (tmp_path / "b").touch()
    with pytest.raises(StoreError, match="could not begin"):
        store.begin(Trial(B, 0))
    assert store.scan([A], 1).n_done == 0


def test_a_fail_by_the_sandboxes_own_limit_is_a_verdict(store: Store) -> None:
    play(store, Trial(A, 0), verdict(False, reward=None))
    found = store.scan([A], 1)
    assert (found.n_fail, found.of(0).done[0].reward) == (1, None)


def test_digests_of_the_tasks_that_were_scored(store: Store) -> None:
    play(store, Trial(A, 0), verdict(True))
    play(store, Trial(B, 0), error())
    assert store.scan([A, B], 1).digests == {"a": "digest"}


@pytest.mark.parametrize("name", ["run.json", ".", "..", "a/b", "%", "ü" * 150, "summary.csv", "new\nline", "nul\0"])
def test_any_id_has_a_folder_of_its_own(store: Store, tmp_path: Path, name: str) -> None:
    """C21: the true id stands in outcome.json."""
    odd = Instance(name, Path("/tasks"))
    fill(store, [odd, A], ["pf", "f-"])
    found = store.scan([odd, A], 2)
    assert (found.n_pass, found.n_fail, found.strangers) == (1, 2, ())
    assert {r.instance_id for p in (0, 1) for r in found.of(p).done.values()} == {name, "a"}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_large_shard_costs_nothing_until_it_is_asked_for(store: Store) -> None:
    """Memory stays bounded: owed trials are made on demand."""
    shard = instances(map(str, range(1000)))
    fill(store, shard[-1:], ["p"])
    found = store.scan(shard, 100_000)
    assert found.n_owed == 10**8 - 1
    assert next(found.owed()).instance.instance_id == "0"
    assert len(found.results) == 1


def test_many_chunks_and_threads_find_the_same(store: Store, tmp_path: Path) -> None:
    """The slow disk's way of reading gives what the fast one's gives."""
    shard = instances(f"i{number}" for number in range(300))
    fill(store, shard, ["p-", "ef", "k-"] * 100)
    fast = store.scan(shard, 2)
    slow = scan(ResultsPaths(tmp_path), shard, 2, repair=True, slow_waits=0)
    assert (fast.n_pass, fast.n_fail, len(fast.charged)) == (100, 100, 100)
    assert (slow.results, slow.charged, slow.n_done) == (fast.results, fast.charged, fast.n_done)


def test_results_are_whatever_the_rule_says(store: Store) -> None:
    """Every cause: charged or not as the table says."""
    shard = instances(Cause)
    for instance, cause in zip(shard, Cause, strict=True):
        play(store, Trial(instance, 0), error(cause))
    found = store.scan(shard, 1)
    assert {i.instance_id for i in shard if found.attempts_used(Trial(i, 0))} == {
        cause for cause in Cause if error(cause).charged
    }
    assert all(found.of(p).unfinished[0].last.result is Result.ERROR for p in range(len(shard)))  # type: ignore[union-attr]  # each has one
