"""A real gateway process for tests, in a launch folder of its own, in front of a scripted model server.

    with Launch(tmp_path) as launch:
        async with Upstream(sane) as upstream:
            launch.server(upstream)
            await launch.start()

The test plays vLLM's parent: it writes server.json, and reads what the gateway asks for in restart.json.
"""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from fakes.answers import Answer, Call, Reaction
from fakes.upstream import Upstream
from rolloutgen.gateway.client import Lease
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.processes import MARK, Process
from rolloutgen.serving.leavings import remove_leavings
from rolloutgen.serving.record import ServerRecord
from texts import TEXTS

KEY = "test-key"
_PROGRAM = Path(__file__).with_name("gateway") / "gateway_alone.py"


def sane(call: Call) -> Reaction:
    """What a model in good health answers the canary with; anything else gets a line of a shell."""
    if call.body.get("tools"):
        return Answer(tool_calls=(("run_command", '{"command": "ls"}'),))
    if call.body.get("temperature") == 1 and call.body.get("max_tokens") == 32:
        return f"Once upon a time there were {call.number} mice."
    return "The capital of France is Paris."


async def until(condition: Callable[[], bool], what: str, at_most_sec: float = 30.0) -> None:
    """Wait for ``condition``; a test that waits in vain fails by name."""
    deadline = time.monotonic() + at_most_sec
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        await asyncio.sleep(0.02)


class Launch:
    """The folder of one launch, the gateways that were started in it, and a process that stands for vLLM's."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "logs" / ".launches" / f"test-{secrets.token_hex(4)}"
        self.folder.mkdir(parents=True)
        self.log = tmp_path / "gateway.log"
        self.gateways: list[subprocess.Popen[bytes]] = []
        self._vllms: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.gateways, *self._vllms):
            process.kill()
            process.wait()
        remove_leavings(self.folder.name, ())

    def server(self, upstream: Upstream | None = None, **fields: Any) -> ServerRecord:
        """Write server.json: ready at ``upstream``, or as ``fields`` say. Each call is another vLLM process."""
        self._vllms.append(subprocess.Popen(["sleep", "600"]))
        known: dict[str, Any] = {"state": "ready", "serve": Process.me(), "model_name": "policy", "seed": 7}
        known |= {"base_url": upstream.base_url if upstream else "", "vllm": Process.of(self._vllms[-1].pid)}
        record = ServerRecord(**(known | fields))
        record.write(self.folder)
        return record

    @property
    def record(self) -> GatewayRecord | None:
        """gateway.json, once it is that of the gateway started last."""
        record = GatewayRecord.read(self.folder)
        return record if record and self.gateways and record.gateway.pid == self.gateways[-1].pid else None

    def spawn(self, launcher_pid: int | None = None, **texts: str) -> "subprocess.Popen[bytes]":
        environment = os.environ | {"ROLLOUTGEN_MODEL_KEY": KEY, MARK: self.folder.name}
        launcher = str(launcher_pid or os.getpid())
        command = [sys.executable, str(_PROGRAM), str(self.folder), launcher, json.dumps({**TEXTS, **texts})]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with self.log.open("ab") as log:
            self.gateways.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return self.gateways[-1]

    async def start(self, launcher_pid: int | None = None, **texts: str) -> GatewayRecord:
        """Start a gateway; returns its record when it is ready or has failed."""
        process = self.spawn(launcher_pid, **texts)
        await until(lambda: self._settled or process.poll() is not None, f"the gateway is ready: {self.log}")
        assert self.record is not None, self.log.read_text()
        return self.record

    @property
    def _settled(self) -> bool:
        return self.record is not None and self.record.state != "starting"

    async def kill(self) -> None:
        self.gateways[-1].send_signal(signal.SIGKILL)
        await asyncio.to_thread(self.gateways[-1].wait)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.gateways[-1].wait, 30)


async def ask(lease: Lease, session: Any, content: str = "hello", **more: Any) -> tuple[int, dict[str, Any]]:
    """One chat completion under the key of ``lease`` (an aiohttp session); (status, body)."""
    body = {"model": "policy", "messages": [{"role": "user", "content": content}], **more}
    headers = {"Authorization": f"Bearer {lease.endpoint.api_key}"}
    url = f"{lease.endpoint.base_url}/chat/completions"
    async with session.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()
