"""The real vLLM behind the gateway: what it returns is recorded as it was, and renders to the recorded prompt again."""

import asyncio
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from real_jobs import MODEL, VLLM, need_real_parts
from rolloutgen.gateway.server import ServerState
from rolloutgen.gateway.upstream import Upstream
from rolloutgen.serving.command import command_line, environment
from rolloutgen.serving.ports import free_port
from rolloutgen.transcript.reader import Call
from texts import make_settings

from .conftest import CONTEXT_LEN, SAMPLING, Attempt, Gate, Gates, until

pytestmark = pytest.mark.slow
TEMPLATE = Path(__file__).resolve().parents[2] / "fakes" / "tools_template.jinja"
TOOLS = [{"type": "function", "function": {"name": "shell", "description": "runs", "parameters": {"type": "object"}}}]
READY_SEC = 400
GREEDY = {**SAMPLING, "temperature": 0.0}


@dataclass(frozen=True)
class Server:
    root: str
    key: str

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self.root + path, timeout=30) as answer:
            return str(answer.read().decode())


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    need_real_parts()
    texts = {"MODEL_PATH": str(MODEL), "VLLM_BIN": str(VLLM), "TOOL_CALL_PARSER": "hermes"}
    texts |= {
        "VLLM_EXTRA_ARGS": f"--chat-template {TEMPLATE} --enable-scale-out",
        "VLLM_ENV": "VLLM_CPU_KVCACHE_SPACE=1",
    }
    settings = make_settings(**texts)
    server, log = Server(f"http://127.0.0.1:{free_port()}", "test-key"), tmp_path_factory.mktemp("vllm") / "log"
    command = command_line(settings, int(server.root.rpartition(":")[2]), 0)
    apart = environment(settings, 0, key=server.key)
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=apart, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_SEC
        while not _healthy(server):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield server
    finally:
        process.terminate()
        process.wait(60)
        _kill_group(process.pid)


def _healthy(server: Server) -> bool:
    try:
        server.text("/health")
    except OSError:
        return False
    return True


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture
async def asking(vllm: Server) -> AsyncIterator[Upstream]:
    """Direct, as the gateway asks."""
    state = ServerState()
    await state.update("ready", base_url=vllm.base_url)
    upstream = Upstream(state, vllm.key, 120)
    yield upstream
    await upstream.close()


async def rendered(asking: Upstream, call: Call) -> list[int]:
    """The prompt ids of what a transcript says that was sent."""
    if call.surface == "completions":
        return list((await asking.plain("/tokenize", {"model": "policy", "prompt": call.prompt()}))["tokens"])
    return list((await asking.plain("/v1/chat/completions/render", call.sent()))["token_ids"])


async def decoded(asking: Upstream, ids: Any) -> str:
    return str((await asking.plain("/detokenize", {"model": "policy", "tokens": list(ids)}))["prompt"])


async def talk(attempt: Attempt, *, stream: bool) -> None:
    """Three turns; what the model says goes back to it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for text in ("Name a colour.", "And a number?", "Say it again."):
        messages.append({"role": "user", "content": text})
        said = await attempt.chat(messages, stream=stream, tools=TOOLS, temperature=2, seed=5, ignore_eos=True)
        assert said.status == 200
        content = said.text if stream else said.body["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": content})


@pytest.mark.parametrize("stream", [False, True])
async def test_transcripts_render_to_the_recorded_prompts(
    vllm: Server, gate: Gates, asking: Upstream, stream: bool
) -> None:
    """A6, A13: SFT-grade. The pinned temperature 0 acts, whatever the scaffold asks."""
    async with gate(vllm, sampling=GREEDY, logprobs=True, max_tokens=24, timeout_sec=300) as g:
        first, second = g.attempt(), g.attempt()
        await talk(first, stream=stream)
        await talk(second, stream=stream)
        calls, again = await first.calls(), await second.calls()
        for call in calls:
            assert await rendered(asking, call) == list(call.prompt_ids() or ())
            content = str((call.message or {})["content"])
            assert content.strip() in await decoded(asking, call.response_ids)
            assert len(call.logprobs or ()) == len(call.response_ids or ()) == call.reply["usage"]["completion_tokens"]
            assert all(value <= 0 for value in call.logprobs or ())
    assert [call.message for call in calls] == [call.message for call in again]
    assert [call.branch for call in calls] == [0, 0, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_and_continued_answers(vllm: Server, gate: Gates, asking: Upstream, stream: bool) -> None:
    async with gate(vllm, sampling=GREEDY, max_tokens=16, timeout_sec=300) as g:
        attempt = g.attempt()
        said = await attempt.ask({"prompt": "One, two,", "stream": stream}, "/v1/completions")
        assert (said.text if stream else said.body["choices"][0]["text"]).strip()
        opened = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}]
        going_on = {"continue_final_message": True, "add_generation_prompt": False, "stop": ["5"]}
        assert (await attempt.chat(opened, stream=stream, **going_on)).status == 200
        text, continued = await attempt.calls()
        assert await rendered(asking, text) == list(text.prompt_ids() or ())
        assert await rendered(asking, continued) == list(continued.prompt_ids() or ())
    assert len(text.response_ids or ()) == text.reply["usage"]["completion_tokens"]


async def _fill(attempt: Attempt, n_tokens: int) -> Any:
    return await attempt.ask({"prompt": [5] * n_tokens}, "/v1/completions")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_context(vllm: Server, gate: Gates, stream: bool) -> None:
    """C8: a prompt that leaves little room is answered with that room; one that leaves none is refused as full."""
    async with gate(vllm, max_tokens=64, timeout_sec=300) as g:
        little, none, over, long = (g.attempt() for _ in range(4))
        assert (await _fill(little, CONTEXT_LEN - 3)).status == 200
        (call,) = await little.calls()
        assert len(call.response_ids or ()) <= 3
        assert little.report().context_exceeded == (call.finish_reason == "length")
        for attempt, size in ((none, CONTEXT_LEN), (over, CONTEXT_LEN + 1)):
            said = await _fill(attempt, size)
            assert (said.status, said.body["error"]["code"]) == (400, "context_length_exceeded")
            assert attempt.report().context_exceeded
        said = await long.chat([{"role": "user", "content": "word " * 3000}], stream=stream)
        assert (said.status, said.body["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length" in said.body["error"]["message"]


async def test_a_client_that_leaves_frees_the_server(vllm: Server, gate: Gates) -> None:
    def running() -> float:
        lines = [line for line in vllm.text("/metrics").splitlines() if line.startswith("vllm:num_requests_running")]
        return float(lines[0].rpartition(" ")[2])

    async with gate(vllm, max_tokens=1900, timeout_sec=300) as g:
        attempt = g.attempt()
        task = asyncio.create_task(_ask_for_long(g, attempt))
        await until(lambda: running() > 0)
        task.cancel()
        await until(lambda: running() == 0)
        (call,) = await attempt.calls()
    assert (call.end, call.finish_reason) == ("aborted", None)


async def _ask_for_long(g: Gate, attempt: Attempt) -> None:
    await attempt.ask({"prompt": "1 2 3 4 5 6 7 8 9 10 11 12", "stream": True, "stop": None}, "/v1/completions")
