"""The clock and fate of an attempt's model calls: true at any moment, also while calls are in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.gateway.ledger import Call, Ledger
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.report import Report

CONTEXT_LEN = 100


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Story:
    """A ledger whose time the test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pulse = Pulse(self.clock)
        self.ledger = Ledger(self.pulse, CONTEXT_LEN)

    def call(self, *, side: bool = False, tools: bool = False) -> Call:
        return self.ledger.begin(side=side, tools=tools)

    def passes(self, sec: float) -> None:
        self.clock.now += sec

    @property
    def report(self) -> Report:
        return self.ledger.report()

    @property
    def secs(self) -> tuple[float, float, float]:
        """(model, held, queued)."""
        report = self.report
        return report.model_sec, report.held_sec, report.queued_sec


@pytest.fixture
def story() -> Story:
    return Story()


def _answer(call: Call, prompt: int = 10, completion: int = 5, reason: str = "stop", tool_calls: int = 0) -> None:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    call.answered(finish_reason=reason, usage=usage, tool_calls=tool_calls)


def test_an_undisturbed_call_is_time_in_the_model(story: Story) -> None:
    call = story.call()
    call.trying()
    story.passes(3)
    assert story.secs == (3, 0, 0)  # in flight
    call.token()
    story.passes(2)
    _answer(call)
    story.passes(100)  # the agent's own
    assert story.secs == (5, 0, 0)
    assert (call.served_sec, call.held_sec, call.queued_sec, call.first_token_sec) == (5, 0, 0, 3)
    report = story.report
    assert (report.turns, report.calls, report.prompt_tokens, report.completion_tokens) == (1, 1, 10, 5)
    assert not report.failure
    assert not report.retried


def test_a_wait_for_a_place_is_queued_time_while_it_lasts_too(story: Story) -> None:
    call = story.call()
    call.queued()
    story.passes(4)
    assert story.secs == (0, 0, 4)
    call.placed()
    call.trying()
    story.passes(1)
    _answer(call)
    assert story.secs == (1, 0, 4)
    assert story.report.waited_sec == 4


def test_a_call_that_queues_behind_its_own_attempts_calls_gives_no_time(story: Story) -> None:
    one, two = story.call(), story.call()
    one.trying()
    two.queued()
    story.passes(5)
    assert story.secs == (5, 0, 0)
    _answer(one)
    story.passes(2)  # others are at the server now
    assert story.secs == (5, 0, 2)


def test_a_failed_try_counts_as_held_from_its_begin_and_the_wait_goes_on(story: Story) -> None:
    call = story.call()
    call.trying()
    story.passes(7)
    assert story.secs == (7, 0, 0)  # nobody knows yet
    call.try_failed("HTTP 500", down=False)
    assert story.secs == (0, 7, 0)
    story.passes(2)
    assert story.secs == (0, 9, 0)  # the wait that goes on now
    call.trying()
    story.passes(3)
    _answer(call)
    assert story.secs == (3, 9, 0)
    report = story.report
    assert report.retried
    assert not report.failure
    assert (call.held_sec, call.served_sec) == (9, 3)


def test_a_server_that_is_known_to_be_away_is_waited_for_without_a_try(story: Story) -> None:
    call = story.call()
    call.held("the model server is restarting", down=True)
    story.passes(30)
    assert story.secs == (0, 30, 0)
    call.trying()
    story.passes(1)
    _answer(call)
    assert story.secs == (1, 30, 0)
    assert not story.report.retried  # no try failed


def test_parallel_waits_are_never_longer_than_the_clock_on_the_wall(story: Story) -> None:
    calls = [story.call() for _ in range(10)]
    for call in calls:
        call.trying()
        story.passes(1)
    for call in calls:
        call.try_failed("reset", down=True)
    story.passes(5)
    assert story.secs == (0, 15, 0)
    assert sum(call.held_sec for call in calls) == 55
    for call in calls:
        call.trying()
    story.passes(1)
    for call in calls:
        _answer(call)
    assert story.secs == (1, 15, 0)


def test_a_wait_of_one_call_while_another_is_served_is_held_time(story: Story) -> None:
    """The agent waits for both; what is held is never counted as time in the model too."""
    one, two = story.call(), story.call()
    one.trying()
    two.trying()
    story.passes(2)
    two.try_failed("HTTP 503", down=False)
    story.passes(3)
    _answer(one)
    assert story.secs == (0, 5, 0)


def test_the_last_call_that_failed_is_a_failure_until_the_agent_goes_on(story: Story) -> None:
    failed = story.call()
    failed.trying()
    story.passes(60)
    failed.failed("held for GATEWAY_HOLD_SEC", down=True)
    report = story.report
    assert (report.failure, report.server_down, report.retried) == ("held for GATEWAY_HOLD_SEC", True, False)
    assert story.secs == (0, 60, 0)
    again = story.call()
    assert story.report.failure  # it is not over
    again.trying()
    _answer(again)
    report = story.report
    assert (report.failure, report.server_down, report.retried) == ("", False, True)


def test_a_refusal_is_the_agents_own_and_clears_a_failure(story: Story) -> None:
    story.call().failed("HTTP 500", down=False)
    story.call().refused()
    report = story.report
    assert (report.failure, report.retried) == ("", True)
    assert not report.context_exceeded


def test_a_refusal_alone_is_no_failure_and_no_retry(story: Story) -> None:
    story.call().refused()
    assert (story.report.failure, story.report.retried, story.report.turns) == ("", False, 0)


def test_a_side_call_is_neither_a_turn_nor_a_failure(story: Story) -> None:
    _answer(story.call(side=True))
    story.call(side=True).failed("HTTP 500", down=False)
    report = story.report
    assert (report.turns, report.calls, report.side_calls, report.failure) == (0, 0, 2, "")
    _answer(story.call())
    assert story.report.retried  # the agent lost it, and went on


def test_a_side_call_does_not_clear_the_agents_failure(story: Story) -> None:
    story.call().failed("HTTP 500", down=False)
    _answer(story.call(side=True))
    assert story.report.failure == "HTTP 500"


def test_a_client_that_leaves_is_aborted_not_failed(story: Story) -> None:
    call = story.call()
    call.trying()
    story.passes(2)
    call.aborted()
    report = story.report
    assert (report.aborted, report.failure, report.turns) == (1, "", 0)
    assert story.secs == (2, 0, 0)


def test_a_client_that_leaves_while_it_is_held_met_a_failure_of_ours(story: Story) -> None:
    call = story.call()
    call.held("the model server is restarting", down=True)
    story.passes(2)
    call.aborted()
    report = story.report
    assert (report.aborted, report.failure, report.server_down) == (1, "the model server is restarting", True)


@pytest.mark.parametrize("alive", [False, True])
def test_a_try_after_a_failed_one_is_still_held_unless_the_server_lives(story: Story, alive: bool) -> None:
    call = story.call()
    call.trying()
    story.passes(1)
    call.try_failed("HTTP 500", down=False)
    call.trying()
    story.passes(1)
    if alive:
        story.pulse.beat()  # another call's token
    story.passes(1)
    call.aborted()
    assert story.report.failure == ("" if alive else "HTTP 500")
    assert story.secs == ((2, 1, 0) if alive else (0, 3, 0))


def test_a_stream_that_has_begun_is_not_held_any_more(story: Story) -> None:
    call = story.call()
    call.trying()
    call.try_failed("reset", down=True)
    call.trying()
    call.token()
    story.passes(1)
    call.aborted()
    assert not story.report.failure


def test_half_a_stream_that_the_server_broke_off_failed(story: Story) -> None:
    call = story.call()
    call.trying()
    story.passes(1)
    call.token()
    story.passes(4)
    call.failed("the stream ended early", down=False)
    assert story.report.failure == "the stream ended early"
    assert story.secs == (0, 5, 0)


