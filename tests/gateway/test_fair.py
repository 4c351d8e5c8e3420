"""Places at the server."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from rolloutgen.gateway.fair import Places


class Crowd:
    """Calls that take a place, note it, and leave when they are told."""

    def __init__(self, limit: int) -> None:
        self.places = Places(limit)
        self.served: list[str] = []
        self.waited: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, *names: str) -> None:
        for name in names:
            self._leave[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name))
        await settle()

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self._tasks[name]
        await settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await settle()

    async def _call(self, name: str) -> None:
        async with self.places.one(name[0], lambda: self.waited.append(name)):
            self.served.append(name)
            await self._leave[name].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_places_are_handed_out_by_turns_between_attempts() -> None:
    """A crowd of one attempt's calls delays another one's first call by no more than a single call does."""
    crowd = Crowd(1)
    await crowd.come("a1", "a2", "a3", "b1", "c1", "b2")
    for name in ("a1", "a2", "b1", "c1", "a3", "b2"):
        assert crowd.served[-1] == name
        await crowd.leave(name)
    assert crowd.waited == ["a2", "a3", "b1", "c1", "b2"]
    assert (crowd.places.taken, crowd.places.waiting) == (0, 0)


async def test_no_more_than_the_limit_and_that_many() -> None:
    crowd = Crowd(3)
    await crowd.come("a1", "a2", "b1", "b2", "c1")
    assert crowd.served == ["a1", "a2", "b1"]
    assert (crowd.places.taken, crowd.places.waiting) == (3, 2)
    await crowd.leave("a2")
    assert crowd.served[3:] == ["b2"]


async def test_one_that_is_cancelled_leaves_no_hole() -> None:
    """Neither a place that nobody has, nor one that two have: also where the place came in the same moment."""
    crowd = Crowd(1)
    await crowd.come("a1", "b1", "b2", "c1")
    await crowd.cancel("b1")
    assert crowd.places.waiting == 2
    crowd._leave["a1"].set()
    await asyncio.sleep(0)
    await crowd.cancel("b2", "a1")
    assert crowd.served == ["a1", "c1"]
    await crowd.leave("c1")
    assert (crowd.places.taken, crowd.places.waiting) == (0, 0)


async def test_a_newcomer_does_not_overtake() -> None:
    places, order = Places(1), []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(places.one("a", _nothing))

        async def call(name: str) -> None:
            async with places.one(name, _nothing):
                order.append(name)

        waiting = asyncio.create_task(call("b"))
        await settle()
    await call("c")
    await waiting
    assert order == ["b", "c"]


def _nothing(*_: Any) -> None: ...
