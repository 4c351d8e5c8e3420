"""Places at the model server: a bounded number of calls at one time, shared fairly between attempts.

A free place goes to the next attempt in turn, and there to the call that has waited longest: an attempt that asks for a
hundred things at once delays another one by no more than an attempt that asks for one.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager


class Places:
    """``limit`` places. Whoever waits is named by any hashable object: its attempt."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._turns: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Calls without a place."""
        return sum(map(len, self._turns.values()))

    @asynccontextmanager
    async def one(self, owner: Hashable, on_wait: Callable[[], None]) -> AsyncIterator[None]:
        """Hold a place inside; ``on_wait`` is called if there is none free at once."""
        if self.taken < self.limit and not self._turns:
            self.taken += 1
        else:
            on_wait()
            await self._wait(owner)
        try:
            yield
        finally:
            self.taken -= 1
            self._hand_out()

    async def _wait(self, owner: Hashable) -> None:
        """Returns with a place taken."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the place in the same moment
                self.taken -= 1
                self._hand_out()
            else:
                self._leave(owner, turn)
            raise

    def _hand_out(self) -> None:
        while self._turns and self.taken < self.limit:
            owner, calls = self._turns.popitem(last=False)
            call = calls.popleft()
            if calls:
                self._turns[owner] = calls  # behind all others
            self.taken += 1
            call.set_result(None)

    def _leave(self, owner: Hashable, turn: asyncio.Future[None]) -> None:
        calls = self._turns.get(owner, deque())
        if turn in calls:
            calls.remove(turn)
        if not calls:
            self._turns.pop(owner, None)
