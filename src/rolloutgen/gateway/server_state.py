"""Follows server.json of the launch: what vLLM's parent says of the server becomes what the calls see of it."""

import asyncio
from pathlib import Path
from typing import Final

from rolloutgen.gateway.server import ServerState
from rolloutgen.processes import Process, gone
from rolloutgen.serving.record import FILE, ServerRecord

_POLL_SEC: Final = 0.25


class Follower:
    """Keeps ``server`` true. ``record`` is the last one read (None: none yet)."""

    def __init__(self, launch: Path, server: ServerState) -> None:
        self.record: ServerRecord | None = None
        self._launch = launch
        self._server = server
        self._seen: tuple[int, int] | None = None
        self._stuck: Process | None = None

    async def follow(self) -> None:
        """Until the server has failed for good, or its parent is dead (which then cannot say so any more)."""
        parent: asyncio.Task[None] | None = None
        try:
            while not self._server.gone:
                await self._look()
                if parent is None and self.record is not None:
                    parent = asyncio.create_task(gone(self.record.serve))
                if parent is not None and parent.done():
                    await self._orphaned()
                await asyncio.sleep(_POLL_SEC)
        finally:
            if parent is not None:
                parent.cancel()

    async def _orphaned(self) -> None:
        await self._look()
        if not self._server.gone:
            await self._server.update("failed", message="the process that keeps the model server is gone")

    async def doubt(self, vllm: Process) -> None:
        """``vllm`` is stuck, and its parent was told: calls wait until another one serves."""
        self._stuck = vllm
        await self._server.update("restarting")

    async def _look(self) -> None:
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        record = ServerRecord.read(self._launch)
        if record is None:
            return
        self._seen, self.record = stamp, record
        if record.state == "ready" and record.vllm is not None and record.vllm == self._stuck:
            return
        await self._server.update(record.state, base_url=record.base_url, seed=record.seed, message=record.message)

    def _stamp(self) -> tuple[int, int] | None:
        """What changes with every new server.json: it is written whole, as a new file."""
        try:
            stat = (self._launch / FILE).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns
