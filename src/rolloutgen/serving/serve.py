"""vLLM's parent: the process that starts the server, says how it is, and ends it in every case."""

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolloutgen.paths import LogPaths, default_exp
from rolloutgen.processes import Process, gone
from rolloutgen.serving.command import HOST, command_line, environment, fresh_seed
from rolloutgen.serving.hardware import gpus_seen
from rolloutgen.serving.ports import free_port, is_free, owner
from rolloutgen.serving.probe import Probe
from rolloutgen.serving.record import ServerRecord
from rolloutgen.serving.server import Server, ServerFailedError
from rolloutgen.settings import Settings


async def serve(settings: Settings, launch: Path, launcher_pid: int, key: str) -> int:
    """Serve until TERM, INT or the launcher's death (0), or until the server fails (1; server.json says why).

    ``launch`` is the launch's folder (logs/.launches/<launch_id>), where server.json is kept; ``key`` the random key
    that the server asks for. Nothing of the server is left on return.
    """
    stop, hurry = _stop_on_signals()
    launcher = Process.of(launcher_pid)
    record = ServerRecord("starting", Process.me(), settings.served_model_name, seed=fresh_seed())
    record.write(launch)
    try:
        server = _server(settings, launch, key, record)
    except ServerFailedError as error:
        replace(record, state="failed", message=str(error)).write(launch)
        return 1
    try:
        await _first(stop.wait(), _end_of(launcher), _run(server, settings.policy.server_start_timeout_sec))
    except ServerFailedError as error:
        server.fail(error)
        return 1
    finally:
        await server.stop(hurry)
    return 0


def _server(settings: Settings, launch: Path, key: str, record: ServerRecord) -> Server:
    port, gpus = _port(settings), gpus_seen()
    exp = settings.exp_name or default_exp(settings.project_name, settings.results_dir)
    return Server(
        command=command_line(settings, port, gpus, record.seed),
        environment=environment(settings, gpus, key=key, launch_id=launch.name),
        launch=launch,
        log=LogPaths(launch.parent.parent, exp).server_log,
        probe=Probe(f"http://{HOST}:{port}", settings.served_model_name, key),
        record=record,
    )


def _port(settings: Settings) -> int:
    port = settings.vllm_port
    if port is None:
        return free_port()
    if not is_free(port):
        who = owner(port) or "a process that cannot be seen from here"
        raise ServerFailedError(f"VLLM_PORT={port} is in use by {who}; unset VLLM_PORT, or name a free port")
    return port


async def _run(server: Server, timeout_sec: float) -> None:
    await server.start()
    await server.wait_ready(timeout_sec)
    await server.ended()


async def _end_of(launcher: Process | None) -> None:
    if launcher is not None:
        await gone(launcher)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these to end, and raise what it raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _stop_on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """(stop, hurry): the first TERM or INT sets the one, the second the other as well."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, on_signal)
    return stop, hurry
