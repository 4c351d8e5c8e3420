"""The command line and the environment of the server."""

import shlex
from pathlib import Path

import pytest

from rolloutgen.serving import command_line, data_parallel, vllm_bin
from rolloutgen.serving.command import environment
from rolloutgen.serving.hardware import visible
from texts import make_settings


def value(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_command_line_comes_from_the_settings() -> None:
    """A14, A13: what is served and how; vLLM's own sampling defaults are off."""
    settings = make_settings(
        VLLM_BIN="/opt/vllm",
        MODEL_PATH="/models/m",
        GEN_TP="2",
        GPUS_PER_NODE="8",
        SERVED_MODEL_NAME="p",
        TOOL_CALL_PARSER="hermes",
        VLLM_EXTRA_ARGS="--max-num-seqs 7 --hf-overrides '{\"a\": 1}'",
    )
    command = command_line(settings, 21_000, 8, seed=5)
    assert command[:3] == ["/opt/vllm", "serve", "/models/m"]
    assert {
        name: value(command, name)
        for name in command
        if name.startswith("--") and not name.startswith("--enable") and name != "--hf-overrides"
    } == {
        "--served-model-name": "p",
        "--host": "127.0.0.1",
        "--port": "21000",
        "--tensor-parallel-size": "2",
        "--data-parallel-size": "4",
        "--max-model-len": "2048",
        "--dtype": "auto",
        "--gpu-memory-utilization": "0.9",
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        "--seed": "5",
        "--tool-call-parser": "hermes",
        "--max-num-seqs": "7",
    }
    switches = {"--enable-prefix-caching", "--enable-chunked-prefill", "--enable-auto-tool-choice"}
    assert switches == {name for name in command if name.startswith("--enable")}
    assert command[-4:] == ["--max-num-seqs", "7", "--hf-overrides", '{"a": 1}']


def test_without_a_gpu_it_is_told_to_run_on_the_cpu() -> None:
    command = command_line(make_settings(), 21_000, 0)
    assert "--gpu-memory-utilization" not in command
    assert "--enforce-eager" in command
    assert "--tool-call-parser" not in command


def test_every_launch_samples_with_a_seed_of_its_own() -> None:
    """A resumed run must not draw the samples of the one before."""
    seeds = {value(command_line(make_settings(), 1, 0), "--seed") for _ in range(5)}
    assert len(seeds) == 5


@pytest.mark.parametrize(
    ("texts", "seen", "replicas"),
    [
        ({"GEN_TP": "2"}, 8, 4),
        ({"GEN_TP": "3"}, 8, 2),
        ({"GEN_TP": "2", "GPUS_PER_NODE": "4"}, 8, 2),
        ({"GEN_TP": "2", "GEN_DP": "1"}, 8, 1),
        ({"GEN_TP": "4"}, 0, 1),
        ({"GPUS_PER_NODE": "0"}, 8, 1),
    ],
)
def test_one_server_fills_the_node(texts: dict[str, str], seen: int, replicas: int) -> None:
    """A14"""
    assert data_parallel(make_settings(**texts), seen) == replicas


@pytest.mark.parametrize(
    ("devices", "left"), [(None, 8), ("0,1,2,3", 4), ("GPU-8f, GPU-9a", 2), ("", 0), ("-1", 0), ("0,-1,2", 1)]
)
def test_a_part_of_the_node_is_filled_where_the_caller_was_given_a_part(devices: str | None, left: int) -> None:
    """A14: a batch system hands out GPUs by CUDA_VISIBLE_DEVICES, which nvidia-smi does not look at."""
    assert visible(8, devices) == left


def test_ours_is_used_where_none_is_named(repository: Path) -> None:
    assert vllm_bin(make_settings()) == repository / ".venv-vllm" / "bin" / "vllm"


def test_the_environment_is_an_allow_list() -> None:
    """A28: nothing reports home, no dashboard, no key of ours, and VLLM_PORT least of all (vLLM reads it otherwise)."""
    caller = {
        "PATH": "/usr/bin",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "1",
        "VLLM_PORT": "8000",
        "VLLM_CONFIG_ROOT": "/elsewhere",
        "MODEL_PATH": "/models/m",
        "WANDB_API_KEY": "w",
        "OPENAI_API_KEY": "o",
        "ROLLOUTGEN_MODEL_KEY": "k",
        "PYTHONPATH": "/src",
    }
    made = environment(make_settings(VLLM_BIN="/opt/bin/vllm"), 1, key="k", launch_id="l", caller=caller)
    assert made == {
        "PATH": "/opt/bin:/usr/bin",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_API_KEY": "k",
        "ROLLOUTGEN_LAUNCH": "l",
        "TMPDIR": "/tmp/rolloutgen-l/vllm",
    }


def test_vllm_env_has_the_last_word_but_for_our_key_and_mark() -> None:
    wanted = {"VLLM_CPU_KVCACHE_SPACE": "9", "VLLM_API_KEY": "mine", "OMP_NUM_THREADS": "1", "A B": "c d"}
    words = " ".join(shlex.quote(f"{name}={text}") for name, text in wanted.items())
    made = environment(make_settings(VLLM_ENV=words), 0, key="k", launch_id="l", caller={})
    assert made["VLLM_CPU_KVCACHE_SPACE"] == "9"
    assert made["OMP_NUM_THREADS"] == "1"
    assert made["VLLM_API_KEY"] == "k"
    assert made["TORCHDYNAMO_DISABLE"] == "1"
