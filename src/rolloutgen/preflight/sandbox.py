"""Checks of the sandboxes: a real one is started for the owed tasks' images, runs ``true``, and is removed."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from rolloutgen.backends import make_backend
from rolloutgen.errors import Finding
from rolloutgen.preflight.check import Check, Context, first_names, warn


async def _usable(context: Context) -> AsyncIterator[Finding]:
    assert context.tasks is not None
    if not context.tasks.images:
        return
    backend = make_backend(context.settings, context.launch_id)
    try:
        for finding in await backend.check(list(context.tasks.images)):
            yield finding
    finally:
        await backend.close()


def _network(context: Context) -> Iterator[Finding]:
    """A task that states a need for the network is named where SANDBOX_EGRESS gives it none."""
    facts = context.tasks
    assert facts is not None
    if context.settings.sandbox_egress != "open" and facts.n_needs_open:
        yield warn(
            "SANDBOX_EGRESS",
            f"is {context.settings.sandbox_egress}, but {facts.n_needs_open} owed tasks state that they need the "
            f"network: {first_names(facts.needs_open, facts.n_needs_open)}",
            "their trials may fail for want of it: set SANDBOX_EGRESS=open, or leave them out with INSTANCES_FILE",
        )


_KEYS: Final = (
    "BACKEND",
    "LOCAL_IMAGES",
    "SANDBOX_EGRESS",
    "SANDBOX_CPU",
    "SANDBOX_MEMORY_MB",
    "SANDBOX_START_TIMEOUT_SEC",
    "EXEC_OUTPUT_MAX_MB",
)

CHECKS: Final = (
    Check("BACKEND", _usable, _KEYS, plan=True, work=True),
    Check("SANDBOX_EGRESS", _network, ("SANDBOX_EGRESS",), plan=True, work=True),
)
