"""What one attempt's model calls took and how they ended: clockwork, without I/O.

Every moment of an attempt belongs to one of four kinds, so that together they are never longer than its wall-clock
time, however many calls run at once:

- held: some call waits for a server that is down or fails, or is in a try that fails in the end (known only then);
- queued: else, calls wait for a place at the server and none of the attempt's has one. A call that queues behind others
  of its own attempt is that agent's own choice, and gives it no time;
- model: else, a call is in flight;
- none: the agent itself, and its sandbox.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.report import Report
from rolloutgen.gateway.spans import Union


class _State(Enum):
    BEGUN = auto()
    QUEUED = auto()
    TRYING = auto()
    HELD = auto()
    ENDED = auto()


class Call:
    """One call's clock and fate; made by ``Ledger.begin``, ended by ``answered``, ``refused``, ``failed``, ``aborted``.

    ``queued_sec``, ``held_sec`` and ``served_sec`` are of this call alone, ``first_token_sec`` counts from the begin of
    the try that brought it. What is said of a call after its end changes nothing.
    """

    def __init__(self, ledger: "Ledger", *, side: bool, tools: bool) -> None:
        self.side = side
        self.tools = tools
        self.queued_sec = 0.0
        self.held_sec = 0.0
        self.served_sec = 0.0
        self.first_token_sec: float | None = None
        self.state = _State.BEGUN
        self.since = ledger.pulse.clock()
        self.quiet_since = self.since
        self.tried_in_vain = False
        self._trouble: tuple[str, bool] | None = None
        self._ledger = ledger

    @property
    def ended(self) -> bool:
        return self.state is _State.ENDED

    @property
    def pulse(self) -> Pulse:
        """The server's signs of life."""
        return self._ledger.pulse

    def queued(self) -> None:
        """It waits for a place at the server."""
        self._enter(_State.QUEUED)

    def placed(self) -> None:
        """It has a place."""
        self._enter(_State.BEGUN)

    def held(self, why: str, *, down: bool) -> None:
        """It waits, without a try, for a server that is known to be away. ``down``: that hits all alike."""
        self._trouble = (why, down)
        self._enter(_State.HELD)

    def trying(self) -> None:
        """A try is sent."""
        self._enter(_State.TRYING)
        self.quiet_since = self.since

    def try_failed(self, why: str, *, down: bool) -> None:
        """The try failed for our reasons: its time counts as held, and so does all until the next one is sent."""
        self.tried_in_vain = True
        self._trouble = (why, down)
        self._enter(_State.HELD, in_vain=True)

    def token(self) -> None:
        """A sign of life: bytes of the answer came."""
        self._trouble = None
        self._ledger.pulse.beat()
        self.quiet_since = self._ledger.pulse.last
        if self.first_token_sec is None:
            self.first_token_sec = self.quiet_since - self.since

    def answered(
        self, *, finish_reason: str | None, usage: Mapping[str, Any] | None, tool_calls: int = 0, markup: bool = False
    ) -> None:
        """The whole answer came. ``tool_calls`` in it; ``markup``: one was left in the text, with none beside it."""
        if self._end():
            self._ledger.pulse.beat()
            self._ledger.count_answer(self, finish_reason, usage or {}, tool_calls, markup=markup)

    def told(self) -> None:
        """What it asked was no answer of the model's: vLLM's front told it, so its engine may be dead all the same."""
        self.refused()

    def refused(self, *, context: bool = False, max_turns: bool = False) -> None:
        """The request was bad (4xx). ``context``: it does not fit; ``max_turns``: the agent has had its turns."""
        if self._end():
            self._ledger.count_refusal(self, context=context, max_turns=max_turns)

    def failed(self, why: str, *, down: bool) -> None:
        """No answer comes, for our reasons. ``down``: that hits all alike."""
        if self._end(in_vain=True):
            self._ledger.count_failure(self, why, down=down)

    def aborted(self) -> None:
        """The client left, or the key died. That is a failure of ours where the call was being held.

        A try after a failed one is a part of that wait, until the server shows that it lives.
        """
        lives = self.state is _State.TRYING and self._ledger.pulse.last > self.since
        trouble = None if lives else self._trouble
        if self._end(in_vain=trouble is not None):
            self._ledger.count_abort(self, trouble)

    def _end(self, *, in_vain: bool = False) -> bool:
        if self.ended:
            return False
        self._enter(_State.ENDED, in_vain=in_vain)
        return True

    def _enter(self, state: _State, *, in_vain: bool = False) -> None:
        """``in_vain``: a try that ends with this was none."""
        if self.ended:
            return
        now = self._ledger.pulse.clock()
        sec = now - self.since
        if self.state is _State.HELD or (in_vain and self.state is _State.TRYING):
            self.held_sec += sec
            self._ledger.count_held(self.since, now)
        elif self.state is _State.TRYING:
            self.served_sec += sec
        elif self.state is _State.QUEUED:
            self.queued_sec += sec
        self._ledger.moved(self, state, now)
        self.state, self.since = state, now


