"""Read the output of a command on the event loop: never blocks the command, never keeps more than the limit."""

import asyncio
import os
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rolloutgen.sandbox.output import HeadTail

GRACE_SEC: Final = 0.25
"""How long output is awaited after the shell has ended: a background child may hold it open for ever."""

_CHUNK: Final = 1 << 16
_DRAIN_CHUNKS: Final = 32


class Stream:
    """One pipe. ``writer`` is the command's end (blocking); close it here once it has been sent."""

    def __init__(self, limit: int) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._kept = HeadTail(limit)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    async def finish(self, grace_sec: float = GRACE_SEC) -> tuple[bytes, bool]:
        """(what was kept, whether something was left out), after the stream's end or ``grace_sec``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_sec):
                await self._ended.wait()
        self._drain()
        self.close()
        return self._kept.value(), self._kept.truncated

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1

    def _read(self) -> bool:
        """Take one chunk; False when there is none now."""
        try:
            data = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._kept.add(data)
            return True
        self._loop.remove_reader(self._reader)
        self._ended.set()
        return False

    def _drain(self) -> None:
        """What is in the pipe now, and no more: a background child may write for ever."""
        for _ in range(_DRAIN_CHUNKS):
            if self._ended.is_set() or not self._read():
                return


class Streams:
    """stdout and stderr of one command, closed at the end of the block whatever happens."""

    def __init__(self, limit: int) -> None:
        self.out = Stream(limit)
        self.err = Stream(limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.out.close()
        self.err.close()

    @property
    def writers(self) -> tuple[int, int]:
        return self.out.writer, self.err.writer

    def close_writers(self) -> None:
        self.out.close_writer()
        self.err.close_writer()
