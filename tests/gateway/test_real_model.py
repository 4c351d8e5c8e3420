"""The gateway before the real vLLM with the small model: the canary's verdicts, status, a server that stands still."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from gateways import KEY, Launch, ask, until
from real_jobs import MODEL, VLLM, need_real_parts
from rolloutgen.gateway.client import Gateway, status
from rolloutgen.gateway.record import FILE
from rolloutgen.processes import MARK
from rolloutgen.serving.record import ServerRecord
from texts import TEXTS

pytestmark = pytest.mark.slow
_SERVE = Path(__file__).parents[1] / "serving" / "serve_alone.py"
SETTINGS = {
    "MODEL_PATH": str(MODEL),
    "VLLM_BIN": str(VLLM),
    "VLLM_ENV": "VLLM_CPU_KVCACHE_SPACE=1",
    "TOOL_CALL_PARSER": "hermes",
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """One server for all tests here, with a parser for tools."""
    need_real_parts()
    with Launch(tmp_path_factory.mktemp("real")) as launch:
        environment = os.environ | {"ROLLOUTGEN_MODEL_KEY": KEY, MARK: launch.folder.name}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        texts = json.dumps({**TEXTS, **SETTINGS})
        command = [sys.executable, str(_SERVE), str(launch.folder), str(os.getpid()), texts]
        serve = subprocess.Popen(command, env=environment)
        try:
            _wait_ready(launch.folder, serve)
            yield launch
        finally:
            serve.terminate()
            serve.wait(60)


def _wait_ready(folder: Path, serve: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 500
    while (record := ServerRecord.read(folder)) is None or record.state != "ready":
        assert serve.poll() is None, "serve ended"
        assert time.monotonic() < deadline, "in vain: the server is ready"
        time.sleep(0.2)


@pytest.fixture
def launch(real: Launch) -> Iterator[Launch]:
    """Without a gateway, and without the memory of one."""
    (real.folder / FILE).unlink(missing_ok=True)
    yield real
    if real.gateways:
        real.gateways[-1].kill()
        real.gateways[-1].wait()


async def test_the_canary_passes_and_calls_are_answered(
    launch: Launch, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    record = await launch.start(**SETTINGS | {"TOOL_CALL_PARSER": "", "HEARTBEAT_SEC": "20"})
    assert record.state == "ready", record.message
    assert not [line for line in record.findings if line.startswith("FATAL")]
    gateway = Gateway(launch.folder)
    await gateway.open()
    lease = await gateway.lease(
        transcript=tmp_path / "t.jsonl", label="one", start={}, uses_tools=False, max_turns=None
    )
    code, answer = await ask(lease, session, "What is the capital of France?", seed=1, temperature=0)
    assert code == 200
    assert answer["choices"][0]["message"]["content"]
    await until(lambda: _reads_counters(launch.folder), "metrics are read")
    report = await lease.close({})
    assert (report.turns, report.failure) == (1, "")
    assert report.completion_tokens == answer["usage"]["completion_tokens"]
    await gateway.close()


@pytest.mark.parametrize(("canary", "state", "level"), [("fatal", "failed", "FATAL"), ("warn", "ready", "WARN")])
async def test_a_model_too_small_for_tools_is_told(launch: Launch, canary: str, state: str, level: str) -> None:
    """C7: no call at all is fatal unless TOOL_CANARY=warn."""
    record = await launch.start(**SETTINGS | {"TOOL_CANARY": canary})
    assert record.state == state, record.findings
    assert any(line.startswith(f"{level} TOOL_CANARY") for line in record.findings), record.findings


async def test_a_server_that_stands_still_is_replaced_under_a_call(
    launch: Launch, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """SIGSTOP to all of vLLM: nobody refuses, nothing answers; one attempt's call outlives it."""
    record = await launch.start(**SETTINGS | {"TOOL_CALL_PARSER": "", "HEARTBEAT_SEC": "10"})
    assert record.state == "ready", record.message
    server = ServerRecord.read(launch.folder)
    assert server is not None
    gateway = Gateway(launch.folder)
    await gateway.open()
    lease = await gateway.lease(
        transcript=tmp_path / "t.jsonl", label="one", start={}, uses_tools=False, max_turns=None
    )
    for member in server.members:
        member.signal(signal.SIGSTOP)
    code, _ = await asyncio.wait_for(ask(lease, session, "Say a word."), 400)
    assert code == 200
    report = await lease.close({})
    assert (report.turns, report.failure, report.retried) == (1, "", True)
    assert report.held_sec > 10
    seen = status(launch.folder)
    assert seen is not None
    assert (seen.server, seen.restarts) == ("ready", 1)
    await gateway.close()


def _reads_counters(folder: Path) -> bool:
    """Every name that is read stands in this vLLM's metrics."""
    seen = status(folder)
    return seen is not None and None not in (seen.tokens_per_sec, seen.prefix_hit_share, seen.kv_used_share)