class Ledger:
    """All calls of one attempt. ``context_len`` is VLLM_MAX_MODEL_LEN; all clocks are those of ``pulse``."""

    def __init__(self, pulse: Pulse, context_len: int) -> None:
        self.pulse = pulse
        self.in_flight: set[Call] = set()
        self._context_len = context_len
        self._counts = Report()
        self._states: Counter[_State] = Counter()
        self._held = Union()
        self._at = pulse.clock()
        self._busy_sec = 0.0
        self._queued_sec = 0.0
        self._trouble = False

    def begin(self, *, side: bool, tools: bool) -> Call:
        """``side``: a title or a condenser, no turn of the agent; ``tools``: it offers tools."""
        call = Call(self, side=side, tools=tools)
        self._tick(call.since)
        self.in_flight.add(call)
        self._states[call.state] += 1
        name = "side_calls" if side else "calls"
        self._note(**{name: getattr(self._counts, name) + 1})
        return call

    @property
    def turns_begun(self) -> int:
        """Turns that were answered, and those that may still be."""
        return self._counts.turns + sum(not call.side for call in self.in_flight)

    @property
    def states(self) -> Mapping[str, int]:
        """How many calls are ``held``, ``queued`` and at the server (``trying``)."""
        return {state.name.lower(): self._states[state] for state in (_State.HELD, _State.QUEUED, _State.TRYING)}

    def report(self) -> Report:
        """As of now, with what is still in flight."""
        now = self.pulse.clock()
        self._tick(now)
        held = self._held.length(min((c.since for c in self._in(_State.HELD)), default=now), now)
        silent = [self.pulse.silent_sec(call.quiet_since) for call in self._in(_State.TRYING)]
        return replace(
            self._counts,
            model_sec=max(0.0, self._busy_sec - held - self._queued_sec),
            held_sec=held,
            queued_sec=self._queued_sec,
            suspect_sec=max(silent, default=0.0),
        )

    def moved(self, call: Call, state: _State, now: float) -> None:
        self._tick(now)
        self._states[call.state] -= 1
        if state is not _State.ENDED:
            self._states[state] += 1
            return
        self.in_flight.discard(call)
        if not self.in_flight:
            self._held.settle()

    def count_held(self, begin: float, end: float) -> None:
        self._held.add(begin, end)

    def count_answer(
        self, call: Call, finish_reason: str | None, usage: Mapping[str, Any], tool_calls: int, *, markup: bool
    ) -> None:
        self._went_on(call)
        if call.side:
            return
        counts, prompt, completion = self._counts, _tokens(usage, "prompt"), _tokens(usage, "completion")
        self._note(
            turns=counts.turns + 1,
            tools_offered=counts.tools_offered or call.tools,
            tool_calls=counts.tool_calls + tool_calls,
            markup=counts.markup + markup,
            prompt_tokens=counts.prompt_tokens + prompt,
            completion_tokens=counts.completion_tokens + completion,
            context_exceeded=finish_reason == "length" and prompt + completion >= self._context_len,
        )

    def count_refusal(self, call: Call, *, context: bool, max_turns: bool) -> None:
        self._went_on(call)
        if not call.side:
            self._note(context_exceeded=context, max_turns=self._counts.max_turns or max_turns)

    def count_failure(self, call: Call, why: str, *, down: bool) -> None:
        self._trouble = True
        if not call.side:
            self._note(failure=why, server_down=down)

    def count_abort(self, call: Call, trouble: tuple[str, bool] | None) -> None:
        self._note(aborted=self._counts.aborted + 1)
        if trouble is not None:
            self.count_failure(call, trouble[0], down=trouble[1])

    def _went_on(self, call: Call) -> None:
        if call.tried_in_vain or (self._trouble and not call.side):
            self._note(retried=True)
        if not call.side:
            self._trouble = False
            self._note(failure="", server_down=False)

    def _in(self, state: _State) -> list[Call]:
        return [call for call in self.in_flight if call.state is state]

    def _tick(self, now: float) -> None:
        """The time since the last change belongs to the calls as they were since then."""
        if self.in_flight:
            self._busy_sec += now - self._at
        if self._states[_State.QUEUED] and not self._states[_State.TRYING] and not self._states[_State.HELD]:
            self._queued_sec += now - self._at
        self._at = now

    def _note(self, **changes: Any) -> None:
        self._counts = replace(self._counts, **changes)


def _tokens(usage: Mapping[str, Any], kind: str) -> int:
    return int(usage.get(f"{kind}_tokens") or 0)
