"""summary.csv, trials.csv and what the end reports (A4, A12, A22, A27, C19-C21)."""

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolloutgen.index import Index, select, write_filtered
from rolloutgen.models import Instance, Trial
from rolloutgen.outcomes import Cause, Flag
from rolloutgen.paths import ResultsPaths
from rolloutgen.results.scan import Scan
from rolloutgen.results.store import Store
from rolloutgen.results.summary import Totals, read_summary, selected, totals, wilson, write_tables
from samples import error, fill, instances, play, row, verdict, write_index


@pytest.fixture
def paths(tmp_path: Path) -> ResultsPaths:
    return ResultsPaths(tmp_path)


def scanned(paths: ResultsPaths, marks: dict[str, str]) -> Scan:
    shard = instances(marks)
    store = Store(paths)
    fill(store, shard, list(marks.values()))
    return store.scan(shard, max(map(len, marks.values())))


def tables(paths: ResultsPaths, marks: dict[str, str]) -> tuple[Totals, list[dict[str, str]], list[dict[str, str]]]:
    told = write_tables(scanned(paths, marks), paths)
    return told, read_summary(paths.summary_csv), read_summary(paths.trials_csv)


def test_a_row_an_instance_in_index_order_with_these_columns(paths: ResultsPaths) -> None:
    """A4, A12."""
    marks = {"z": "ffff", "b": "pfff", "y": "ppff", "a": "pppf", "m": "pppp"}
    told, rows, _ = tables(paths, marks)
    assert paths.summary_csv.read_bytes().splitlines()[0] == (
        b"instance_id,n_pass,n_fail,pass_rate,n_trials,n_scored,n_error,mean_reward,wilson_low,wilson_high,complete"
    )
    assert [(r["instance_id"], r["pass_rate"]) for r in rows] == [
        ("z", "0"),
        ("b", "0.25"),
        ("y", "0.5"),
        ("a", "0.75"),
        ("m", "1"),
    ]
    assert selected(scanned(paths, dict.fromkeys(marks, "----"))) == {"b", "y", "a"}
    assert (told.n_mixed, told.pass_rate, told.n_missing, told.incomplete) == (3, 0.5, 0, ())


def test_trials_without_a_verdict_do_not_count(paths: ResultsPaths) -> None:
    told, rows, trials = tables(paths, {"a": "pek-"})
    assert rows == [
        {
            "instance_id": "a",
            "n_pass": "1",
            "n_fail": "0",
            "pass_rate": "1",
            "n_trials": "4",
            "n_scored": "1",
            "n_error": "3",
            "mean_reward": "1",
            "wilson_low": "0.2065493144",
            "wilson_high": "1",
            "complete": "false",
        }
    ]
    shown = [(t["trial"], t["outcome"], t["attempts"], t["error"], t["cause"]) for t in trials]
    assert shown == [
        ("0", "pass", "1", "", ""),
        ("1", "error", "1", "transport", "transport"),
        ("2", "", "1", "", "interrupted"),
        ("3", "", "0", "", "not_run"),
    ]
    assert told.causes == {"interrupted": 1, "not_run": 1, "transport": 1}
    assert (told.n_missing, told.incomplete) == (3, ("a",))


def test_every_trial_errs(paths: ResultsPaths) -> None:
    """C20: header, a row an instance, pass_rate empty, causes counted."""
    told, rows, _ = tables(paths, {"a": "ee", "b": "ee"})
    assert [(r["instance_id"], r["n_pass"], r["n_fail"], r["pass_rate"], r["mean_reward"]) for r in rows] == [
        ("a", "0", "0", "", ""),
        ("b", "0", "0", "", ""),
    ]
    assert (told.causes, told.pass_rate, told.n_mixed) == ({"transport": 4}, None, 0)


def test_mixed_instances_are_selected_even_while_incomplete(paths: ResultsPaths) -> None:
    """One pass and one fail cannot leave the band; all pass or all fail with trials missing is listed instead."""
    found = scanned(paths, {"mixed": "pf-e", "pass": "ppp-", "fail": "f--k", "full": "pppp", "none": "----"})
    assert selected(found) == {"mixed"}
    assert totals(found).incomplete == ("pass", "fail", "none")


def test_nothing_in_the_summary_depends_on_time_attempts_or_order(tmp_path: Path) -> None:
    """C10: the same outcomes give the same bytes."""
    written = []
    for name, order, retries in (("one", 1, 0), ("two", -1, 2)):
        paths = ResultsPaths(tmp_path / name)
        paths.root.mkdir()
        shard = instances("abc")
        store = Store(paths, name)
        for instance in shard[::order]:
            for number in (0, 1, 2)[::order]:
                rewards = verdict((number + ord(instance.instance_id)) % 2 == 0, reward=0.1 * (number + 1))
                play(store, Trial(instance, number), *[error()] * retries, rewards)
        write_tables(store.scan(shard, 3), paths)
        written.append(paths.summary_csv.read_bytes())
    assert written[0] == written[1]


