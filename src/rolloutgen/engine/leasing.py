"""The model's end of an attempt: a key of the gateway for as long as the agent runs, and what the gateway says then."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rolloutgen.engine.record import Record
from rolloutgen.gateway.client import Gateway, Lease
from rolloutgen.paths import TRANSCRIPT
from rolloutgen.scaffold import TOOL_USERS
from rolloutgen.settings import Settings
from rolloutgen.shielding import uninterrupted


@asynccontextmanager
async def leased(gateway: Gateway, settings: Settings, record: Record, version: str) -> AsyncIterator[Lease]:
    """The agent may speak with the model inside; afterwards its key is dead, its transcript closed, ``model`` known.

    MAX_TURNS is the gateway's to hold where calls carry tools, and the scaffold's own elsewhere. ``version`` is the
    scaffold's. Raises InferenceError where there is no gateway.
    """
    tools = settings.scaffold in TOOL_USERS
    lease = await gateway.lease(
        transcript=record.attempt.folder / TRANSCRIPT,
        label="/".join(record.attempt.folder.parts[-2:]),
        start=_start(record, settings.scaffold, version),
        uses_tools=tools,
        max_turns=settings.policy.max_turns if tools else None,
    )
    record.endpoint = lease.endpoint
    try:
        yield lease
    except Exception as error:
        record.fail(error)  # the transcript's last line names it
        raise
    finally:
        record.endpoint = None
        record.model = await uninterrupted(lease.close(record.ending()))


def _start(record: Record, scaffold: str, version: str) -> dict[str, Any]:
    trial = record.attempt.trial
    return {
        "scaffold": scaffold,
        "scaffold_version": version,
        "instance_id": trial.instance.instance_id,
        "trial": trial.number,
        "attempt": record.attempt.number,
    }
