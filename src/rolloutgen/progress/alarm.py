"""C7: a model server that leaves tool calls in the text is seen while the run goes on, not by its pass rate afterwards.

Its limits: it judges this launch's verdicts alone, from the eighth on, and only where the scaffold offers tools
through the API. A model that does not care for its tools raises it as well: transcripts tell which of both it is.
It speaks once.
"""

from collections.abc import Mapping
from typing import Any, Final

from rolloutgen.models import Outcome

ENOUGH: Final = 8
"""Verdicts of attempts that were offered tools; fewer say nothing."""
SHARE: Final = 0.5


class ToolAlarm:
    """Sees every outcome of a launch. ``parser`` is TOOL_CALL_PARSER (None: none is set)."""

    def __init__(self, parser: str | None) -> None:
        self._parser = parser
        self._n = self._n_mute = self._n_markup = 0
        self._raised = False

    def see(self, outcome: Outcome) -> str:
        """The alarm, at the outcome that raises it; else empty."""
        calls = outcome.details.get("model")
        if not (outcome.is_verdict and isinstance(calls, Mapping) and calls.get("tools_offered")):
            return ""
        self._n += 1
        self._n_mute += not _spoke(calls)
        self._n_markup += bool(calls.get("markup"))
        if self._raised or self._n < ENOUGH or self._n_mute <= SHARE * self._n:
            return ""
        self._raised = True
        return self._text()

    def _text(self) -> str:
        parser = f"TOOL_CALL_PARSER={self._parser}" if self._parser else "TOOL_CALL_PARSER is not set"
        return (
            f"WARN: {self._n_mute} of {self._n} attempts that were offered tools called none, or left calls in the "
            f"text ({self._n_markup} with markup there): verdicts may be of the parser, not of the model ({parser}); "
            "look at a transcript, and measure anew if the parser is wrong"
        )


def _spoke(calls: Mapping[str, Any]) -> bool:
    """Whether tool calls came through, more than were left in the text."""
    made, left = calls.get("tool_calls", 0), calls.get("markup", 0)
    return bool(made > left)
