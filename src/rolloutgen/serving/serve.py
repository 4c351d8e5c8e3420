"""vLLM's parent: the process that starts the server, keeps it up, says how it is, and ends it in every case."""

import asyncio
import signal
from pathlib import Path

from rolloutgen.processes import Process, gone
from rolloutgen.serving.first import first
from rolloutgen.serving.keeper import Keeper
from rolloutgen.serving.server import ServerFailedError
from rolloutgen.settings import Settings


async def serve(settings: Settings, launch: Path, launcher_pid: int, key: str) -> int:
    """Serve until TERM, INT or the launcher's death (0), or until the server fails for good (1; server.json says why).

    ``launch`` is the launch's folder (logs/.launches/<launch_id>), where server.json is kept; ``key`` the random key
    that the server asks for. Nothing of the server is left on return.
    """
    stop, hurry = _stop_on_signals()
    launcher = Process.of(launcher_pid)
    keeper = Keeper(settings, launch, key)
    try:
        await first(stop.wait(), _end_of(launcher), keeper.keep())
    except ServerFailedError as error:
        keeper.fail(error)
        return 1
    finally:
        await keeper.stop(hurry)
    return 0


async def _end_of(launcher: Process | None) -> None:
    if launcher is not None:
        await gone(launcher)


def _stop_on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """(stop, hurry): the first TERM or INT sets the one, the second the other as well."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, on_signal)
    return stop, hurry
