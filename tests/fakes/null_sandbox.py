"""A sandbox that starts no process: files in memory, commands answered by a script. For tests and benchmarks.

The default script grades: the verifier's script writes ``reward`` to /logs/verifier/reward.txt. ``on_exec`` may answer
a command itself (a result, or an exception), ``None`` leaves it to the default. Everything that happens is counted in
the backend, so that a leak shows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from rolloutgen.errors import Finding
from rolloutgen.sandbox.base import ExecResult, SandboxReport, SandboxSpec

OK = ExecResult(0, b"", b"")

type OnExec = Callable[["NullSandbox", str], Awaitable[ExecResult | None]]


@dataclass
class NullSandbox:
    spec: SandboxSpec
    backend: "NullBackend"
    files: dict[str, bytes] = field(default_factory=dict)
    commands: list[tuple[str, str | int | None]] = field(default_factory=list)
    reported: SandboxReport = field(default_factory=SandboxReport)
    started: bool = False
    stopped: bool = False

    async def start(self) -> None:
        self.started = True
        if self.backend.on_start is not None:
            await self.backend.on_start(self)

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        timeout_sec: float | None = None,
    ) -> ExecResult:
        self.commands.append((command, user))
        if self.backend.on_exec is not None:
            answer = await self.backend.on_exec(self, command)
            if answer is not None:
                return answer
        if is_verifier(command):
            self.files["/logs/verifier/reward.txt"] = self.backend.reward
        return OK

    async def upload(self, source: Path, target: str) -> None:
        if source.is_file():
            self.files[target] = source.read_bytes()

    async def download(self, source: str, target: Path) -> None:
        if self.backend.on_download is not None:
            await self.backend.on_download(self, source)
        if source in self.files:
            target.write_bytes(self.files[source])
            return
        for name, content in self.files.items():
            if PurePosixPath(name).is_relative_to(source):
                path = target / PurePosixPath(name).relative_to(source)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    async def check(self) -> None:
        if self.backend.on_check is not None:
            await self.backend.on_check(self)

    async def report(self) -> SandboxReport:
        return self.reported

    async def stop(self) -> None:
        await asyncio.sleep(self.backend.stop_sec)
        self.stopped = True
        if self.backend.stop_error is not None:
            raise self.backend.stop_error


@dataclass
class NullBackend:
    reward: bytes = b"1\n"
    stop_sec: float = 0.0
    stop_error: Exception | None = None
    on_start: Callable[[NullSandbox], Awaitable[None]] | None = None
    on_exec: OnExec | None = None
    on_download: Callable[[NullSandbox, str], Awaitable[None]] | None = None
    on_check: Callable[[NullSandbox], Awaitable[None]] | None = None
    sandboxes: list[NullSandbox] = field(default_factory=list)
    keep: bool = True

    async def open(self) -> None: ...

    def create(self, spec: SandboxSpec) -> NullSandbox:
        sandbox = NullSandbox(spec, self)
        if self.keep:
            self.sandboxes.append(sandbox)
        return sandbox

    async def check(self, images: Sequence[str | None]) -> Sequence[Finding]:
        return ()

    async def close(self) -> None: ...

    @property
    def left(self) -> list[NullSandbox]:
        """Sandboxes that nobody removed."""
        return [sandbox for sandbox in self.sandboxes if sandbox.started and not sandbox.stopped]


def is_verifier(command: str) -> bool:
    """Whether ``command`` is the verifier's script, as Harbor calls it."""
    return command.startswith("(/tests/test.sh)")
