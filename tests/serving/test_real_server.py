"""The real vLLM with the real small model: it starts, serves, is restarted, and leaves nothing however it ends."""

import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from driving import until
from rolloutgen.processes import Process, belongings, end_all
from rolloutgen.serving.record import ServerRecord

from .conftest import KEY, Serving

pytestmark = pytest.mark.slow
Start = Callable[..., Serving]


@pytest.fixture
def launch(start: Start, real_vllm: Path, real_model: Path) -> Start:
    """Starts the real server, with settings by key, and waits until it is ready."""

    def launch_one(**texts: str) -> tuple[Serving, ServerRecord]:
        texts = {"VLLM_ENV": "VLLM_CPU_KVCACHE_SPACE=1"} | texts
        serving = start(VLLM_BIN=str(real_vllm), MODEL_PATH=str(real_model), **texts)
        return serving, serving.record("ready", 500)

    return launch_one


@pytest.fixture
def ready(launch: Start) -> tuple[Serving, ServerRecord]:
    return launch()


def engine_of(record: ServerRecord) -> Process:
    (engine,) = [one for one in record.members if b"EngineCore" in Path(f"/proc/{one.pid}/cmdline").read_bytes()]
    return engine


def chat(record: ServerRecord, temperature: float) -> str:
    body = {
        "model": record.model_name,
        "messages": [{"role": "user", "content": "Write one shell command that lists the files in /tmp."}],
        "max_tokens": 40,
        "temperature": temperature,
    }
    request = urllib.request.Request(
        f"{record.base_url}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def test_it_serves_and_term_leaves_nothing(ready: tuple[Serving, ServerRecord]) -> None:
    """A13, A14: sensible text; temperature counts."""
    serving, record = ready
    assert "ls" in chat(record, 0)
    assert len({chat(record, 1.0) for _ in range(4)}) > 1
    assert serving.traces()
    serving.process.terminate()
    assert serving.wait() == 0
    assert serving.left() == []
    assert serving.traces() == []


def test_death_of_its_parent_process_leaves_nothing(launch: Start) -> None:
    serving, record = launch(VLLM_RESTARTS="0")
    assert record.vllm is not None
    record.vllm.signal(signal.SIGKILL)
    assert "SIGKILL" in serving.record("failed").message
    assert serving.wait() == 1
    assert serving.left() == []
    assert serving.traces() == []


def test_kill_9_of_its_engine_brings_another_server_with_other_samples(ready: tuple[Serving, ServerRecord]) -> None:
    """The same requests after the same start: with vLLM's own seed, 0, the answers would be the same, too."""
    serving, first = ready
    samples = [chat(first, 1.0) for _ in range(3)]
    engine_of(first).signal(signal.SIGKILL)
    second = serving.restarted(1, 500)
    assert not [member for member in first.members if member.alive()]
    assert second.seed != first.seed
    assert second.base_url == first.base_url
    assert [chat(second, 1.0) for _ in range(3)] != samples
    until(lambda: "the model server is ready again after " in serving.said, "it says so")
    serving.process.terminate()
    assert serving.wait() == 0
    assert serving.left() == []
    assert serving.traces() == []


def test_a_server_that_outlives_its_engine_is_restarted(launch: Start) -> None:
    """It answers 500 for ever."""
    serving, first = launch(VLLM_ENV="'VLLM_CPU_KVCACHE_SPACE=1' 'VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1'")
    engine_of(first).signal(signal.SIGKILL)
    assert "ls" in chat(serving.restarted(1, 500), 0)
    assert "the model server's engine died" in serving.said


async def test_after_sigkill_of_serve_and_parent_the_engine_is_proven_ours(
    ready: tuple[Serving, ServerRecord],
) -> None:
    """A29: EngineCore and workers show no mark after they set their title."""
    serving, record = ready
    assert record.vllm is not None
    os.kill(serving.process.pid, signal.SIGSTOP)
    record.vllm.signal(signal.SIGKILL)
    serving.process.kill()
    serving.process.wait()
    assert await end_all(belongings(serving.folder.name, [record.vllm], record.members), 1) == []
    assert serving.left() == []


def test_sigkill_of_serve_alone_leaves_nothing(ready: tuple[Serving, ServerRecord]) -> None:
    """The kernel tells vLLM of its parent's death, and vLLM ends its engine itself."""
    serving, record = ready
    serving.process.kill()
    serving.process.wait()
    assert len(record.members) > 2
    serving.wait_until_nothing_is_left()


def test_a_model_it_cannot_serve_is_told_in_its_words(start: Start, real_vllm: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["NobodysForCausalLM"], "model_type": "llama"}))
    serving = start(VLLM_BIN=str(real_vllm), MODEL_PATH=str(model))
    record = serving.record("failed", 300)
    assert "status 1" in record.message
    assert "Error" in record.message
    assert record.evidence
    assert serving.wait() == 1
