"""What the gateway knows of one attempt's model calls: the evidence that the driver asks for."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The calls of one attempt so far; side calls (titles, condensers, counts of tokens) are counted apart, and seconds
    are of all calls.

    ``turns`` counts answered calls of the agent itself. ``tools_offered``: one of those carried tools; ``tool_calls``
    counts those that the model made, ``markup`` answers with a tool call left in the text and none beside it.
    ``model_sec`` is time at the server, ``held_sec`` waits for a server that was down or failed (with every try that
    failed for our reasons, and the wait that goes on now), ``queued_sec`` waits for a free place at the server.
    ``suspect_sec`` is how long the call in flight has waited without any sign of life of the server (0: there was one).
    ``failure`` says how the agent's last call failed for our reasons (empty: it did not), ``server_down`` that
    this hits all alike. ``retried``: a try failed for our reasons, and the call or the agent went on.
    """

    turns: int = 0
    calls: int = 0
    side_calls: int = 0
    aborted: int = 0
    tools_offered: bool = False
    tool_calls: int = 0
    markup: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model_sec: float = 0.0
    held_sec: float = 0.0
    queued_sec: float = 0.0
    suspect_sec: float = 0.0
    failure: str = ""
    server_down: bool = False
    retried: bool = False
    context_exceeded: bool = False
    max_turns: bool = False

    @property
    def waited_sec(self) -> float:
        """Time that does not count against the agent's limit."""
        return self.held_sec + self.queued_sec

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Unknown fields are passed over, missing ones have their defaults (C13)."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in raw.items() if name in names})
