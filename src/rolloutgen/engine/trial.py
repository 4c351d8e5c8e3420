"""Harbor's trial, for harbor 0.26.0 exactly: its life and its files, without what costs time or hides evidence.

Changed here, each for one reason: the task is not hashed again (blocking, seconds); lock.json and hook events are left
out (validation of documents that nobody reads); loggers are not registered for ever; every exception is noted, not the
first alone; the agent's machine is checked before grading (C5); a cancelled trial copies nothing more; an agent that
asks a model has its own limit (``attend``), and the model for as long as it runs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self, override

from harbor.agents.base import BaseAgent
from harbor.models.job.lock import TrialLock
from harbor.models.task.config import VerifierEnvironmentMode
from harbor.models.task.verifier_mode import resolve_task_verifier_mode
from harbor.models.trial.config import (
    AgentConfig,
    EnvironmentConfig,
    ServiceVolumeConfig,
    TaskConfig,
    TrialConfig,
    VerifierConfig,
)
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import StepResult, TrialResult
from harbor.tasks.client import TaskDownloadResult
from harbor.trial.errors import AgentTimeoutError
from harbor.trial.hooks import TrialEvent
from harbor.trial.single_step import SingleStepTrial

from rolloutgen.engine.attend import TimeUpError, attend
from rolloutgen.engine.decide import spoiled
from rolloutgen.engine.environment import IMPORT_PATH, Context, SandboxEnvironment
from rolloutgen.engine.evidence import Phase
from rolloutgen.engine.leasing import leased
from rolloutgen.engine.tasks import LoadedTask
from rolloutgen.errors import SandboxError
from rolloutgen.gateway.client import Gateway
from rolloutgen.paths import HARBOR

HARBOR_VERSION: Final = "0.26.0"
"""The version whose internals this package was read against; a test holds the installed one to it."""

_PHASES: Final = {
    TrialEvent.ENVIRONMENT_START: Phase.START,
    TrialEvent.AGENT_START: Phase.AGENT,
    TrialEvent.AGENT_END: Phase.COLLECT,
}

type AgentBuilder = Callable[[LoadedTask, TrialPaths], BaseAgent]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one trial is made of; ``token`` is the key of ``context`` in ``environment.ATTEMPTS``.

    ``gateway`` is None for agents that ask no model.
    """

    token: str
    context: Context
    loaded: LoadedTask
    build_agent: AgentBuilder
    gateway: Gateway | None


class UngradableError(Exception):
    """There is nothing to grade: the evidence already says how the attempt ended."""


