"""The attempts that may speak with the model now, each under a key of its own; a new gateway knows none."""

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from rolloutgen.errors import RolloutgenError
from rolloutgen.gateway.ledger import Call, Ledger
from rolloutgen.gateway.pulse import Pulse
from rolloutgen.gateway.report import Report
from rolloutgen.transcript.recorder import Recorder

_REMEMBERED: Final = 16_384
"""Reports of attempts that have ended: for a driver that asks again since the first answer was lost."""
_END_SEC: Final = 10.0
"""Calls that are cancelled must have ended after so long; their records are missing otherwise."""


class KeyDeadError(RolloutgenError):
    """The attempt ended while a call was on its way in: as if the key had never been known (401)."""


class AttemptState:
    """One attempt: its transcript, and the clock and fate of its calls."""

    def __init__(
        self, label: str, recorder: Recorder, ledger: Ledger, *, uses_tools: bool, max_turns: int | None
    ) -> None:
        self.id: Final = secrets.token_hex(8)
        self.label: Final = label
        self.recorder: Final = recorder
        self.ledger: Final = ledger
        self.uses_tools: Final = uses_tools
        self.max_turns: Final = max_turns
        self._alive = True
        self._tasks: WeakKeyDictionary[Call, asyncio.Task[Any]] = WeakKeyDictionary()

    def begin(self, *, side: bool, tools: bool) -> Call:
        """A call of this attempt, in the task that handles it: that is cancelled when the key dies.

        Raises KeyDeadError.
        """
        if not self._alive:
            raise KeyDeadError(f"{self.label} has ended")
        call = self.ledger.begin(side=side, tools=tools)
        task = asyncio.current_task()
        assert task is not None
        self._tasks[call] = task
        return call

    def turns_left(self) -> bool:
        """Whether one more turn may begin (asked before ``begin``)."""
        return self.max_turns is None or self.ledger.turns_begun < self.max_turns

    def report(self) -> Report:
        return self.ledger.report()

    async def end(self, ending: Mapping[str, Any]) -> Report:
        """Cancel what is in flight, wait for its records, close the transcript. Raises OSError where that fails."""
        self._alive = False
        tasks = {self._tasks[call] for call in self.ledger.in_flight}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SEC)
        for call in list(self.ledger.in_flight):
            call.aborted()
        await asyncio.to_thread(self.recorder.close, ending)  # the disk may take its time, and streams run here
        return self.report()


class Attempts:
    """All attempts of this gateway."""

    def __init__(self, pulse: Pulse, *, context_len: int, token_ids: bool, logprobs: bool) -> None:
        """``context_len``: VLLM_MAX_MODEL_LEN; the others: what transcripts hold of tokens."""
        self._pulse = pulse
        self._context_len = context_len
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._by_key: dict[bytes, AttemptState] = {}
        self._by_id: dict[str, tuple[bytes, AttemptState]] = {}
        self._ends: OrderedDict[str, asyncio.Task[Report]] = OrderedDict()

    def __iter__(self) -> Iterator[AttemptState]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def register(
        self, transcript: Path, *, label: str, start: Mapping[str, Any], uses_tools: bool, max_turns: int | None
    ) -> tuple[str, str]:
        """(id, key) of a new attempt. Creates ``transcript``. Raises OSError where that cannot be done, or exists."""
        recorder = Recorder(transcript, start=start, token_ids=self._token_ids, logprobs=self._logprobs)
        ledger = Ledger(self._pulse, self._context_len)
        state = AttemptState(label, recorder, ledger, uses_tools=uses_tools, max_turns=max_turns)
        key = f"rg-{secrets.token_hex(24)}"
        digest = _digest(key)
        self._by_key[digest] = state
        self._by_id[state.id] = digest, state
        return state.id, key

    def find(self, key: str) -> AttemptState | None:
        """Whose key it is. The look-up is by a hash, so that its time tells nothing about live keys."""
        return self._by_key.get(_digest(key))

    def report(self, attempt_id: str) -> Report | None:
        """As of now; of an attempt that has ended: its last. None for an id that is not known. Raises OSError."""
        if attempt_id in self._by_id:
            return self._by_id[attempt_id][1].report()
        end = self._ends.get(attempt_id)
        return end.result() if end is not None and end.done() else None

    async def close(self, attempt_id: str, ending: Mapping[str, Any]) -> Report | None:
        """The key dies at once; returns when the transcript is closed. Idempotent. None for an id that is not known."""
        if attempt_id not in self._ends:
            known = self._by_id.get(attempt_id)
            if known is None:
                return None
            digest, state = known
            del self._by_key[digest]
            self._ends[attempt_id] = asyncio.create_task(self._end(attempt_id, state, ending))
            while len(self._ends) > _REMEMBERED:
                self._ends.popitem(last=False)
        return await asyncio.shield(self._ends[attempt_id])

    async def close_all(self, ending: Mapping[str, Any]) -> None:
        """At the gateway's own end; what a disk refuses then is lost, as with a kill."""
        ends = [self.close(attempt_id, ending) for attempt_id in list(self._by_id)]
        await asyncio.gather(*ends, return_exceptions=True)

    async def _end(self, attempt_id: str, state: AttemptState, ending: Mapping[str, Any]) -> Report:
        try:
            return await state.end(ending)
        finally:
            del self._by_id[attempt_id]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
