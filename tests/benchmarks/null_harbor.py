"""Harbor's side of the comparison: an environment for Harbor's own job that starts no process, like NullSandbox."""

import asyncio
import os
from pathlib import Path
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

START_SEC = float(os.environ.get("NULL_START_SEC", "0"))


class NullEnvironment(BaseEnvironment):
    """Takes START_SEC to start, answers every command with 0; the verifier's folder holds a reward of 0."""

    @staticmethod
    @override
    def type() -> str:
        return "null"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @override
    def _validate_definition(self) -> None: ...

    @override
    async def start(self, force_build: bool) -> None:
        await asyncio.sleep(START_SEC)

    @override
    async def stop(self, delete: bool) -> None: ...

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return ExecResult(return_code=0)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None: ...

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None: ...

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None: ...

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        if source_dir == "/logs/verifier":
            (Path(target_dir) / "reward.txt").write_text("0\n")
