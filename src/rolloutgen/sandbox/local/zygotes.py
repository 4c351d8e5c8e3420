"""The driver's handle of its zygote process: start it, ask it for sandboxes, hear of their ends."""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from rolloutgen.errors import SandboxError
from rolloutgen.outcomes import Cause
from rolloutgen.sandbox.local import wire
from rolloutgen.sandbox.local.channel import Channel

_SOURCES: Final = Path(__file__).resolve().parents[3]
_MAIN: Final = "import sys; sys.path.insert(0, sys.argv[1]); from rolloutgen.sandbox.local import zygote; "
_START_SEC: Final = 30.0
_CLOSE_SEC: Final = 5.0


def _loader_path() -> dict[str, str]:
    """All that the zygote gets of our environment: a Python may find its own library by it alone."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


class Zygote:
    """A running zygote. ``user_namespace``: it is root of one, because the driver has no CAP_SYS_ADMIN."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.user_namespace = False
        self._process = process
        self._channel: Channel | None = None
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[str] = self._loop.create_future()
        self._ends: dict[int, asyncio.Future[int]] = {}

    @classmethod
    async def launch(cls) -> Self:
        """Start one. Raises SandboxError with what the machine lacks."""
        ours, theirs = wire.pair()
        with theirs:
            code = f"{_MAIN}zygote.main({theirs.fileno()}, {os.getpid()})"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", code, str(_SOURCES)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_loader_path(),
                cwd="/",
                start_new_session=True,
            )
        zygote = cls(process)
        zygote._channel = Channel(ours, zygote._on_message, "the process that starts sandboxes")
        try:
            await zygote._wait_for(zygote._ready, _START_SEC)
        except BaseException:
            await zygote.close()
            raise
        error = "the helper process did not start; stderr may say why"
        if zygote._ready.done():
            missing = zygote._ready.result()
            error = f"this machine does not let us make namespaces: {missing}" if missing else ""
        if error:
            await zygote.close()
            raise SandboxError(error, Cause.SANDBOX_START)
        return zygote

    @property
    def alive(self) -> bool:
        return self._channel is not None and not self._channel.closed.is_set()

    async def start(self, request: Mapping[str, object], descriptor: int) -> None:
        assert self._channel is not None
        await self._channel.send(request, [descriptor])

    async def kill(self, pid: int) -> None:
        with suppress(SandboxError):
            if self._channel is not None:
                await self._channel.send({"op": "kill", "pid": pid})

    async def ended(self, pid: int, timeout_sec: float) -> int | None:
        """Wait for the end of the init ``pid``: its exit code (-n: signal n); None: not heard of in time."""
        end = self._ends.setdefault(pid, self._loop.create_future())
        await self._wait_for(end, timeout_sec)
        return end.result() if end.done() else None

    def forget(self, pid: int) -> None:
        self._ends.pop(pid, None)

    async def close(self) -> None:
        """End it; all its sandboxes die. Idempotent."""
        if self._channel is not None:
            self._channel.close()
        try:
            async with asyncio.timeout(_CLOSE_SEC):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _on_message(self, message: wire.Message) -> None:
        if message["op"] == "ready":
            self.user_namespace = message["user_namespace"]
            if not self._ready.done():
                self._ready.set_result(message["error"])
        elif message["op"] == "ended":
            end = self._ends.setdefault(message["pid"], self._loop.create_future())
            if not end.done():
                end.set_result(message["status"])

    async def _wait_for(self, future: "asyncio.Future[Any]", timeout_sec: float) -> None:
        """Until ``future`` is done, the zygote is gone, or the time is over."""
        if self._channel is None or self._channel.closed.is_set():
            return
        gone = asyncio.ensure_future(self._channel.closed.wait())
        try:
            await asyncio.wait({future, gone}, timeout=timeout_sec, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
