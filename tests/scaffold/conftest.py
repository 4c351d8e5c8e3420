"""A policy, a client, and a workspace that runs real processes in a folder of its own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import ModelServer
from rolloutgen.models import ModelEndpoint
from rolloutgen.sandbox.base import ExecResult
from rolloutgen.scaffold.model import ModelClient
from rolloutgen.settings import Policy

POLICY = Policy(
    model_path=Path("model"),
    temperature=0.7,
    top_p=0.9,
    top_k=20,
    min_p=0.05,
    max_response_len=64,
    max_turns=5,
    model_call_timeout_sec=0.5,
    vllm_max_model_len=2048,
    served_model_name="policy",
    vllm_dtype="auto",
    gpu_memory_utilization=0.9,
    server_start_timeout_sec=60.0,
    reasoning_effort=None,
    chat_template_kwargs=None,
    sampling_passthrough=False,
    gateway_hold_sec=60.0,
    gateway_max_inflight=4,
    heartbeat_sec=60.0,
)


@pytest.fixture
async def make_client() -> AsyncIterator[Callable[..., ModelClient]]:
    clients: list[ModelClient] = []

    def make(server: ModelServer, **changes: Any) -> ModelClient:
        endpoint = ModelEndpoint(server.base_url, server.model, server.key)
        clients.append(ModelClient(endpoint, replace(POLICY, **changes), 4, first_wait_sec=0.001))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


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
