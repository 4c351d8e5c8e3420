"""Wait for the first of several things."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these to end, and raise what it raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
