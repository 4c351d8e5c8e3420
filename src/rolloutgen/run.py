"""The driver: from a plan to verdicts, tables and the filtered index. The composition root of ``rolloutgen run``.

Signals: TERM, INT, and the launcher's death stop dispatch and cancel the attempts; each removes its sandbox before it
ends. A second signal leaves the tables for the next launch. A model server that is gone for good fails the run: no
further attempt starts, and those that need it end. The filtered index is written when every trial was tried, and only
then: after a failure or an interrupt an older file stays.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rolloutgen import launches
from rolloutgen.backends import make_backend
from rolloutgen.config import log_paths
from rolloutgen.ending import Ending, break_off, conclude
from rolloutgen.engine import Engine
from rolloutgen.errors import RunFailedError, StoreError
from rolloutgen.exits import Exit
from rolloutgen.gateway.client import Gateway
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.models import Outcome, Trial
from rolloutgen.paths import ResultsPaths
from rolloutgen.plan import Plan, make_plan
from rolloutgen.processes import Process, gone, raise_fd_limit
from rolloutgen.progress.alarm import ToolAlarm
from rolloutgen.progress.show import Lines, Progress, display_for, utc_now
from rolloutgen.progress.tally import Tally
from rolloutgen.results.fingerprint import read_run
from rolloutgen.results.store import Store
from rolloutgen.sandbox.base import SandboxBackend
from rolloutgen.scheduler import Scheduler
from rolloutgen.serving import MODEL_KEY
from rolloutgen.settings import Settings
from rolloutgen.shielding import uninterrupted

REASON: Final = "reason"

_STORE_THREADS: Final = 16
"""Threads that write results; a slot waits for its own write only."""


class Attempts:
    """What the scheduler is handed: one attempt from its folder to its stored outcome."""

    def __init__(self, engine: Engine, store: Store, executor: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._store = store
        self._executor = executor

    async def run(self, trial: Trial) -> Outcome:
        """A finished result is kept, even when the run is interrupted meanwhile; the slot is free after the write."""
        in_thread = asyncio.get_running_loop().run_in_executor
        attempt = await in_thread(self._executor, self._store.begin, trial)
        outcome = await self._engine.run_attempt(attempt)
        await uninterrupted(in_thread(self._executor, self._store.finish, attempt, outcome))
        return outcome


class Stop:
    """What ends a run from outside: a signal, or the launcher's death. The first one cancels, the second hurries."""

    def __init__(self) -> None:
        self.why: Exit | None = None
        self.hurry = False
        self._cancel: Callable[[], object] = lambda: None

    def watch(self, cancel: Callable[[], object]) -> None:
        """``cancel`` is called once, on the event loop."""
        self._cancel = cancel
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.request, Exit.TERMINATED)
        loop.add_signal_handler(signal.SIGINT, self.request, Exit.INTERRUPTED)

    def request(self, why: Exit) -> None:
        if self.why is not None:
            self.hurry = True
            return
        self.why = why
        self._cancel()


async def drive(plan: Plan, launch: Path, progress: Progress, stop: Stop) -> Ending:
    """Try every trial, then conclude; or break off. Everything that was started is ended on return."""
    work = asyncio.create_task(_try_all(plan, launch, progress))
    stop.watch(work.cancel)
    fresh = asyncio.create_task(progress.keep_fresh())
    try:
        await work
    except asyncio.CancelledError:
        return await _broken_off(plan, stop.why or Exit.TERMINATED, "interrupted; resumable", stop)
    except (RunFailedError, StoreError) as error:
        return await _broken_off(plan, Exit.FAILED, f"{error}; resumable", stop)
    finally:
        fresh.cancel()
        await asyncio.gather(fresh, return_exceptions=True)
        progress.last_state()
    return await asyncio.to_thread(conclude, plan, ran=True)


async def _broken_off(plan: Plan, exit_code: Exit, reason: str, stop: Stop) -> Ending:
    if stop.hurry:
        return Ending(exit_code, ("summary.csv was not written again",), reason)
    return await asyncio.to_thread(break_off, plan, exit_code, reason)


