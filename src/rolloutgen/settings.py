"""Every setting of a run: its key, meaning, unit, default and range; read once into a frozen object.

A field's key is its name in upper case. The README's Parameters table is generated from here, and nobody else touches
the environment. Defaults that depend on the choice of a layer stand in ``scripts/templates/`` and nowhere else.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rolloutgen.knobs import (
    Knob,
    choice,
    flag,
    integer,
    json_object,
    knob,
    number,
    optional,
    pairs,
    path,
    text,
    words,
)

SCAFFOLDS: Final[Mapping[str, bool]] = {"shell": True, "oracle": False, "nop": False}
"""Name of every scaffold -> whether it asks a model (with one that does not, no server is started)."""
BACKENDS: Final = ("local",)
EGRESS: Final = ("open", "model-only", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run. Paths are absolute; times are in seconds, sizes in MiB, lengths in tokens."""

    # What is measured
    project_name: str = knob(
        text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "letters, digits, '.', '_', '-' (63 at most)"),
        "name of the project; part of the log's name",
        need="always",
        example="swe-hard",
    )
    exp_name: str | None = knob(
        optional(text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}", "letters, digits, '.', '_', '-'")),
        "name of the run's log",
        default="",
        empty="`<PROJECT_NAME>-<basename of RESULTS_DIR>-<6 hex of its path>`",
    )
    index_file: Path = knob(path, "the base task index (parquet)", need="always", example="/data/train.parquet")
    instances_file: Path | None = knob(
        optional(path),
        "the shard: one instance id a line (`#` comments and blank lines ignored)",
        default="",
        empty="the whole index",
    )
    results_dir: Path = knob(path, "folder of this node's results", need="always", example="/data/run1/node0")
    output_index: Path = knob(
        path, "the filtered index (0 < pass_rate < 1)", need="always", example="/data/run1/node0.parquet"
    )
    n_trials: int = knob(integer(1, 100_000), "trials of each instance", need="always", example="4")
    n_concurrent: int = knob(integer(1, 10_000), "attempts that run at the same time", need="always", example="80")
    pass_threshold: float = knob(number(-1e300), "a reward of at least this is a pass", default="1.0", measures=True)
    attempts_per_trial: int = knob(
        integer(1, 100), "executions of a trial that ends without a verdict, over all launches", default="3"
    )
    retry_exhausted: bool = knob(
        flag, "1: trials that have used up their attempts get ATTEMPTS_PER_TRIAL more in this launch", default="0"
    )
    stall_timeout_sec: float = knob(
        number(1), "the run ends (resumable) when nothing could start for so long", default="1800", unit="s"
    )

    # The policy
    model_path: Path | None = knob(
        path,
        "folder of the model: a base model or a checkpoint; what it holds is part of the fingerprint",
        need="always",
        example="/models/global_step_120_hf",
        scope="model",
    )
    model_setup: Path | None = knob(
        optional(path),
        "a script that makes MODEL_PATH where it is missing; called once with the folder as its argument",
        default="",
        empty="MODEL_PATH must exist",
        scope="model",
    )
    temperature: float | None = knob(
        number(0, 100),
        "sampling temperature of every request",
        need="always",
        example="1.0",
        measures=True,
        scope="model",
    )
    train_temperature: float | None = knob(
        optional(number(0, 100)),
        "training's temperature; one that differs is refused",
        default="",
        empty="not checked",
        scope="model",
    )
    top_p: float = knob(number(0, 1, above=True), "nucleus sampling", default="1.0", measures=True, scope="model")
    top_k: int = knob(integer(-1), "top-k sampling (-1: off)", default="-1", measures=True, scope="model")
    min_p: float = knob(number(0, 1), "min-p sampling (0: off)", default="0.0", measures=True, scope="model")
    max_response_len: int | None = knob(
        integer(1), "tokens of one answer at most", layer="scaffold", unit="tokens", measures=True, scope="model"
    )
    reasoning_effort: str | None = knob(
        optional(text(r"[a-z]{1,20}", "a word in lower case, such as low or high")),
        "reasoning_effort of every request, whatever the scaffold asks",
        default="",
        empty="none is sent",
        measures=True,
        scope="model",
    )
    chat_template_kwargs: Mapping[str, Any] | None = knob(
        optional(json_object),
        "variables of the chat template in every request, whatever the scaffold asks: a JSON object",
        default="",
        empty="none are sent",
        example="'{\"enable_thinking\": false}'",
        measures=True,
        scope="model",
    )
    sampling_passthrough: bool = knob(
        flag,
        "1: the scaffold's own sampling parameters are sent, nothing is pinned; not the policy that will train",
        default="0",
        measures=True,
        scope="model",
    )

    # The model server
    gen_tp: int = knob(integer(1, 64), "vLLM's tensor-parallel size", default="1", scope="model")
    gen_dp: int | None = knob(
        optional(integer(1, 64)),
        "vLLM's data-parallel size inside the node",
        default="",
        empty="GPUS_PER_NODE / GEN_TP, or 1 without GPUs",
        scope="model",
    )
    gpus_per_node: int | None = knob(
        optional(integer(0, 64)),
        "GPUs of the node that the server may use",
        default="",
        empty="those that are seen",
        scope="model",
    )
    vllm_max_model_len: int | None = knob(
        integer(16),
        "context length of the server",
        need="always",
        unit="tokens",
        example="32768",
        measures=True,
        scope="model",
    )
    served_model_name: str = knob(
        text(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", "letters, digits, '.', '_', '/', '-'"),
        "name under which the server offers the model",
        default="policy",
        scope="model",
    )
    vllm_dtype: str | None = knob(
        choice("auto", "bfloat16", "float16", "float32"),
        "data type of weights and activations: `auto` (the checkpoint's own), `bfloat16`, `float16` or `float32`",
        layer="serving",
        measures=True,
        scope="model",
    )
    gpu_memory_utilization: float | None = knob(
        number(0, 1, above=True), "share of each GPU's memory for the server", layer="serving", scope="model"
    )
    tool_call_parser: str | None = knob(
        optional(text(r"[A-Za-z0-9_.-]+", "the name of a vLLM tool-call parser")),
        "vLLM's tool-call parser; with one, automatic tool choice is on",
        default="",
        empty="none",
        measures=True,
        scope="model",
    )
    vllm_extra_args: tuple[str, ...] = knob(
        words, "further arguments of `vllm serve`, quoted as in a shell", default="", measures=True, scope="model"
    )
    vllm_env: Mapping[str, str] = knob(
        pairs("NAME=VALUE"),
        "environment of the server: words NAME=VALUE, quoted as in a shell",
        default="",
        scope="model",
    )
    vllm_port: int | None = knob(
        optional(integer(1024, 65535)),
        "port of the server on 127.0.0.1",
        default="",
        empty="a free port",
        scope="model",
    )
    vllm_bin: Path | None = knob(
        optional(path),
        "an existing `vllm` command",
        default="",
        empty="an environment of our own in `.venv-vllm`",
        scope="model",
    )
    venv_path: Path | None = knob(
        optional(path), "an existing environment with this package's dependencies", default="", empty="our own, `.venv`"
    )
    server_start_timeout_sec: float | None = knob(
        number(1), "the server must be ready after so long", layer="serving", unit="s", scope="model"
    )

    vllm_restarts: int = knob(
        integer(0, 1000), "restarts of a server that died or is stuck, in an hour at most", default="3", scope="model"
    )

    # The gateway between scaffolds and the server
    gateway_host: str | None = knob(
        optional(text(r"[0-9A-Za-z.:_-]{1,255}", "an address or a host name")),
        "address at which the gateway listens, and that sandboxes are given",
        default="",
        empty="127.0.0.1",
        scope="model",
    )
    gateway_port: int | None = knob(
        optional(integer(1024, 65535)), "port of the gateway", default="", empty="a free port", scope="model"
    )
    gateway_hold_sec: float | None = knob(
        number(0),
        "a call waits so long at most while the server is down, restarts or fails; then it has failed",
        layer="serving",
        unit="s",
        scope="model",
    )
    gateway_max_inflight: int | None = knob(
        integer(1, 100_000),
        "calls at one time at each engine of the server (GEN_DP); more wait in the gateway, fairly between trials",
        layer="serving",
        scope="model",
    )
    heartbeat_sec: float | None = knob(
        number(1),
        "a server is stuck that leaves a one-token request unanswered for so long, and gives nobody a token meanwhile",
        layer="serving",
        unit="s",
        scope="model",
    )
    record_token_ids: bool = knob(
        flag, "1: transcripts hold the token ids of prompts and answers", default="1", scope="model"
    )
    record_logprobs: bool = knob(
        flag, "1: transcripts hold the log-probability of every sampled token", default="0", scope="model"
    )
    tool_canary: str = knob(
        choice("fatal", "warn"),
        "what it means that the model calls no tool in the check before a run: `fatal` or `warn`",
        default="fatal",
        scope="model",
    )

    # The scaffold
    scaffold: str = knob(
        choice(*SCAFFOLDS),
        "the agent program that drives the model: `shell`; `oracle` and `nop` check the tasks, without a model",
        need="always",
        example="shell",
        measures=True,
    )
    max_turns: int | None = knob(
        integer(1, 10_000), "model calls of one attempt at most", layer="scaffold", measures=True, scope="model"
    )
    agent_timeout_sec: float | None = knob(
        optional(number(1)), "time limit of the agent", default="", empty="the task's own", unit="s", measures=True
    )
    verifier_timeout_sec: float | None = knob(
        optional(number(1)), "time limit of the verifier", default="", empty="the task's own", unit="s", measures=True
    )
    model_call_timeout_sec: float | None = knob(
        number(1),
        "one try of a model call has failed that brings nothing for so long; it is sent again",
        layer="scaffold",
        unit="s",
        scope="model",
    )

    # The sandboxes
    backend: str = knob(choice(*BACKENDS), "where sandboxes run", need="always", example="local")
    local_images: Mapping[str, str] = knob(
        pairs("IMAGE=FOLDER or IMAGE=host ('*' for every image)"),
        "BACKEND=local: which unpacked folder serves for which image; `*=host`: the machine's own root for all",
        default="",
        example="'*=host'",
        measures=True,
    )
    sandbox_egress: str = knob(
        choice(*EGRESS),
        "what sandboxes may reach at most: `open`, `model-only` or `none`",
        layer="backend",
        measures=True,
    )
    sandbox_cpu: float | None = knob(
        optional(number(0, above=True)), "cores of a sandbox", default="", empty="the task's own", measures=True
    )
    sandbox_memory_mb: int | None = knob(
        optional(integer(16)), "memory of a sandbox", default="", empty="the task's own", unit="MiB", measures=True
    )
    sandbox_start_timeout_sec: float = knob(
        number(1), "a sandbox must be ready after so long", layer="backend", unit="s"
    )
    exec_output_max_mb: int = knob(
        integer(1, 1024), "output kept of one command (head and tail)", layer="backend", unit="MiB", measures=True
    )

    @property
    def uses_model(self) -> bool:
        return SCAFFOLDS[self.scaffold]

    @property
    def policy(self) -> "Policy":
        """The settings of the model that is asked; only for scaffolds that ask one."""
        return Policy(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Policy)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What every run that asks a model has; meanings and units as in Settings."""

    model_path: Path
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_response_len: int
    max_turns: int
    model_call_timeout_sec: float
    vllm_max_model_len: int
    served_model_name: str
    vllm_dtype: str
    gpu_memory_utilization: float
    server_start_timeout_sec: float
    reasoning_effort: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    sampling_passthrough: bool
    gateway_hold_sec: float
    gateway_max_inflight: int
    heartbeat_sec: float


KNOBS: Final[Mapping[str, Knob]] = {
    field.name.upper(): field.metadata["knob"] for field in dataclasses.fields(Settings)
}
"""Key -> its declaration, in the order of the Parameters table."""