def test_trials_csv_has_a_row_a_planned_trial(paths: ResultsPaths) -> None:
    store, shard = Store(paths), instances(["a", "b"])
    play(store, Trial(shard[0], 1), error(), verdict(False, flags=(Flag.OOM, Flag.MAX_TURNS), turns=4, reward=None))
    told = write_tables(store.scan(shard, 2), paths)
    rows = read_summary(paths.trials_csv)
    assert [(r["instance_id"], r["trial"]) for r in rows] == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    assert rows[1] == {
        "instance_id": "a",
        "trial": "1",
        "outcome": "fail",
        "reward": "",
        "flags": "oom max_turns",
        "attempts": "2",
        "error": "",
        "cause": "",
        "turns": "4",
        "started_at": "2026-01-01T00:00:00+00:00",
        "finished_at": "2026-01-01T00:01:00+00:00",
        "sandbox_sec": "1.5",
        "agent_sec": "50.0",
        "verifier_sec": "5.25",
        "lost_sec": "0.0",
        "model_sec": "",
        "held_sec": "",
        "queued_sec": "",
        "task_digest": "digest",
    }
    assert told.flags == {"max_turns": 1, "oom": 1}


def test_the_last_cause_is_counted(paths: ResultsPaths) -> None:
    store, (a,) = Store(paths), instances("a")
    play(store, Trial(a, 0), error(Cause.MODEL_DOWN), error(Cause.REWARD_MISSING))
    store.begin(Trial(a, 0))
    assert totals(store.scan([a], 1)).causes == {"reward_missing": 1}


ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
ODD = [
    "007",
    "NA",
    "1e5",
    "null",
    "a,b",
    'say "hi"',
    "new\nline",
    "cr\rhere",
    "crlf\r\nx",
    " blanks ",
    "=1+1",
    "'",
    '"',
]


@settings(deadline=None)
@given(st.lists(ids, unique=True, max_size=8))
@example(ODD)
@example([name for name in ODD if "\r" not in name])
def test_ids_come_back_as_the_text_they_are(tmp_path_factory: pytest.TempPathFactory, some: list[str]) -> None:
    """C21: by our reader, by the csv module and by pandas told to keep text."""
    paths = ResultsPaths(tmp_path_factory.mktemp("csv"))
    write_tables(Store(paths).scan(instances(some), 1), paths)
    assert [r["instance_id"] for r in read_summary(paths.summary_csv)] == some
    assert [r["instance_id"] for r in read_summary(paths.trials_csv)] == some
    text = paths.summary_csv.read_bytes().decode()
    assert [r[0] for r in csv.reader(io.StringIO(text, newline=""))][1:] == some


def test_rebanding_is_a_join_with_the_summary(tmp_path: Path, paths: ResultsPaths) -> None:
    """A27: by instance_id, in pandas, whatever the ids look like; and it gives what OUTPUT_INDEX gives."""
    marks = dict(zip(ODD, ["pf", "pp", "pf", "ff", "fp", "pf", "ee", "pp", "p-", "pf", "ff", "pf", "pp"], strict=True))
    found = scanned(paths, marks)
    write_tables(found, paths)
    source = write_index(tmp_path / "index.parquet", [row(name, f"/t/{n}") for n, name in enumerate(marks)])
    write_filtered(select(Index.read(source), None), selected(found), tmp_path / "out.parquet")
    index = pd.read_parquet(source)
    index["instance_id"] = index["extra_info"].str["instance_id"]
    summary = pd.read_csv(paths.summary_csv, dtype={"instance_id": str}, keep_default_na=False, na_values=[""])
    joined = index.merge(summary, on="instance_id", validate="one_to_one")
    assert len(joined) == len(marks)
    rate = joined["pass_rate"]
    kept = pd.read_parquet(tmp_path / "out.parquet")
    assert list(joined[(rate > 0) & (rate < 1)]["instance_id"]) == list(kept["extra_info"].str["instance_id"])


@given(n=st.integers(1, 10_000), share=st.floats(0, 1))
def test_wilson_holds_the_rate_and_stays_in_its_range(n: int, share: float) -> None:
    passed = round(n * share)
    low, high = wilson(passed, n)
    assert 0 <= low <= passed / n <= high <= 1


@pytest.mark.parametrize(
    ("k", "n", "low", "high"), [(0, 10, 0, 0.277533), (5, 10, 0.236593, 0.763407), (81, 263, 0.255, 0.366)]
)
def test_wilson_by_known_values(k: int, n: int, low: float, high: float) -> None:
    assert all(math.isclose(a, b, abs_tol=6e-4) for a, b in zip(wilson(k, n), (low, high), strict=True))


def test_a_shard_of_nothing_has_a_header(paths: ResultsPaths) -> None:
    told = write_tables(Store(paths).scan([], 4), paths)
    assert read_summary(paths.summary_csv) == []
    assert (told.n_trials, told.pass_rate) == (0, None)


def test_the_mean_reward_is_over_rewards_that_were_written(paths: ResultsPaths) -> None:
    store, a = Store(paths), Instance("a", Path("/t"))
    for number, reward in enumerate([0.1, 0.2, None]):
        play(store, Trial(a, number), verdict(False, reward=reward))
    write_tables(store.scan([a], 3), paths)
    (only,) = read_summary(paths.summary_csv)
    assert (only["mean_reward"], only["n_fail"]) == ("0.15", "3")