async def _try_all(plan: Plan, launch: Path, progress: Progress) -> None:
    settings, paths = plan.settings, ResultsPaths(plan.settings.results_dir)
    run = read_run(paths.run_json)
    assert run is not None
    backend = make_backend(settings, launch.name, plan.task_folders())
    gateway = Gateway(launch) if settings.uses_model else None
    with ThreadPoolExecutor(_STORE_THREADS, "store") as executor:
        engine = Engine(settings, backend, gateway)
        attempts = Attempts(engine, Store(paths, run.run_id), executor)
        scheduler = Scheduler(
            attempts.run,
            n_concurrent=settings.n_concurrent,
            attempts_per_trial=settings.attempts_per_trial,
            attempts_used=plan.attempts_used,
            stall_timeout_sec=settings.stall_timeout_sec,
            observer=progress,
        )
        try:
            await backend.open()
            async with _watched(gateway, scheduler):
                await scheduler.run_all(plan.to_try())
        finally:
            await uninterrupted(_close(engine, backend))


@asynccontextmanager
async def _watched(gateway: Gateway | None, scheduler: Scheduler) -> AsyncIterator[None]:
    """With the gateway open: when the model server is gone for good the run has failed, and the scheduler is told."""
    if gateway is None:
        yield
        return
    await gateway.open()
    watch = asyncio.create_task(_until_failed(gateway, scheduler))
    try:
        yield
    finally:
        watch.cancel()
        await uninterrupted(gateway.close())


async def _until_failed(gateway: Gateway, scheduler: Scheduler) -> None:
    scheduler.fail(await gateway.failed())


async def _close(engine: Engine, backend: SandboxBackend) -> None:
    await engine.close()
    await backend.close()


def run(settings: Settings, launch: Path, launcher_pid: int) -> Exit:
    """The whole of ``rolloutgen run``; what it says goes to stdout and the log, the reason to the launch's folder."""
    launches.mark_driver(launch)
    raise_fd_limit()
    os.environ.pop(MODEL_KEY, None)  # the server's key is the gateway's alone: no sandbox inherits it from here
    _need_gateway(settings, launch)
    plan = make_plan(settings, repair=True)
    with log_paths(settings).log.open("a", encoding="utf-8", errors="backslashreplace") as log:
        displays, alarm = (display_for(sys.stdout), Lines(log)), ToolAlarm(settings.tool_call_parser)
        progress = Progress(_tally(plan), displays, launch, alarm)
        ending = asyncio.run(_run(plan, launch, progress, launcher_pid))
        progress.let_go()
        for line in ending.lines:
            progress.say(line)
    (launch / REASON).write_text(ending.reason, encoding="utf-8")
    return ending.exit_code


async def _run(plan: Plan, launch: Path, progress: Progress, launcher_pid: int) -> Ending:
    stop = Stop()
    watch = asyncio.create_task(_watch_launcher(launcher_pid, stop))
    try:
        return await drive(plan, launch, progress, stop)
    finally:
        watch.cancel()


async def _watch_launcher(pid: int, stop: Stop) -> None:
    """Without its launcher a driver ends as if by TERM."""
    launcher = Process.of(pid)
    if launcher is not None:
        await gone(launcher)
    stop.request(Exit.TERMINATED)


def _need_gateway(settings: Settings, launch: Path) -> None:
    """The launcher starts a driver when the gateway is ready; later it may be away for a while, and come back."""
    if settings.uses_model and GatewayRecord.read(launch) is None:
        raise RunFailedError(f"no gateway was started in {launch}")


def _tally(plan: Plan) -> Tally:
    return Tally(
        n_planned=plan.scan.n_planned,
        n_pass=plan.scan.n_pass,
        n_fail=plan.scan.n_fail,
        n_given_up=plan.n_exhausted,
        n_concurrent=plan.settings.n_concurrent,
        clock=time.monotonic,
        utc=utc_now,
    )
