"""Keep one model server up: started, and started again when it died or is asked for anew, within VLLM_RESTARTS."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from rolloutgen.paths import LogPaths, default_exp
from rolloutgen.processes import Process
from rolloutgen.serving.command import HOST, command_line, environment, fresh_seed
from rolloutgen.serving.first import first
from rolloutgen.serving.hardware import gpus_seen
from rolloutgen.serving.ports import free_port, is_free, owner
from rolloutgen.serving.probe import Probe
from rolloutgen.serving.record import ServerRecord
from rolloutgen.serving.restart import Restarts, take_request
from rolloutgen.serving.server import Server, ServerFailedError
from rolloutgen.settings import Settings

_POLL_SEC: Final = 0.5
_PAUSE_SEC: Final = 5.0
"""Before a restart that follows one that failed, and so much longer each time: memory of GPUs is not free at once."""


class Keeper:
    """The server of one launch. ``key`` is what it asks for; server.json in ``launch`` is kept true."""

    def __init__(self, settings: Settings, launch: Path, key: str) -> None:
        self._settings = settings
        self._launch = launch
        self._key = key
        self._restarts = Restarts(settings.vllm_restarts)
        self._port: int | None = None
        exp = settings.exp_name or default_exp(settings.project_name, settings.results_dir)
        record = ServerRecord("starting", Process.me(), settings.served_model_name)
        self._server = Server(launch, LogPaths(launch.parent.parent, exp).server_log, record)

    async def keep(self) -> NoReturn:
        """Serve until cancelled. Raises ServerFailedError: it did not come up at all, or may not be restarted again."""
        await self._come_up()
        while True:
            trouble = await self._trouble()
            began = asyncio.get_running_loop().time()
            await self._restart(trouble)
            _say(f"the model server is ready again after {asyncio.get_running_loop().time() - began:.0f} s")

    def fail(self, error: ServerFailedError) -> None:
        """Write the state ``failed``."""
        self._server.note(state="failed", base_url="", message=str(error), evidence=error.evidence)

    async def stop(self, hurry: asyncio.Event) -> None:
        """End all of it, in any phase; at once where ``hurry`` is set."""
        await self._server.stop(hurry)

    async def _come_up(self) -> None:
        """Start a server and wait until it is ready."""
        settings, gpus, seed = self._settings, gpus_seen(), fresh_seed()
        self._port = _choose_port(settings, self._port)
        probe = Probe(f"http://{HOST}:{self._port}", settings.served_model_name, self._key)
        command = command_line(settings, self._port, gpus, seed)
        variables = environment(settings, gpus, key=self._key, launch_id=self._launch.name)
        await self._server.start(command, variables, probe, seed)
        await self._server.wait_ready(settings.policy.server_start_timeout_sec)

    async def _trouble(self) -> ServerFailedError:
        """Wait until the server has to be replaced; returns why."""
        try:
            await first(self._server.ended(), self._server.engine_died(), self._asked())
        except ServerFailedError as error:
            return error
        raise AssertionError  # each of them ends by raising

    async def _asked(self) -> NoReturn:
        while (why := take_request(self._launch, self._server.record.vllm)) is None:  # noqa: ASYNC110  # a file
            await asyncio.sleep(_POLL_SEC)
        raise ServerFailedError(why)

    async def _restart(self, trouble: ServerFailedError) -> None:
        """Until one is ready again; each try counts."""
        failed = 0
        while True:
            self._count(trouble)
            try:
                await self._end_old()
                await asyncio.sleep(failed * _PAUSE_SEC)
                await self._come_up()
            except ServerFailedError as error:
                trouble = error
                failed += 1
            else:
                return

    def _count(self, trouble: ServerFailedError) -> None:
        limit, number = self._restarts.limit, self._restarts.take()
        if number is None:
            raise ServerFailedError(f"{trouble}; {_used_up(limit)}", trouble.evidence)
        total = self._server.record.restarts + 1
        self._server.note(
            state="restarting", base_url="", message=str(trouble), evidence=trouble.evidence, restarts=total
        )
        _say(f"the model server is restarted ({number} of VLLM_RESTARTS={limit} this hour): {trouble}")

    async def _end_old(self) -> None:
        left = await self._server.stop()
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise ServerFailedError(f"process {pids} of the model server cannot be ended")


def _used_up(limit: int) -> str:
    if limit == 0:
        return "VLLM_RESTARTS=0 allows no restart"
    return (
        f"it was restarted {limit} times within an hour, which is all that VLLM_RESTARTS={limit} allows: "
        "mend what its log shows, or raise VLLM_RESTARTS"
    )


def _choose_port(settings: Settings, before: int | None) -> int:
    """VLLM_PORT where it is set, else the one that it had ``before`` if that is free, else any."""
    port = settings.vllm_port
    if port is None:
        return before if before is not None and is_free(before) else free_port()
    if not is_free(port):
        who = owner(port) or "a process that cannot be seen from here"
        raise ServerFailedError(f"VLLM_PORT={port} is in use by {who}; unset VLLM_PORT, or name a free port")
    return port


def _say(text: str) -> None:
    """Into the run's log, where the launcher sends this process's output; a full disk must not end the server."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        sys.stdout.write(f"{stamp} {text}\n")
        sys.stdout.flush()
    except OSError:
        return
