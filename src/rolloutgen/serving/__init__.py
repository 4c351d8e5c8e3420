"""The model server: vLLM as a command, in an environment of its own; nothing here imports it."""

from rolloutgen.serving.command import MODEL_KEY, command_line, fresh_seed, vllm_bin
from rolloutgen.serving.hardware import data_parallel, gpus_seen, gpus_used
from rolloutgen.serving.installed import check_command_line, vllm_python, vllm_version
from rolloutgen.serving.record import ServerRecord

__all__ = [
    "MODEL_KEY",
    "ServerRecord",
    "check_command_line",
    "command_line",
    "data_parallel",
    "fresh_seed",
    "gpus_seen",
    "gpus_used",
    "serve",
    "vllm_bin",
    "vllm_python",
    "vllm_version",
]
