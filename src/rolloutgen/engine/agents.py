"""The agents that Harbor runs: a bridge to our scaffolds, and Harbor's own oracle and nop with a transcript."""

from pathlib import Path
from typing import Any, Final, override

from harbor.agents.base import BaseAgent
from harbor.agents.nop import NopAgent
from harbor.agents.oracle import OracleAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import AgentInfo

from rolloutgen.engine.environment import SandboxEnvironment
from rolloutgen.engine.record import Record
from rolloutgen.engine.tasks import LoadedTask
from rolloutgen.outcomes import Flag
from rolloutgen.sandbox.base import ExecResult
from rolloutgen.scaffold.base import Scaffold
from rolloutgen.transcript.lines import SCHEMA_VERSION, Transcript

_EXIT_CODE: Final = "exit-code.txt"
"""Harbor's oracle writes it where the solution's script failed."""


class _SandboxWorkspace:
    """The sandbox as a scaffold may use it: the agent's user, the working directory, the environment's overlays."""

    def __init__(self, environment: SandboxEnvironment) -> None:
        self._environment = environment

    async def exec(self, command: str, *, timeout_sec: float | None = None) -> ExecResult:
        return await self._environment.run(command, timeout_sec=timeout_sec)


class ScaffoldAgent(BaseAgent):
    """A scaffold of ours in Harbor's shape. What it raises is noted in the record and goes no further."""

    def __init__(self, logs_dir: Path, *, scaffold: Scaffold, record: Record, **kwargs: Any) -> None:
        super().__init__(logs_dir, **kwargs)
        self._scaffold = scaffold
        self._record = record

    @staticmethod
    @override
    def name() -> str:
        return "rolloutgen"

    @override
    def version(self) -> str:
        return self._scaffold.version

    @override
    def to_agent_info(self) -> AgentInfo:
        return AgentInfo(name=self._scaffold.name, version=self._scaffold.version)

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing: our scaffolds run outside the sandbox."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        assert isinstance(environment, SandboxEnvironment)
        assert self._record.endpoint is not None
        workspace = _SandboxWorkspace(environment)
        try:
            await self._scaffold.run(instruction, workspace, self._record.endpoint, self._record.state)
        except Exception as error:  # noqa: BLE001 - the record keeps it, and the decision knows that it was the agent's
            self._record.fail(error)


class Oracle(OracleAgent):
    """Harbor's oracle on the task that is loaded already (Harbor's reads and checks it again, on the event loop)."""

    def __init__(
        self, logs_dir: Path, *, task: Task, paths: TrialPaths, record: Record, transcript: Transcript
    ) -> None:
        BaseAgent.__init__(self, logs_dir)
        self._task = task
        self._trial_paths = paths
        self._agent_timeout_sec = None
        self._step_index = 0
        self._record = record
        self._transcript = transcript

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        _start(self._transcript, self, instruction)
        try:
            await super().run(instruction, environment, context)
        except Exception as error:  # noqa: BLE001 - as in ScaffoldAgent
            self._record.fail(error)
        if (self._trial_paths.agent_dir / _EXIT_CODE).exists():
            self._record.state.flags.add(Flag.AGENT_CRASH)


class Nop(NopAgent):
    """Harbor's nop."""

    def __init__(self, logs_dir: Path, *, transcript: Transcript) -> None:
        super().__init__(logs_dir)
        self._transcript = transcript

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        _start(self._transcript, self, instruction)


def build_agent(
    name: str, scaffold: Scaffold | None, record: Record, loaded: LoadedTask, paths: TrialPaths
) -> BaseAgent:
    """The agent called ``name``: ours where there is a scaffold, else one of Harbor's."""
    if scaffold is not None:
        return ScaffoldAgent(paths.agent_dir, scaffold=scaffold, record=record)
    transcript = record.transcript
    assert transcript is not None
    if name == Oracle.name():
        return Oracle(paths.agent_dir, task=loaded.task, paths=paths, record=record, transcript=transcript)
    return Nop(paths.agent_dir, transcript=transcript)


def _start(transcript: Transcript, agent: BaseAgent, instruction: str) -> None:
    transcript.write(
        "start",
        schema_version=SCHEMA_VERSION,
        scaffold=agent.name(),
        scaffold_version=agent.version(),
        model=None,
        request=None,
        messages=[{"role": "user", "content": instruction}],
    )
