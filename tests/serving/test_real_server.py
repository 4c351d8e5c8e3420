"""The real vLLM with the real small model: it starts, serves, and leaves nothing however it ends."""

import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutgen.processes import belongings, end_all
from rolloutgen.serving.record import ServerRecord

from .conftest import KEY, Serving

pytestmark = pytest.mark.slow
Start = Callable[..., Serving]


@pytest.fixture
def ready(start: Start, real_vllm: Path, real_model: Path) -> tuple[Serving, ServerRecord]:
    serving = start(VLLM_BIN=str(real_vllm), MODEL_PATH=str(real_model), VLLM_ENV="VLLM_CPU_KVCACHE_SPACE=1")
    return serving, serving.record("ready", 500)


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


def test_death_of_its_parent_process_leaves_nothing(ready: tuple[Serving, ServerRecord]) -> None:
    serving, record = ready
    assert record.vllm is not None
    record.vllm.signal(signal.SIGKILL)
    assert "SIGKILL" in serving.record("failed").message
    assert serving.wait() == 1
    assert serving.left() == []
    assert serving.traces() == []


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
