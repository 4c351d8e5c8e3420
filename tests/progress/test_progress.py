"""What a run shows while it goes on: counts, an honest time left, lines that no task can forge."""

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from driving import until
from rolloutgen.gateway.report import Report
from rolloutgen.models import Instance, Outcome, Times, Trial
from rolloutgen.outcomes import Cause, Flag, Result
from rolloutgen.progress.alarm import ToolAlarm
from rolloutgen.progress.show import PROGRESS, Bar, Lines, Progress, describe
from rolloutgen.progress.spent import shares_line, spent
from rolloutgen.progress.tally import Snapshot, Tally, for_people

TRIAL = Trial(Instance("i", Path("/tasks/i")), 2)
PASS = Outcome(Result.PASS, Times("", "", 1.0, 2.5, None), "d", reward=1.0, flags=(Flag.MAX_TURNS,))
ERROR = Outcome(Result.ERROR, Times("", ""), "d", cause=Cause.TRANSPORT, message="lost\n2026 task: pass")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tally(clock: Clock, n_planned: int = 100, n_concurrent: int = 10) -> Tally:
    return Tally(
        n_planned=n_planned,
        n_pass=3,
        n_fail=2,
        n_concurrent=n_concurrent,
        clock=clock,
        utc=lambda: "2026-01-01T00:00:00Z",
    )


def finish(counts: Tally, outcome: Outcome = PASS, *, retry: bool = False) -> None:
    counts.started()
    counts.finished(outcome, retry=retry)


def test_the_time_left_is_unknown_until_every_slot_has_had_its_turn() -> None:
    clock = Clock()
    counts = tally(clock)
    for _ in range(9):
        clock.now += 6.0
        finish(counts)
    assert counts.snapshot().eta_sec is None
    assert "time left not known yet" in counts.snapshot().line()
    clock.now += 6.0
    finish(counts)
    snapshot = counts.snapshot()
    assert snapshot.per_hour == pytest.approx(600.0)
    assert snapshot.eta_sec == pytest.approx(85 * 6.0)
    assert "about 8 min left" in snapshot.line()


def test_the_time_left_follows_recent_throughput_and_grows_in_a_standstill() -> None:
    clock = Clock()
    counts = tally(clock, n_planned=1000)
    for step in [1.0] * 50 + [10.0] * 30:
        clock.now += step
        finish(counts)
    slow = counts.snapshot().eta_sec
    assert slow == pytest.approx((1000 - 85) * 10.0)
    clock.now += 1000.0
    later = counts.snapshot().eta_sec
    assert later is not None
    assert slow is not None
    assert later > 5 * slow


def test_no_time_left_is_promised_while_new_attempts_are_paused() -> None:
    clock = Clock()
    counts = tally(clock)
    for _ in range(20):
        clock.now += 1.0
        finish(counts)
    counts.paused = "model_down"
    assert counts.snapshot().eta_sec is None
    assert "new attempts paused: model_down" in counts.snapshot().line()


def test_errors_are_attempts_and_given_up_trials_are_not_waited_for() -> None:
    counts = tally(Clock(), n_planned=10)
    finish(counts, ERROR, retry=True)
    finish(counts, ERROR)
    finish(counts)
    counts.started()
    snapshot = counts.snapshot()
    assert (snapshot.n_done, snapshot.n_owed, snapshot.n_errors, snapshot.n_given_up) == (6, 4, 2, 1)
    assert snapshot.running == 1
    assert snapshot.line().startswith(
        "6/10 trials done (4 pass, 2 fail), 2 attempts without a verdict, 1 trials given up"
    )


def test_the_time_of_ended_attempts_is_told_by_where_it_went() -> None:
    """Calls and waits for the model are parts of the agent's time; the rest of it is the sandbox's."""
    counts = tally(Clock())
    assert shares_line(counts.snapshot().spent) == ""
    finish(counts, replace(PASS, times=Times("", "", 10.0, 70.0, 20.0, 0.0, 40.0, 5.0, 5.0)))
    line = shares_line(counts.snapshot().spent)
    assert line == (
        "of the attempts' time: 40% in the model, 20% in the sandbox, 20% in the verifier, "
        "10% waiting for the model, 10% starting the sandbox"
    )
    finish(counts, replace(PASS, times=Times("", "", 0.0, 100.0, 0.0)))
    assert counts.snapshot().spent == {"model": 40, "waits": 10, "sandbox": 120, "verifier": 20, "start": 10}


def test_an_attempt_that_lost_its_gateway_says_nothing_of_where_its_time_went() -> None:
    """The gateway's count of the seconds died with it: all of them would seem to be the sandbox's."""
    counts = tally(Clock())
    finish(counts, replace(ERROR, cause=Cause.MODEL_DOWN, times=Times("", "", 1.0, 70.0, None, 0.0, 0.0, 0.0, 0.0)))
    assert shares_line(counts.snapshot().spent) == ""
    finish(counts, replace(ERROR, times=Times("", "", 100.0)))
    assert shares_line(counts.snapshot().spent).startswith("of the attempts' time: 100% starting the sandbox")


