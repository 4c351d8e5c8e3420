"""From the record of an attempt to its Outcome: the decision, the times, and the evidence in plain JSON types (C14)."""

import dataclasses
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rolloutgen.engine.decide import decide
from rolloutgen.engine.evidence import Phase
from rolloutgen.engine.record import Record
from rolloutgen.models import Outcome, Times
from rolloutgen.sandbox.base import ExecResult, SandboxReport

_TEXT_MAX: Final = 4000
_NOTHING: Final = SandboxReport()


class Clock:
    """When the attempt began; durations by the monotonic clock, so that a set clock does not change them."""

    def __init__(self) -> None:
        self._began = datetime.now(UTC)
        self._mark = time.monotonic()

    def times(self, record: Record) -> Times:
        record.enter(record.phase)
        model = record.model
        ended = self._began + timedelta(seconds=time.monotonic() - self._mark)
        return Times(
            started_at=self._began.isoformat(timespec="milliseconds"),
            finished_at=ended.isoformat(timespec="milliseconds"),
            sandbox_sec=_rounded(record.seconds.get(Phase.START)),
            agent_sec=_rounded(record.seconds.get(Phase.AGENT)),
            verifier_sec=_rounded(record.seconds.get(Phase.VERIFY)),
            lost_sec=round(record.lost_inference_sec + sum(r.lost_sec for r in record.reports.values()), 3),
            model_sec=_rounded(model.model_sec if model else None),
            held_sec=_rounded(model.held_sec if model else None),
            queued_sec=_rounded(model.queued_sec if model else None),
        )


def build_outcome(record: Record, clock: Clock, task_digest: str, pass_threshold: float) -> Outcome:
    """The end of ``record``, judged."""
    evidence = record.evidence()
    decision = decide(evidence, pass_threshold)
    return Outcome(
        result=decision.result,
        times=clock.times(record),
        task_digest=task_digest,
        reward=decision.reward,
        rewards=dict(decision.rewards),
        cause=decision.cause,
        message=decision.message[:_TEXT_MAX],
        flags=decision.flags,
        turns=record.turns,
        details=_details(record),
    )


def _details(record: Record) -> dict[str, Any]:
    """What a person needs to see why; nothing where there is nothing to say."""
    details: dict[str, Any] = {}
    if record.state.ending:
        details["ending"] = record.state.ending
    if record.model is not None:
        details["model"] = {name: value for name, value in record.model.to_json().items() if value}
    if record.failures:
        details["failures"] = [plain(dataclasses.asdict(failure)) for failure in record.failures]
    reports = [plain(dataclasses.asdict(report)) for report in record.reports.values() if report != _NOTHING]
    if reports:
        details["sandboxes"] = reports
    if record.verifier_exec is not None and record.verifier_exec.exit_status != 0:
        details["verifier"] = _tail(record.verifier_exec)
    return details


def _tail(result: ExecResult) -> dict[str, Any]:
    output = (result.stdout + result.stderr)[-_TEXT_MAX:].decode(errors="replace")
    return {"exit_status": result.exit_status, "output": output}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def plain(value: Any) -> Any:
    """``value`` in JSON types alone: what is none of them becomes text."""
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)
