"""The exact command line and environment of ``vllm serve``: from the settings, and from nothing else."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rolloutgen.processes import MARK
from rolloutgen.serving.hardware import data_parallel, gpus_used
from rolloutgen.serving.leavings import server_folder
from rolloutgen.settings import Settings

HOST: Final = "127.0.0.1"
MODEL_KEY: Final = "ROLLOUTGEN_MODEL_KEY"
"""Our environment variable with the server's key; it stands in no file and in no command line."""

_PASSED: Final = frozenset(
    ("HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
)
_PASSED_FAMILIES: Final = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "OPENBLAS_", "TRITON_")
"""What vLLM gets of the caller's environment. Keys of ours never: it reads VLLM_PORT as base of its internal ports."""

_ALWAYS: Final = {
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
_ON_CPU: Final = {
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes a C++ compiler, and minutes
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB; left to itself vLLM takes most of the machine's memory
}


def vllm_bin(settings: Settings) -> Path:
    """The ``vllm`` command: VLLM_BIN, else that of our own environment."""
    return settings.vllm_bin or Path(__file__).resolve().parents[3] / ".venv-vllm" / "bin" / "vllm"


def fresh_seed() -> int:
    """A seed that no launch had before: with vLLM's own, 0, a resumed run would draw the same samples again."""
    return secrets.randbelow(2**31)


def command_line(settings: Settings, port: int, gpus_seen: int, seed: int | None = None) -> list[str]:
    """``vllm serve ...`` for these settings; without ``seed`` a fresh one. VLLM_EXTRA_ARGS come last, so they win."""
    policy = settings.policy
    command = [str(vllm_bin(settings)), "serve", str(policy.model_path)]
    command += ["--served-model-name", policy.served_model_name, "--host", HOST, "--port", str(port)]
    command += ["--tensor-parallel-size", str(settings.gen_tp)]
    command += ["--data-parallel-size", str(data_parallel(settings, gpus_seen))]
    command += ["--max-model-len", str(policy.vllm_max_model_len), "--dtype", policy.vllm_dtype]
    command += ["--enable-prefix-caching", "--enable-chunked-prefill"]
    command += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"]
    command += ["--seed", str(fresh_seed() if seed is None else seed)]
    if gpus_used(settings, gpus_seen):
        command += ["--gpu-memory-utilization", str(policy.gpu_memory_utilization)]
    else:
        command += ["--enforce-eager"]
    if settings.tool_call_parser:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser]
    return [*command, *settings.vllm_extra_args]


def environment(
    settings: Settings, gpus_seen: int, *, key: str = "", launch_id: str = "", caller: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of the server: an allow-list of the caller's, what we decide, then VLLM_ENV."""
    passed = {name: text for name, text in caller.items() if name in _PASSED or name.startswith(_PASSED_FAMILIES)}
    path = f"{vllm_bin(settings).parent}:{caller.get('PATH', os.defpath)}"
    decided = _ALWAYS if gpus_used(settings, gpus_seen) else _ALWAYS | _ON_CPU
    secret = {"VLLM_API_KEY": key} if key else {}
    mark = {MARK: launch_id, "TMPDIR": str(server_folder(launch_id, caller))} if launch_id else {}
    return passed | {"PATH": path} | decided | dict(settings.vllm_env) | secret | mark