def test_calls_that_overlap_take_no_time_from_the_sandbox_that_was_not_there() -> None:
    assert spent(Times("", "", 0.0, 5.0, 0.0, 0.0, 6.0, 0.0, 0.0))["sandbox"] == 0.0


def test_a_snapshot_survives_json() -> None:
    counts = tally(Clock())
    finish(counts)
    snapshot = counts.snapshot()
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot


@pytest.mark.parametrize(
    ("sec", "text"), [(0.4, "0 s"), (59.4, "59 s"), (540, "9 min"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")]
)
def test_times_for_people(sec: float, text: str) -> None:
    assert for_people(sec) == text


def test_one_line_an_attempt_and_no_task_can_forge_one() -> None:
    assert describe(TRIAL, PASS, retry=False) == "i trial_2: pass, reward 1, max_turns (3.5 s)"
    line = describe(TRIAL, ERROR, retry=True)
    assert line == "i trial_2: error, transport: transport: lost 2026 task: pass, is tried again (0.0 s)"
    odd = Trial(Instance("a\nb\x1b[2J", Path("/t")), 0)
    assert describe(odd, PASS, retry=False).startswith("a b [2J trial_0: ")


def asked(tool_calls: int = 0, markup: int = 0, *, offered: bool = True, outcome: Outcome = PASS) -> Outcome:
    """An attempt that was offered tools, as the gateway tells of it."""
    told = Report(turns=3, tools_offered=offered, tool_calls=tool_calls, markup=markup).to_json()
    return replace(outcome, details={"model": {name: value for name, value in told.items() if value}})


@pytest.mark.parametrize("mute", [asked(), asked(tool_calls=1, markup=2)])
def test_c7_attempts_without_tool_calls_raise_one_alarm_that_names_the_parser(mute: Outcome) -> None:
    log = io.StringIO()
    progress = Progress(tally(Clock()), [Lines(log)], None, ToolAlarm("hermes"))
    for outcome in [asked(tool_calls=3)] * 4 + [mute] * 4:
        progress.finished(TRIAL, outcome, retry=False)
    assert "WARN" not in log.getvalue()  # half of eight is not more than half
    for outcome in [mute] * 5:
        progress.finished(TRIAL, outcome, retry=False)
    (line,) = [line for line in log.getvalue().splitlines() if "WARN" in line]
    assert "5 of 9 attempts that were offered tools" in line
    assert "TOOL_CALL_PARSER=hermes" in line


@pytest.mark.parametrize(
    "quiet", [PASS, asked(offered=False), asked(tool_calls=9, markup=2), asked(outcome=ERROR)], ids=range(4)
)
def test_c7_attempts_that_say_nothing_of_the_parser_raise_none(quiet: Outcome) -> None:
    alarm = ToolAlarm(None)
    assert {alarm.see(quiet) for _ in range(50)} == {""}


def test_c7_seven_attempts_are_too_few() -> None:
    alarm = ToolAlarm(None)
    assert [bool(alarm.see(asked())) for _ in range(10)] == [False] * 7 + [True] + [False] * 2


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError(text)


async def test_a23_the_same_events_feed_every_display_and_a_closed_one_is_let_go(tmp_path: Path) -> None:
    log = io.StringIO()
    progress = Progress(tally(Clock()), [Lines(Gone()), Lines(log)], tmp_path)
    progress.started(TRIAL)
    progress.finished(TRIAL, PASS, retry=False)
    progress.paused("registry_limit: slow down", 5.0)
    progress.resumed()
    fresh = asyncio.create_task(progress.keep_fresh())
    await asyncio.to_thread(until, (tmp_path / PROGRESS).exists, "progress.json")
    fresh.cancel()
    progress.last_state()
    progress.let_go()
    lines = [line.split(" ", 1)[1] for line in log.getvalue().splitlines()]
    assert lines == [
        "i trial_2: pass, reward 1, max_turns (3.5 s)",
        "new attempts pause for 5 s, since this hits all alike: registry_limit: slow down",
        "new attempts start again",
    ]
    assert json.loads((tmp_path / PROGRESS).read_text())["n_pass"] == 4


def test_a_terminal_shows_the_bar_and_leaves_routine_lines_to_the_log() -> None:
    terminal = io.StringIO()
    progress = Progress(tally(Clock()), [Bar(terminal)], None)
    progress.started(TRIAL)
    progress.finished(TRIAL, PASS, retry=False)
    progress.say("the end [of it]")
    progress.last_state()
    progress.let_go()
    shown = terminal.getvalue()
    assert "6/100 trials done (4 pass, 2 fail)" in " ".join(shown.split())
    assert "the end [of it]" in shown
    assert "max_turns" not in shown
