"""A scripted model behind a real gateway, and a workspace that runs real processes in a folder of its own."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest

from fakes.answers import Call, Reaction
from fakes.upstream import Upstream
from local_gateway import LocalGateway
from rolloutgen.config.reading import read_settings
from rolloutgen.knobs import Value
from rolloutgen.sandbox.base import ExecResult
from rolloutgen.scaffold.model import ModelClient

_KEYS = {
    "PROJECT_NAME": "test",
    "INDEX_FILE": "index.parquet",
    "RESULTS_DIR": "results",
    "OUTPUT_INDEX": "selected.parquet",
    "N_TRIALS": "1",
    "N_CONCURRENT": "4",
    "SCAFFOLD": "shell",
    "BACKEND": "local",
    "LOCAL_IMAGES": "'*=host'",
    "SANDBOX_EGRESS": "open",
    "SANDBOX_START_TIMEOUT_SEC": "60",
    "EXEC_OUTPUT_MAX_MB": "16",
    "MODEL_PATH": "model",
    "TEMPERATURE": "0.7",
    "TOP_P": "0.9",
    "TOP_K": "20",
    "MIN_P": "0.05",
    "VLLM_MAX_MODEL_LEN": "2048",
    "MAX_TURNS": "5",
    "MAX_RESPONSE_LEN": "64",
    "MODEL_CALL_TIMEOUT_SEC": "5",
    "VLLM_DTYPE": "auto",
    "GPU_MEMORY_UTILIZATION": "0.9",
    "SERVER_START_TIMEOUT_SEC": "60",
    "GATEWAY_HOLD_SEC": "1",
    "GATEWAY_MAX_INFLIGHT": "4",
    "HEARTBEAT_SEC": "60",
}


class Play:
    """One scripted model behind a real gateway: ``calls`` is what reached it, ``transcript`` what the gateway kept."""

    def __init__(self, folder: Path, reactions: Sequence[Reaction], **keys: str) -> None:
        chosen = _KEYS | keys
        draft = read_settings({key: Value(text, "test") for key, text in chosen.items()}, folder)
        assert not draft.invalid, draft.findings
        self.settings = draft.settings
        self.policy = self.settings.policy
        self.upstream = Upstream(
            lambda call: reactions[call.number], context_len=self.policy.vllm_max_model_len, key="server-key"
        )
        self.gateway = LocalGateway(self.settings, self.upstream)
        self.transcript = folder / "transcript.jsonl"
        self.client = ModelClient(self.policy, self.settings.n_concurrent)

    @property
    def calls(self) -> list[Call]:
        return self.upstream.calls

    async def __aenter__(self) -> Self:
        await self.upstream.start()
        await self.gateway.__aenter__()
        self.lease = await self.gateway.lease(self.transcript)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        self.report = await self.lease.close({})
        await self.gateway.__aexit__()
        await self.upstream.stop()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Play]:
    return lambda reactions, **keys: Play(tmp_path, reactions, **keys)


class ProcessWorkspace:
    """Real commands in a real folder. Not a sandbox: for scripted models only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error: Exception | None = None

    async def exec(self, command: str, *, timeout_sec: float | None = None) -> ExecResult:
        if self.error is not None:
            raise self.error
        process = await asyncio.create_subprocess_exec(
            "timeout",
            f"{timeout_sec or 0}",
            "bash",
            "-c",
            command,
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            stdout, stderr = await process.communicate()
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
            raise
        assert process.returncode is not None
        return ExecResult(process.returncode, stdout, stderr, timed_out=process.returncode == 124)


@pytest.fixture
def workspace(tmp_path: Path) -> ProcessWorkspace:
    folder = tmp_path / "work"
    folder.mkdir()
    return ProcessWorkspace(folder)
