"""Our prompts are vLLM's own for the same requests: /v1/messages/render beside /v1/chat/completions/render of to_chat.

``vllm launch render`` is the real server without a model's weights: its chat templates, parsers and tokenizer. The
small model's own template knows no tools, so one is given that shows everything.
"""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from real_jobs import MODEL, VLLM, need_real_parts
from rolloutgen.gateway.anthropic import INLINE_SYSTEM_PROBE, error_body, from_tokenize, to_chat, to_tokenize
from rolloutgen.serving.ports import free_port

from .conversations import DIFFERENT, SAME, TURNS, request, user

pytestmark = pytest.mark.slow
FAKES = Path(__file__).resolve().parents[2] / "fakes"
TEMPLATE = FAKES / "tools_template.jinja"
READY_SEC = 300
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@dataclass(frozen=True)
class Renderer:
    base_url: str

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.base_url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ids(self, path: str, body: Mapping[str, Any]) -> list[int]:
        status, answer = self.post(path, body)
        assert status == 200, answer
        ids: list[int] = answer["token_ids"]
        return ids

    def theirs(self, body: Mapping[str, Any]) -> list[int]:
        return self.ids("/v1/messages/render", body)

    def ours(self, body: Mapping[str, Any], *, system_first: bool = False) -> list[int]:
        return self.ids("/v1/chat/completions/render", to_chat(body, system_first=system_first))

    def text(self, ids: list[int]) -> str:
        return str(self.post("/detokenize", {"model": "policy", "tokens": ids})[1]["prompt"])

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base_url}/health", timeout=5):
                return True
        except OSError:
            return False


def rendering(template: Path, log: Path) -> Iterator[Renderer]:
    need_real_parts()
    port = free_port()
    command = [str(VLLM), "launch", "render", str(MODEL), "--served-model-name", "policy", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--max-model-len", "2048", "--chat-template", str(template)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    apart = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with log.open("wb") as out, subprocess.Popen(command, env=os.environ | apart, stdout=out, stderr=out) as process:
        renderer, deadline = Renderer(f"http://127.0.0.1:{port}"), time.monotonic() + READY_SEC
        try:
            while not renderer.answers():
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.5)
            yield renderer
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Renderer]:
    yield from rendering(TEMPLATE, tmp_path_factory.mktemp("render") / "log")


@pytest.fixture(scope="module")
def strict_renderer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Renderer]:
    """One whose template wants one system message, at the beginning, as Qwen's do."""
    folder = tmp_path_factory.mktemp("strict")
    guard = "{% for m in messages[1:] if m.role == 'system' %}{{ raise_exception('System comes first.') }}{% endfor %}"
    template = folder / "template.jinja"
    template.write_text(guard + TEMPLATE.read_text())
    yield from rendering(template, folder / "log")


def test_prompts_are_vllms_own(renderer: Renderer) -> None:
    for name, body in SAME.items():
        ours, theirs = renderer.ours(body), renderer.theirs(body)
        assert ours == theirs, (name, renderer.text(ours), renderer.text(theirs))


def test_prompts_show_what_was_said(renderer: Renderer) -> None:
    """The template prints it all, so that the comparison is worth something."""
    prompt = renderer.text(renderer.ours(SAME["several turns with tools and thoughts"]))
    for said in (
        "You work.",
        '"$schema"',
        "<think>two files</think>",
        '<tool_call id="toolu_3">',
        "[toolu_1] a.py\nb.py",
    ):
        assert said in prompt
    assert len({tuple(renderer.ours(body)) for body in SAME.values()}) > len(SAME) / 2


def test_where_vllms_own_has_a_fault_ours_differs(renderer: Renderer) -> None:
    for name, (body, meant) in DIFFERENT.items():
        ours = renderer.ours(body)
        assert ours != renderer.theirs(body), f"no difference any more: {name}"
        assert ours == renderer.theirs(meant), name


def test_tokens_are_counted_as_they_are_rendered(renderer: Renderer) -> None:
    """Effort is not counted: /tokenize knows none, and the gateway's own stands in chat_template_kwargs."""
    for name, body in SAME.items():
        if body.get("thinking") != {"type": "disabled"}:
            status, answer = renderer.post("/tokenize", to_tokenize(body))
            assert status == 200, answer
            assert from_tokenize(answer) == {"input_tokens": len(renderer.ours(body))}, name


def test_a_full_context_is_told_in_anthropics_words(renderer: Renderer) -> None:
    """Both of vLLM's wordings: tokens counted, and text too long to count."""
    for times in (3_000, 300_000):
        status, answer = renderer.post("/v1/chat/completions/render", to_chat(request(user("a b " * times))))
        error = error_body(status, answer["error"]["message"])["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith("prompt is too long: This model's maximum context length is 2048")


def test_an_image_is_refused_in_words_that_claude_code_knows(renderer: Renderer) -> None:
    pixel = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    status, answer = renderer.post("/v1/chat/completions/render", to_chat(request(user([pixel]))))
    assert status == 400
    assert error_body(status, answer["error"]["message"])["error"]["message"].startswith("could not process image: ")


def test_a_template_that_wants_system_first(renderer: Renderer, strict_renderer: Renderer) -> None:
    """The probe tells such templates; the rest is as with any other."""
    probe = INLINE_SYSTEM_PROBE | {"model": "policy"}
    assert renderer.post("/tokenize", probe)[0] == 200
    assert strict_renderer.post("/tokenize", probe)[0] == 400
    for plain in (SAME["one turn"], request(*TURNS, system="You work.")):
        assert strict_renderer.ours(plain, system_first=True) == renderer.theirs(plain)
