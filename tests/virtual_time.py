"""An event loop whose clock jumps over idle time: tests of hours run in milliseconds, always in the same order."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: what would have been waited for is added to ``jumped_sec``."""

    jumped_sec = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everything waits for ever")
        if not ready and timeout is not None:
            self.jumped_sec += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.jumped_sec


def run_virtual[T](main: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``, in virtual time; no threads, no sockets."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
