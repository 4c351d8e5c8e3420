"""The bridge from Harbor's environment to our Sandbox: every call passes here, and what goes wrong is noted here.

Harbor builds environments by import path with plain arguments that it also writes to config.json. So it is given a
token, and the run's objects are looked up in ``ATTEMPTS``: no secret and no object ever reaches a file of Harbor's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, override
from uuid import uuid4

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from rolloutgen.engine.evidence import Phase
from rolloutgen.engine.record import Record
from rolloutgen.engine.rewards import refuse_huge
from rolloutgen.engine.tasks import dockerfile_workdir
from rolloutgen.errors import SandboxError
from rolloutgen.outcomes import Cause
from rolloutgen.sandbox.base import ExecResult as SandboxExecResult
from rolloutgen.sandbox.base import Network, Sandbox, SandboxBackend, SandboxSpec
from rolloutgen.settings import Settings

IMPORT_PATH: Final = f"{__name__}:SandboxEnvironment"

_FOLDERS: Final = "mkdir -p /app /tests /logs/agent /logs/verifier /logs/artifacts && chmod 777 /logs /logs/*"
_RESTORED: Final = (
    "[ -d /logs/verifier ] || { rm -rf /logs/verifier; mkdir -p /logs/verifier && chmod 777 /logs /logs/verifier; }"
)
_COMPOSE: Final = ("docker-compose.yaml", "docker-compose.yml")


@dataclass(frozen=True, slots=True)
class Context:
    """What the environments of one attempt share."""

    record: Record
    backend: SandboxBackend
    settings: Settings


ATTEMPTS: Final[dict[str, Context]] = {}
"""Token -> context, for as long as the attempt runs."""


class SandboxEnvironment(BaseEnvironment):
    """One sandbox of ours, as Harbor sees it."""

    def __init__(self, *args: Any, attempt: str, **kwargs: Any) -> None:
        self._context = ATTEMPTS[attempt]
        self._record = self._context.record
        self._sandbox: Sandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "rolloutgen"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return _CAPABILITIES

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return _RESOURCES

    @override
    def _validate_definition(self) -> None:
        if any((self.environment_dir / name).exists() for name in _COMPOSE):
            raise ValueError(f"{self.environment_dir}: tasks of several services (docker compose) are not supported")

    @override
    async def start(self, force_build: bool) -> None:
        with self._record.watch():
            sandbox = self._context.backend.create(self._spec())
            self._sandbox = sandbox
            self._record.sandboxes.append(sandbox)
            await sandbox.start()
            made = await sandbox.exec(_FOLDERS, cwd="/", user="root")
            if made.exit_status != 0:
                why = made.stderr.decode(errors="replace").strip()
                raise SandboxError(f"/app, /tests and /logs could not be made: {why}", Cause.SANDBOX_START)
            await self._upload_environment_dir_after_start()

    async def restore_folders(self) -> None:
        """Before grading. Harbor's containers have a mount where the verifier writes, which no agent can remove; an
        agent that was told to delete all logs must be graded here too."""
        await self.run(_RESTORED, cwd="/", user="root")

    @override
    async def stop(self, delete: bool) -> None:
        """Remove the sandbox. A removal that fails costs no verdict: the backend removes what is left at its close."""
        if self._sandbox is not None:
            try:
                await self._record.remove(self._sandbox)
            except SandboxError as error:
                self.logger.warning("the sandbox could not be removed: %s", error)

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: float | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        result = await self.run(command, cwd=cwd, env=env, timeout_sec=timeout_sec, user=user)
        return ExecResult.model_construct(
            stdout=result.stdout.decode(errors="replace"),
            stderr=result.stderr.decode(errors="replace"),
            return_code=result.exit_status,
        )

    async def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_sec: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """``exec`` with our own result. The task's env holds for all, then the call's, then Harbor's overlays."""
        extra = dict(env or {})
        for overlay in self._exec_env_overlays.get():
            extra.update(overlay)
        with self._record.watch():
            result = await self.sandbox.exec(
                command, cwd=cwd, env=extra or None, user=self._resolve_user(user), timeout_sec=timeout_sec
            )
        self._record.ended(command, result)
        return result

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        with self._record.watch():
            await self.sandbox.upload(Path(source_path), target_path)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        with self._record.watch():
            await self.sandbox.upload(Path(source_dir), target_dir)

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        with self._record.watch():
            await self.sandbox.download(source_path, Path(target_path))

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with self._record.watch():
            await self.sandbox.download(source_dir, Path(target_dir))
            if self._record.phase is Phase.VERIFY:  # Harbor reads it whole, on the event loop
                refuse_huge(Path(target_dir))

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Nothing to do: ``start`` refused a task whose phases differ in what they may reach."""

    @property
    def sandbox(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxError("the sandbox was not started", Cause.INTERNAL)
        return self._sandbox

    def _spec(self) -> SandboxSpec:
        task, settings = self.task_env_config, self._context.settings
        workdir = task.workdir or dockerfile_workdir(self.environment_dir)
        return SandboxSpec(
            name=_name(self._record.attempt.trial.instance.instance_id),
            image=task.docker_image,
            workdir=None if workdir is None else str(PurePosixPath("/", workdir)),
            cpus=settings.sandbox_cpu or task.cpus,
            memory_mb=settings.sandbox_memory_mb or task.memory_mb,
            storage_mb=task.storage_mb,
            network=self._network(),
            env=self._persistent_env,
        )

    def _network(self) -> Network:
        """What the phases of this sandbox may reach; they must agree, for it is settled at the start."""
        egress = Network(self._context.settings.sandbox_egress)
        phases = self._phase_network_policies or [self._network_policy]
        wanted = {stricter(egress, policy) for policy in phases}
        if len(wanted) > 1:
            names = " and ".join(sorted(wanted))
            raise SandboxError(f"the task's phases need different networks ({names})", Cause.SANDBOX_START)
        return wanted.pop()


def stricter(egress: Network, policy: NetworkPolicy) -> Network:
    """The stricter of SANDBOX_EGRESS and the task's own policy. Raises SandboxError for what cannot be enforced."""
    if policy.network_mode == NetworkMode.NO_NETWORK:
        return Network.NONE
    if policy.network_mode == NetworkMode.ALLOWLIST and egress is Network.OPEN:
        hosts = ", ".join(policy.allowed_hosts)
        raise SandboxError(f"the task allows some hosts only ({hosts}), which is not supported", Cause.SANDBOX_START)
    return egress


def _name(instance_id: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", instance_id)[:32].strip("-").lower()
    return f"{slug or 'task'}-{uuid4().hex[:12]}"


_CAPABILITIES: Final = EnvironmentCapabilities(
    disable_internet=True,
    dynamic_network_policy=True,
    network_allowlist=True,
    network_allowlist_hostnames=True,
    network_allowlist_wildcard_hostnames=True,
    network_allowlist_ipv4_addresses=True,
    network_allowlist_ipv6_addresses=True,
    network_allowlist_ipv4_cidrs=True,
    network_allowlist_ipv6_cidrs=True,
)
"""Every policy is taken here, so that the answer to one that cannot be enforced is ours, in ``stricter``."""
_RESOURCES: Final = EnvironmentResourceCapabilities(
    cpu_limit=True, cpu_request=True, memory_limit=True, memory_request=True, fractional_cpus=True
)