def test_suspicion_counts_only_while_the_watch_has_it_and_from_the_last_sign_of_life(story: Story) -> None:
    call = story.call()
    call.trying()
    story.passes(30)
    assert story.report.suspect_sec == 0
    story.pulse.suspected = True
    assert story.report.suspect_sec == 30
    story.pulse.beat()
    assert story.report.suspect_sec == 0
    story.passes(5)
    story.pulse.suspected = True
    story.passes(5)
    assert story.report.suspect_sec == 10  # since the beat
    _answer(call)
    assert story.report.suspect_sec == 0


def test_a_suspect_server_takes_nothing_from_an_agent_that_does_not_wait_for_it(story: Story) -> None:
    story.passes(30)
    story.pulse.suspected = True
    assert story.report.suspect_sec == 0
    call = story.call()
    call.trying()
    story.passes(2)
    assert story.report.suspect_sec == 2


def test_the_context_is_exceeded_by_refusal_or_by_length(story: Story) -> None:
    story.call().refused(context=True)
    assert story.report.context_exceeded
    _answer(story.call())
    assert not story.report.context_exceeded  # the agent shortened its history, and went on
    _answer(story.call(), prompt=90, completion=10, reason="length")
    assert story.report.context_exceeded
    _answer(story.call(), prompt=20, completion=10, reason="length")  # MAX_RESPONSE_LEN
    assert not story.report.context_exceeded


def test_turns_that_may_still_be_answered_count_as_begun(story: Story) -> None:
    _answer(story.call())
    story.call()
    story.call(side=True)
    assert story.ledger.turns_begun == 2


def test_max_turns_and_tools_are_noted(story: Story) -> None:
    _answer(story.call(tools=True), tool_calls=2)
    marked = story.call(tools=True)
    marked.answered(finish_reason="stop", usage=None, markup=True)
    story.call().refused(max_turns=True)
    report = story.report
    assert (report.tools_offered, report.tool_calls, report.markup, report.max_turns) == (True, 2, 1, True)


def test_what_is_said_after_the_end_changes_nothing(story: Story) -> None:
    call = story.call()
    call.trying()
    _answer(call)
    before = story.report
    call.aborted()
    call.failed("late", down=True)
    call.trying()
    story.passes(5)
    assert story.report == before


def test_calls_in_flight_are_counted_by_state(story: Story) -> None:
    held, queued, served = story.call(), story.call(), story.call()
    held.held("away", down=True)
    queued.queued()
    served.trying()
    assert story.ledger.states == {"held": 1, "queued": 1, "trying": 1}
    for call in (held, queued, served):
        call.aborted()
    assert story.ledger.states == {"held": 0, "queued": 0, "trying": 0}


MOVES = (
    "begin",
    "queued",
    "placed",
    "held",
    "trying",
    "try_failed",
    "token",
    "answered",
    "refused",
    "failed",
    "aborted",
)


def _move(story: Story, calls: list[Call], name: str, which: int) -> None:
    if name == "begin" or not calls:
        calls.append(story.call())
        return
    call = calls[which % len(calls)]
    reasons: dict[str, dict[str, object]] = {
        "held": {"why": "away", "down": True},
        "try_failed": {"why": "HTTP 500", "down": False},
        "failed": {"why": "HTTP 500", "down": False},
        "answered": {"finish_reason": "stop", "usage": None},
    }
    getattr(call, name)(**reasons.get(name, {}))


@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 5), st.integers(0, 9)), max_size=40))
def test_no_moment_counts_twice_whatever_calls_do(moves: list[tuple[str, int, int]]) -> None:
    """The deadline moves by what is reported: it never moves faster than the clock, and never back."""
    story, calls, elapsed, waited = Story(), list[Call](), 0.0, 0.0
    for name, which, sec in moves:
        _move(story, calls, name, which)
        story.passes(sec)
        elapsed += sec
        model, held, queued = story.secs
        assert min(model, held, queued) >= 0
        assert model + held + queued <= elapsed + 1e-6
        assert story.report.waited_sec >= waited - 1e-6
        waited = story.report.waited_sec
