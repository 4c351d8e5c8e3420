"""Checks of MODEL_PATH: is it whole, and do the settings of the server fit it?"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rolloutgen.errors import Finding
from rolloutgen.preflight.check import Check, Context, fatal, first_names, ok, warn
from rolloutgen.settings import Settings

_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_WEIGHT_INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "*.tiktoken", "tekken.json")
_LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_MADE_OF_ITSELF: Final = frozenset({"default", "llama3", "longrope", "su", "mrope", "dynamic_alpha"})
"""Kinds of rope scaling whose factor is in the model's maximum already."""


def _files(context: Context) -> Iterator[Finding]:
    """config.json, weights (every shard that the weight index names) and a tokenizer."""
    settings = context.settings
    folder = settings.model_path
    assert folder is not None
    if not folder.is_dir():
        yield _missing(settings, folder)
        return
    problems = [*_config_problems(folder), *_weight_problems(folder)]
    if not any(_any_file(folder, pattern) for pattern in _TOKENIZERS):
        problems.append(f"no tokenizer ({', '.join(_TOKENIZERS)})")
    for problem in problems:
        yield fatal("MODEL_PATH", f"{folder}: {problem}", "name the folder of a whole model (Hugging Face layout)")
    if not problems:
        yield ok("MODEL_PATH", f"{folder} holds config.json, weights and a tokenizer")


def _missing(settings: Settings, folder: Path) -> Finding:
    setup = settings.model_setup
    if setup is None:
        return fatal("MODEL_PATH", f"{folder} is not a folder", "name the folder of a model or a checkpoint")
    if not setup.is_file():
        return fatal("MODEL_SETUP", f"{setup} is not a file, and MODEL_PATH {folder} is missing", "name the script")
    return ok("MODEL_PATH", f"{folder} is missing and will be made by {setup}")


def _any_file(folder: Path, pattern: str) -> bool:
    return any(path.is_file() and path.stat().st_size > 0 for path in folder.glob(pattern))


def _config_problems(folder: Path) -> Iterator[str]:
    try:
        _model_config(folder)
    except OSError as error:
        yield f"config.json cannot be read ({error.strerror})"
    except ValueError as error:
        yield f"config.json is not a JSON object ({error})"


def _weight_problems(folder: Path) -> Iterator[str]:
    index = next((folder / name for name in _WEIGHT_INDEXES if (folder / name).is_file()), None)
    if index is None:
        if not any(_any_file(folder, pattern) for pattern in _WEIGHTS):
            yield f"no weights ({', '.join(_WEIGHTS)})"
        return
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        yield f"{index.name} cannot be read ({error})"
        return
    missing = [name for name in shards if not _any_file(folder, name)]
    if missing:
        counts = f"{len(missing)} of {len(shards)} weight files of {index.name}"
        yield f"{counts} are missing or empty: {first_names(missing)}"


def _model_config(folder: Path) -> Mapping[str, Any]:
    """config.json. Raises OSError or ValueError."""
    config = json.loads((folder / "config.json").read_bytes())
    if not isinstance(config, dict):
        raise ValueError("it holds something else")  # noqa: TRY004  # as a broken JSON text
    return config


def _known_config(context: Context) -> Mapping[str, Any] | None:
    """The part of config.json that describes the text model; None where ``_files`` reports what is wrong."""
    try:
        config = _model_config(context.settings.model_path or Path())
    except (OSError, ValueError):
        return None
    inner = next((config[name] for name in ("text_config", "llm_config") if isinstance(config.get(name), dict)), None)
    return config if inner is None else {**config, **inner}


def _heads(context: Context) -> Iterator[Finding]:
    config = _known_config(context)
    heads = None if config is None else config.get("num_attention_heads", config.get("n_head"))
    if not isinstance(heads, int):
        return
    if heads % context.settings.gen_tp:
        yield fatal(
            "GEN_TP",
            f"is {context.settings.gen_tp}, which does not divide the model's {heads} attention heads",
            f"choose one of {', '.join(str(n) for n in range(1, heads + 1) if heads % n == 0)}",
        )
    else:
        yield ok("GEN_TP", f"{context.settings.gen_tp} divides the model's {heads} attention heads")


def _length(context: Context) -> Iterator[Finding]:
    config = _known_config(context)
    limit = None if config is None else max_length(config)
    wanted = context.settings.vllm_max_model_len
    assert wanted is not None
    if limit is None:
        return
    if wanted <= limit:
        yield ok("VLLM_MAX_MODEL_LEN", f"{wanted}, within the model's {limit}")
    elif context.settings.vllm_env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        yield warn("VLLM_MAX_MODEL_LEN", f"is {wanted}, above the model's {limit}, as VLLM_ENV allows")
    else:
        yield fatal("VLLM_MAX_MODEL_LEN", f"is {wanted}, above the model's maximum of {limit}", f"set {limit} or less")


def max_length(config: Mapping[str, Any]) -> int | None:
    """The longest context in tokens that a config.json promises, its rope scaling considered; None: it says nothing."""
    lengths = [int(config[name]) for name in _LENGTHS if isinstance(config.get(name), int)]
    if not lengths:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict) or not isinstance(rope.get("factor"), int | float):
        return min(lengths)
    if rope.get("rope_type", rope.get("type")) in _MADE_OF_ITSELF:
        return min(lengths)
    start = rope.get("original_max_position_embeddings") or min(lengths)
    return math.floor(float(start) * float(rope["factor"]))


CHECKS: Final = (
    Check("MODEL_PATH", _files, ("MODEL_PATH", "MODEL_SETUP"), model=True, work=True),
    Check("GEN_TP", _heads, ("MODEL_PATH", "GEN_TP"), model=True, work=True),
    Check("VLLM_MAX_MODEL_LEN", _length, ("MODEL_PATH", "VLLM_MAX_MODEL_LEN", "VLLM_ENV"), model=True, work=True),
)