class AttemptTrial(SingleStepTrial):
    """One attempt's trial. Made in a worker thread: it reads and makes folders."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._record = plan.context.record
        task = plan.loaded.task
        download = TaskDownloadResult(path=task.task_dir, download_time_sec=0.0, cached=True)
        super().__init__(_config(plan), _task=task, _task_download_result=download)
        self._record.state.limit_sec = self._agent_timeout_sec

    @override
    def _write_trial_lock(self) -> TrialLock:
        return TrialLock.model_construct()

    @override
    def _init_logger(self) -> None:
        self.logger = _TrialLogger(self.config.trial_name)
        handler = logging.FileHandler(self.paths.log_path)
        handler.setFormatter(_LOG_FORMAT)
        self.logger.addHandler(handler)
        self._log_handler = handler

    @override
    def _init_timeouts(self) -> None:
        self._agent_timeout_sec = self._compute_agent_timeout_sec()
        self._verifier_timeout_sec = self._compute_verifier_timeout_sec()
        self._agent_setup_timeout_sec = BaseAgent.DEFAULT_SETUP_TIMEOUT_SEC
        self._environment_build_timeout_sec = self._plan.context.settings.sandbox_start_timeout_sec

    @override
    def _init_agent(self) -> None:
        self.agent = self._plan.build_agent(self._plan.loaded, self.paths)
        self.agent.logger = self.logger
        self.agent.session_id = f"{self.config.trial_name}__agent"
        self.agent.context_id = self.id

    @override
    def _init_result(self) -> None:
        self.paths.config_path.write_text(self.config.model_dump_json(indent=4))
        self._result = TrialResult(
            id=self.id,
            trial_name=self.config.trial_name,
            task_name=self.task.name,
            task_id=self.config.task.get_task_id(),
            started_at=self._now(),
            config=self.config,
            task_checksum=self._plan.loaded.digest,
            trial_uri=self.paths.trial_dir.as_uri(),
            agent_info=self.agent.to_agent_info(),
            verifier_environment_mode=self._mode,
        )

    def discard(self) -> None:
        """Give back what a trial holds that will not run."""
        self._close_logger_handler()

    @property
    @override
    def _agent_env_mounts(self) -> list[ServiceVolumeConfig]:
        """None: nothing of this machine is mounted into a sandbox."""
        return []

    @override
    async def _sync_agent_output(self, target: TrialResult | StepResult) -> None:
        """The logs alone: our scaffolds keep their own transcript."""
        await self._download_agent_logs()

    @override
    async def _emit(self, event: TrialEvent) -> None:
        phase = _PHASES.get(event)
        if phase is not None:
            self._record.enter(phase)

    @override
    async def _run(self) -> None:
        separate = self._mode is VerifierEnvironmentMode.SEPARATE
        self._record.separate = separate
        await self._run_agent()
        await self._before_grading()
        await self._collect_artifacts(stop_main_before_sidecars=separate)
        self._record.enter(Phase.VERIFY)
        await self._check_machine()
        self._record.verify_begun = True
        try:
            if separate:
                await self._stop_agent_environment()
            else:
                await self._restore_folders()
            await self._run_verifier()
        except Exception as error:
            self._record.fail(error)
            raise
        finally:
            self._record.enter(Phase.FINISH)

    @override
    async def _run_agent_phase(self, *, timeout_sec: float | None, **rest: Any) -> None:
        """Harbor's, under our own clock where a model is asked: its waits are not the agent's time."""
        gateway, settings = self._plan.gateway, self._plan.context.settings
        if gateway is None:
            await super()._run_agent_phase(timeout_sec=timeout_sec, **rest)
            return
        async with leased(gateway, settings, self._record, self.agent.version() or "") as lease:
            agent = super()._run_agent_phase(timeout_sec=None, **rest)
            try:
                await attend(agent, lease, timeout_sec, self._record.fail)
            except TimeUpError as up:
                self._record.suspect_sec = up.lost_sec
                raise AgentTimeoutError(str(up)) from up

    async def _before_grading(self) -> None:
        """Do not copy from, and do not grade, what is lost anyway. Raises UngradableError."""
        await self._record.take_reports()
        self._record.before_verify = self._record.reports[0]
        if spoiled(self._record.evidence()):
            raise UngradableError

    async def _restore_folders(self) -> None:
        assert isinstance(self.agent_environment, SandboxEnvironment)
        await self.agent_environment.restore_folders()

    async def _check_machine(self) -> None:
        """C5: a machine that is not the one that the agent worked in must not be graded. Raises SandboxError."""
        assert isinstance(self.agent_environment, SandboxEnvironment)
        try:
            await self.agent_environment.sandbox.check()
        except SandboxError as error:
            self._record.fail(error)
            await self._record.take_reports()
            raise

    @override
    async def _recover_outputs(self) -> None:
        """What can still be had of a trial that failed; nothing where it was cancelled or its machine is gone."""
        report = self._record.reports.get(0)
        if not self._record.interrupted and report is not None and not report.dead:
            await super()._recover_outputs()
        await self._stop_agent_environment()

    @override
    def _record_exception(self, exc: BaseException) -> None:
        if isinstance(exc, UngradableError):
            return
        if isinstance(exc, Exception):
            self._record.fail(exc)
        else:  # a CancelledError
            self._record.interrupted = True
        super()._record_exception(exc)

    @cached_property
    def _mode(self) -> VerifierEnvironmentMode:
        return resolve_task_verifier_mode(self.task.config)


def _config(plan: Plan) -> TrialConfig:
    """Harbor's document of this trial. It names the scaffold and holds no secret: agents get theirs from the plan."""
    settings = plan.context.settings
    return TrialConfig(
        task=TaskConfig(path=plan.loaded.task.task_dir),
        trial_name=HARBOR,
        trials_dir=plan.context.record.attempt.folder,
        agent=AgentConfig(name=settings.scaffold, override_timeout_sec=settings.agent_timeout_sec),
        verifier=VerifierConfig(override_timeout_sec=settings.verifier_timeout_sec),
        environment=EnvironmentConfig(import_path=IMPORT_PATH, kwargs={"attempt": plan.token}),
    )


class _TrialLogger(logging.Logger):
    """A logger that ends with its trial: one from logging.getLogger stays in memory for the life of the process."""

    def getChild(self, suffix: str) -> Self:  # noqa: ARG002, N802 - logging's signature; Harbor asks everywhere
        return self


_LOG_FORMAT: Final = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
