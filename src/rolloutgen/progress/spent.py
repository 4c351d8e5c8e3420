"""Where the time of attempts went: in the model, waiting for it, in the sandbox, in the verifier.

Of attempts that have ended, but for those that the model server's faults ended, in seconds. The shares tell what a run
waits for: more GPUs help against ``model`` and ``waits``, more cores against the rest.
"""

from collections.abc import Mapping
from typing import Final

from rolloutgen.models import Times

KINDS: Final[Mapping[str, str]] = {
    "model": "in the model",
    "waits": "waiting for the model",
    "sandbox": "in the sandbox",
    "verifier": "in the verifier",
    "start": "starting the sandbox",
}
"""Kind -> how people read it. ``sandbox`` is the agent's time without the model: its commands, and the agent itself."""


def spent(times: Times) -> dict[str, float]:
    """The seconds of one attempt by kind; those of the model are left out where none was asked."""
    agent, found = times.agent_sec or 0.0, {}
    if times.model_sec is not None:
        found = {"model": times.model_sec, "waits": (times.held_sec or 0.0) + (times.queued_sec or 0.0)}
        agent = max(0.0, agent - sum(found.values()))
    return {**found, "sandbox": agent, "verifier": times.verifier_sec or 0.0, "start": times.sandbox_sec or 0.0}


def shares_line(total: Mapping[str, float]) -> str:
    """``of the attempts' time: 62 % in the model, ...``; empty where there was none. Largest first."""
    whole = sum(total.values())
    if whole <= 0:
        return ""
    parts = sorted(total.items(), key=lambda part: -part[1])
    return "of the attempts' time: " + ", ".join(f"{sec / whole:.0%} {KINDS[kind]}" for kind, sec in parts)
