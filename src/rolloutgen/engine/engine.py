"""The engine: ``run_attempt`` runs one attempt from start to outcome, whatever happens on the way."""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from rolloutgen import scaffold
from rolloutgen.engine.outcome import Clock, build_outcome
from rolloutgen.engine.record import Record, is_cancelled
from rolloutgen.engine.rewards import read_rewards
from rolloutgen.errors import StoreError
from rolloutgen.gateway.client import Gateway
from rolloutgen.models import Attempt, Outcome
from rolloutgen.paths import TRANSCRIPT, harbor_folder
from rolloutgen.sandbox.base import SandboxBackend
from rolloutgen.settings import Settings
from rolloutgen.shielding import uninterrupted
from rolloutgen.transcript.lines import Transcript

if TYPE_CHECKING:
    from rolloutgen.engine.tasks import LoadedTask
    from rolloutgen.engine.trial import AttemptTrial, Plan
    from rolloutgen.scaffold.base import Scaffold

_LOG: Final = logging.getLogger(__name__)
_QUIET: Final = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""A28: neither Harbor's telemetry nor litellm's look-up on the network; our path imports neither, this is the belt."""
_THREADS: Final = 4
"""For reading and hashing tasks, making folders and waiting for the disk: short work, a few at a time are enough."""


class Engine:
    """Runs attempts on one event loop; one a driver. ``backend`` is open while it does; the caller closes both."""

    def __init__(self, settings: Settings, backend: SandboxBackend, gateway: Gateway | None) -> None:
        """``gateway`` is None for scaffolds that ask no model; it is open as ``backend`` is.

        Brings Harbor in (0.5 s of CPU).
        """
        os.environ.update(_QUIET)
        for module in ("agents", "trial"):  # all of Harbor now: an import is a stall of the event loop
            import_module(f"rolloutgen.engine.{module}")
        logging.getLogger("harbor.utils.logger").setLevel(logging.WARNING)  # it asks for DEBUG; trials have their own
        from rolloutgen.engine.tasks import TaskCache

        self._settings = settings
        self._backend = backend
        self._gateway = gateway
        self._scaffold: Scaffold | None = None
        if settings.uses_model:
            if gateway is None:
                raise ValueError(f"the scaffold {settings.scaffold} needs a gateway")
            self._scaffold = scaffold.build(settings)
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="engine")
        self._tasks = TaskCache(self._executor)

    async def close(self) -> None:
        """Release connections and threads. Idempotent."""
        if self._scaffold is not None:
            await self._scaffold.close()
        self._executor.shutdown(wait=False)

    async def run_attempt(self, attempt: Attempt) -> Outcome:
        """Run ``attempt`` in its folder; its sandboxes are removed in every case.

        Raises CancelledError, and StoreError where it has no verdict since this machine's own disk is full: that hits
        all alike, and no trial must be charged for it.
        """
        record, clock = Record(attempt), Clock()
        loaded: LoadedTask | None = None
        try:
            loaded = await self._tasks.get(attempt.trial.instance.task_path)
            await self._run(record, loaded)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            record.fail(error)  # nobody cancelled this attempt: something inside it came apart
        except Exception as error:  # noqa: BLE001 - a bug of ours is an outcome too (internal), with its traceback
            record.fail(error)
        finally:
            await uninterrupted(_remove_sandboxes(record))
        digest = loaded.digest if loaded else ""
        outcome = build_outcome(record, clock, digest, self._settings.pass_threshold)
        if record.own_disk and not outcome.is_verdict:
            raise StoreError(f"what an attempt leaves in {attempt.folder} could not be written: {record.own_disk}")
        return outcome

    async def _run(self, record: Record, loaded: "LoadedTask") -> None:
        from rolloutgen.engine.agents import build_agent
        from rolloutgen.engine.environment import ATTEMPTS, Context
        from rolloutgen.engine.trial import Plan

        if self._scaffold is None:  # else the gateway writes it
            record.transcript = Transcript(record.attempt.folder / TRANSCRIPT, self._executor)
        token = uuid4().hex
        context = ATTEMPTS[token] = Context(record, self._backend, self._settings)
        try:
            build = partial(build_agent, self._settings.scaffold, self._scaffold, record)
            trial = await self._make_trial(Plan(token, context, loaded, build, self._gateway))
            await trial.run()
            if record.verifier_exec is not None:
                folder = harbor_folder(record.attempt) / "verifier"
                loop = asyncio.get_running_loop()
                record.rewards = await loop.run_in_executor(self._executor, read_rewards, folder)
        finally:
            del ATTEMPTS[token]
            _close_transcript(record)

    async def _make_trial(self, plan: "Plan") -> "AttemptTrial":
        """In a thread: it makes folders and validates. A cancelled caller leaves nothing open."""
        from rolloutgen.engine.trial import AttemptTrial

        making = asyncio.get_running_loop().run_in_executor(self._executor, AttemptTrial, plan)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_discard)
            raise


def _close_transcript(record: Record) -> None:
    """The last line says how it ended; a transcript that cannot be written is an error of the attempt."""
    if record.transcript is None:
        return
    try:
        record.transcript.write("end", **record.ending())
        record.transcript.close()
    except (OSError, ValueError) as error:
        record.fail(error)


async def _remove_sandboxes(record: Record) -> None:
    """Every sandbox of the attempt; one that cannot be removed is left to the backend's close."""
    for sandbox in record.sandboxes:
        try:
            await record.remove(sandbox)
        except Exception:  # noqa: BLE001 - the attempt's outcome stands, whatever the removal met
            _LOG.exception("a sandbox of %s could not be removed", record.attempt.folder)


def _discard(making: "asyncio.Future[AttemptTrial]") -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().discard()
