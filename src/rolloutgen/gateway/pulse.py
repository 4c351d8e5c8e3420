"""The model server's signs of life: one object, shared by calls (they see tokens) and the watch (it looks for some).

Times are seconds of one monotonic clock.
"""

import time
from collections.abc import Callable


class Pulse:
    """``last`` is when the server last showed that it lives, ``suspected`` that the watch doubts it since then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.last = clock()
        self.suspected = False

    def beat(self) -> None:
        """The server gave a token, or its counters moved."""
        self.last = self.clock()
        self.suspected = False

    def silent_sec(self, since: float) -> float:
        """How long one who waits since ``since`` saw no sign of life; 0 where nobody doubts the server."""
        return max(0.0, self.clock() - max(since, self.last)) if self.suspected else 0.0
