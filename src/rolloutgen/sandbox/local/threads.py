"""Blocking work in a thread of its own: no pool whose size would cap how many run at once."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


async def in_thread[T](work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run ``work`` in a new thread. On cancellation ``interrupt`` is called, which must make it end soon; then it is
    awaited.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]  # without an error the result is a T
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as failure:  # noqa: BLE001  (handed to the one that waits)
            error = failure
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="sandbox-copy", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        interrupt()
        with suppress(Exception):
            await asyncio.shield(done)
        raise
