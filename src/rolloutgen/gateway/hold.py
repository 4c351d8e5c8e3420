"""Calls wait while the model server is down, restarts or fails, and are sent again: within GATEWAY_HOLD_SEC."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from rolloutgen.backoff import growing
from rolloutgen.gateway.errors import BadRequestError
from rolloutgen.gateway.failures import RefusedError, TryFailedError
from rolloutgen.gateway.ledger import Call
from rolloutgen.gateway.server import ServerState

FIRST_WAIT_SEC: Final = 0.5
_WAIT_MAX_SEC: Final = 20.0
POISON_TRIES: Final = 10
"""So many tries in a row that the server failed (5xx) while it gave others their tokens: the request is what fails."""
_ERROR, _BUSY = 500, 503
_ASKED_MAX_SEC: Final = 60.0


class GivenUpError(Exception):
    """The call has failed for our reasons. ``down``: that hits all alike."""

    def __init__(self, why: str, *, down: bool) -> None:
        self.down = down
        super().__init__(why)


class Hold:
    """The waits of one call. The time is up ``hold_sec`` after its first trouble; a try that runs then may end."""

    def __init__(self, server: ServerState, call: Call, hold_sec: float, first_wait_sec: float) -> None:
        self._server = server
        self._call = call
        self._hold_sec = hold_sec
        self._first_wait_sec = first_wait_sec
        self._deadline = math.inf
        self._step = 0
        self._why = ""
        self._down = False
        self._failed_at = math.inf
        self._alone = 0

    @property
    def awaits(self) -> bool:
        """Whether the server is known to be away: a try would be in vain."""
        return not self._server.ready

    def failed(self, failure: TryFailedError) -> None:
        """Note a try that failed for our reasons."""
        down = failure.down or not self._server.ready
        self._call.try_failed(str(failure), down=down)
        self._trouble(str(failure), down=down)
        own = failure.status is not None and failure.status >= _ERROR and failure.status != _BUSY and not down
        others_live = self._call.pulse.last > self._failed_at
        self._alone = self._alone + others_live if own else 0
        self._failed_at = self._call.pulse.clock()

    async def pause(self, asked_sec: float = 0.0) -> None:
        """Wait before the next try: ever longer, ``asked_sec`` at least. Raises GivenUpError."""
        wait_sec = max(growing(self._first_wait_sec, _WAIT_MAX_SEC, self._step), min(asked_sec, _ASKED_MAX_SEC))
        self._step += 1
        until = min(time.monotonic() + wait_sec, self._deadline)
        while self._server.ready and (left_sec := until - time.monotonic()) > 0:
            self._check()
            await self._server.changed(left_sec)
        await self.until_ready()

    async def until_ready(self) -> None:
        """Return when the server serves. Raises GivenUpError."""
        while not self._server.ready:
            if not self._server.gone:
                why = f"the model server is {self._server.state}"
                self._call.held(why, down=True)
                self._trouble(why, down=True)
            self._check()
            await self._server.changed(self._deadline - time.monotonic())
        self._check()

    def _trouble(self, why: str, *, down: bool) -> None:
        self._why, self._down = why, down
        self._deadline = min(self._deadline, time.monotonic() + self._hold_sec)

    def _check(self) -> None:
        if self._server.gone:
            raise GivenUpError(f"the model server is gone for good: {self._server.gone}", down=True)
        if self._alone >= POISON_TRIES:
            raise GivenUpError(f"{self._why} (again and again, while the server answers others)", down=False)
        if time.monotonic() > self._deadline:
            raise GivenUpError(f"{self._why} (held for GATEWAY_HOLD_SEC={self._hold_sec:g} s)", down=self._down)


async def held[T](hold: Hold, call: Call, ask: Callable[[], Awaitable[T]]) -> T:
    """A short question beside the agent's calls waits for the server as they do. ``call`` has ended on return.

    Raises GivenUpError, and what ``ask`` raises but for TryFailedError.
    """
    try:
        while True:
            await hold.until_ready()
            call.trying()
            try:
                answer = await ask()
            except TryFailedError as failure:
                hold.failed(failure)
                await hold.pause(failure.retry_after_sec)
            else:
                call.told()
                return answer
    except (RefusedError, BadRequestError):
        call.refused()
        raise
    except GivenUpError as error:
        call.failed(str(error), down=error.down)
        raise
    finally:
        call.aborted()  # where it has ended already this says nothing
