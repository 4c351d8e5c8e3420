"""The agent's time: it runs until it ends, until its limit is reached, or until its model is gone for good.

The limit is of time that the agent had: waits for a model server that was down, and for a place at it, do not count, up
to an end that keeps every attempt finite: an agent may itself ask what the server fails at, again and again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from rolloutgen.errors import InferenceError
from rolloutgen.gateway.report import Report
from rolloutgen.shielding import uninterrupted

_LOOK_SEC: Final = 0.2
"""While the agent waits for the model its deadline moves with the clock: it is looked at again no sooner than this."""

WAITS_MAX_SEC: Final = 12 * 3600.0
"""All waits of an attempt that its limit is moved by; more is as if the server had been away."""


class Model(Protocol):
    """What is known of the agent's model (a ``Lease``)."""

    async def report(self) -> Report:
        """Its calls so far."""

    async def lost(self) -> InferenceError:
        """Returns when it will never answer again."""


class TimeUpError(TimeoutError):
    """The limit is reached. ``lost_sec`` of it went to a server that did not answer."""

    def __init__(self, limit_sec: float, report: Report) -> None:
        """``report`` is of that moment, with the agent still running."""
        self.lost_sec = report.suspect_sec + max(0.0, report.waited_sec - WAITS_MAX_SEC)
        super().__init__(f"Agent execution timed out after {limit_sec} seconds")


async def attend(
    agent: Coroutine[Any, Any, None],
    model: Model,
    limit_sec: float | None,
    note: Callable[[InferenceError], None],
) -> None:
    """Run ``agent`` to one of its three ends; it has ended on return, also where the caller is cancelled.

    Raises what it raised, TimeUpError, or what ``model.lost`` returned; ``note`` gets that before the agent is ended.
    """
    work, gone = asyncio.ensure_future(agent), asyncio.create_task(model.lost())
    try:
        await _until_an_end(work, gone, model, limit_sec)
        if not work.done():
            note(gone.result())
            raise gone.result()
        work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await uninterrupted(asyncio.gather(gone, return_exceptions=True))
        await uninterrupted(asyncio.wait({work}))
        if not work.cancelled():
            work.result()  # what it raised on its way out says more than that it had to go


async def _until_an_end(
    work: "asyncio.Future[None]", gone: "asyncio.Task[InferenceError]", model: Model, limit_sec: float | None
) -> None:
    """Returns when the agent or its model is gone. Raises TimeUpError."""
    now = asyncio.get_running_loop().time
    began, left = now(), limit_sec
    ends: set[asyncio.Future[Any]] = {work, gone}
    while not (await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED))[0]:
        assert limit_sec is not None
        report = await model.report()
        left = began + limit_sec + min(report.waited_sec, WAITS_MAX_SEC) - now()
        if left <= 0 and not work.done():
            raise TimeUpError(limit_sec, report)
        left = max(left, _LOOK_SEC)
