"""The driver's end of a socket to the zygote or to an init: requests with numbered answers, on the event loop, no
thread.
"""

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rolloutgen.errors import SandboxError
from rolloutgen.sandbox.local import wire

_FULL_PAUSE_SEC: Final = 0.01


class Channel:
    """``on_message`` gets what is not an answer; ``closed`` is set once the other side is gone."""

    def __init__(self, end: socket.socket, on_message: Callable[[wire.Message], None], who: str) -> None:
        end.setblocking(False)
        self.closed = asyncio.Event()
        self._end = end
        self._on_message = on_message
        self._who = who
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[wire.Message]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read)

    async def send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        """Raises SandboxError where the other side is gone."""
        while not self.closed.is_set():
            try:
                wire.send(self._end, message, fds)
            except BlockingIOError:
                await asyncio.sleep(_FULL_PAUSE_SEC)
            except OSError:
                self.close()
            else:
                return
        raise SandboxError(f"{self._who} is gone")

    async def request(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> "Request":
        """Send ``message`` with a number of its own. The caller awaits ``Request.answer``."""
        number = next(self._numbers)
        answer: asyncio.Future[wire.Message] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            await self.send({**message, "id": number}, fds)
        except BaseException:
            self._waiting.pop(number, None)
            raise
        return Request(number, answer)

    def close(self) -> None:
        """Close this end; everyone who waits gets a SandboxError. Idempotent."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._loop.remove_reader(self._end)
        self._end.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxError(f"{self._who} is gone"))
                answer.exception()  # marked as seen: the one that waited may have been cancelled
        self._waiting.clear()

    def _read(self) -> None:
        try:
            received = wire.receive(self._end)
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            self.close()
        elif received[0]["op"] == "answer":
            self._settle(received[0])
        else:
            self._on_message(received[0])

    def _settle(self, message: wire.Message) -> None:
        answer = self._waiting.pop(message["id"], None)
        if answer is not None and not answer.done():
            answer.set_result(message)


class Request:
    """A request that was sent: its number, and the future of its answer."""

    def __init__(self, number: int, answer: asyncio.Future[wire.Message]) -> None:
        self.number = number
        self.answer = answer
