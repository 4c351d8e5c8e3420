"""Work that must come to its end however often the one who waits for it is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def uninterrupted[T](work: asyncio.Future[T] | Coroutine[Any, Any, T]) -> T:
    """Wait for ``work`` to its end even when cancelled meanwhile; the cancellation follows then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
