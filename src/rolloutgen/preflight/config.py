"""Checks of the settings against each other: arithmetic and paths. Types and ranges are checked where keys are read."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rolloutgen.config import repository
from rolloutgen.errors import Finding
from rolloutgen.forecast import nearest_existing
from rolloutgen.paths import RESERVED
from rolloutgen.preflight.check import Check, Context, fatal, ok, warn


def _temperature(context: Context) -> Iterator[Finding]:
    """A13: the index holds at training's temperature only."""
    ours, training = context.settings.temperature, context.settings.train_temperature
    if context.settings.sampling_passthrough:
        return  # it is not sent
    if training is None:
        yield ok("TEMPERATURE", f"{ours:g}; TRAIN_TEMPERATURE is not set, so nothing compares it with training's")
    elif ours != training:
        yield fatal(
            "TEMPERATURE",
            f"is {ours:g}, but TRAIN_TEMPERATURE is {training:g}: the filtered index would not hold for training",
            "measure at training's temperature",
        )
    else:
        yield ok("TEMPERATURE", f"{ours:g}, as in training")


def _response_len(context: Context) -> Iterator[Finding]:
    """C8: an answer must fit into the context, with room for a prompt."""
    answer, context_len = context.settings.max_response_len, context.settings.vllm_max_model_len
    assert answer is not None
    assert context_len is not None
    if answer >= context_len:
        yield fatal(
            "MAX_RESPONSE_LEN",
            f"is {answer}, not below VLLM_MAX_MODEL_LEN={context_len}: no prompt would fit",
            "lower MAX_RESPONSE_LEN, or raise VLLM_MAX_MODEL_LEN",
        )
    else:
        yield ok("MAX_RESPONSE_LEN", f"{answer}, leaves {context_len - answer} tokens for the prompt")


def _output_index(context: Context) -> Iterator[Finding]:
    output, results = context.settings.output_index, context.settings.results_dir
    problem = _output_problem(context, output.resolve(), results.resolve())
    if problem:
        yield fatal("OUTPUT_INDEX", f"{output} {problem}", "name a file of its own, beside RESULTS_DIR")
        return
    if output.suffix != ".parquet":
        yield warn("OUTPUT_INDEX", f"{output} does not end with .parquet, which it will be")
    yield _writable("OUTPUT_INDEX", output.parent)


def _output_problem(context: Context, output: Path, results: Path) -> str:
    for key in ("index_file", "instances_file"):
        other = getattr(context.settings, key)
        if other is not None and other.resolve() == output:
            return f"is {key.upper()} too, and would be overwritten"
    if output.is_dir():
        return "is a folder"
    if output == results or output in results.parents:
        return "is RESULTS_DIR or lies above it"
    if results in output.parents and (output.parent != results or output.name in RESERVED):
        return "lies where the results of instances stand"
    return ""


_OURS: Final = ("src", "scripts", "tests", ".git", ".venv", ".venv-vllm")


def _results_dir(context: Context) -> Iterator[Finding]:
    results, repo = context.settings.results_dir, repository().resolve()
    where = results.resolve()
    if where in (repo, *repo.parents) or any((repo / name) in (where, *where.parents) for name in _OURS):
        yield fatal("RESULTS_DIR", f"{results} is a folder of this program or above it", "name a folder of its own")
    elif results.exists() and not results.is_dir():
        yield fatal("RESULTS_DIR", f"{results} is not a folder", "name a folder")
    else:
        yield _writable("RESULTS_DIR", results)


def _writable(key: str, folder: Path) -> Finding:
    """Nothing is written: the nearest parent that exists is asked."""
    nearest = nearest_existing(folder)
    if not nearest.is_dir():
        return fatal(key, f"{nearest} is not a folder, so {folder} cannot be made", "name another place")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return fatal(key, f"{nearest} cannot be written to by this user", "mend its permissions, or name another place")
    return ok(key, f"{folder} can be written to" if nearest == folder else f"{folder} will be made")


CHECKS: Final = (
    Check("TEMPERATURE", _temperature, ("TEMPERATURE", "TRAIN_TEMPERATURE", "SAMPLING_PASSTHROUGH"), model=True),
    Check("MAX_RESPONSE_LEN", _response_len, ("MAX_RESPONSE_LEN", "VLLM_MAX_MODEL_LEN"), model=True),
    Check("RESULTS_DIR", _results_dir, ("RESULTS_DIR",)),
    Check("OUTPUT_INDEX", _output_index, ("OUTPUT_INDEX", "RESULTS_DIR", "INDEX_FILE", "INSTANCES_FILE")),
)
