"""What was measured, with what: the run's fingerprint and run.json.

A resume whose fingerprint differs is refused by the names of its keys.
"""

import datetime as dt
import importlib.metadata
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from rolloutgen.errors import StoreError
from rolloutgen.masking import MASK, is_secret, masked_words
from rolloutgen.models import SCHEMA_VERSION
from rolloutgen.results.digests import model_digest, named_digests, task_digest
from rolloutgen.results.durable import replace
from rolloutgen.results.records import plain
from rolloutgen.scaffold import PINS_VERSION, VERSIONS
from rolloutgen.settings import KNOBS, Settings

__all__ = ["RunFile", "compare", "fingerprint", "model_digest", "read_run", "task_digest", "write_run"]


@dataclass(frozen=True, slots=True)
class RunFile:
    """What run.json says: the identity of the run in this RESULTS_DIR."""

    run_id: str
    fingerprint: Mapping[str, Any]


_VLLM: Final = "vllm version"
_MODEL_FILE: Final = "MODEL_PATH/"


def fingerprint(settings: Settings, vllm_version: str | None) -> dict[str, Any]:
    """Key -> plain value of all that changes the measurement (``vllm_version``: None where no model is asked).

    Raises StoreError where the model cannot be read.
    """
    found = configured(settings)
    if settings.uses_model and settings.model_path is not None:
        found[_VLLM] = vllm_version
        found |= {f"{_MODEL_FILE}{name}": digest for name, digest in model_digest(settings.model_path).items()}
    return found


def configured(settings: Settings) -> dict[str, Any]:
    """The part of a fingerprint that neither vLLM nor the model is needed for.

    Harbor's own scaffolds have Harbor's version. Raises StoreError where a file that vLLM is to read cannot be read.
    """
    used = {key: k for key, k in KNOBS.items() if k.measures and (settings.uses_model or k.scope != "model")}
    found: dict[str, Any] = {key: plain(_masked(key, getattr(settings, key.lower()))) for key in used}
    found["harbor version"] = importlib.metadata.version("harbor")
    found["scaffold version"] = VERSIONS.get(settings.scaffold, found["harbor version"])
    if settings.uses_model:
        found["gateway version"] = PINS_VERSION
        found |= {f"VLLM_EXTRA_ARGS {name}": digest for name, digest in _named_files(settings).items()}
    return found


def _named_files(settings: Settings) -> dict[str, str]:
    """Digests of the files that vLLM's arguments name, such as a chat template; those of secrets are left alone."""
    words = settings.vllm_extra_args
    return named_digests(word for word, shown in zip(words, masked_words(words), strict=True) if MASK not in shown)


def without_model(found: Mapping[str, Any]) -> dict[str, Any]:
    """The part of ``found`` that ``configured`` tells."""
    return {key: value for key, value in found.items() if key != _VLLM and not key.startswith(_MODEL_FILE)}


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line a key that differs, ready for people: ``KEY: was OLD, is NEW``; empty: the same measurement."""
    missing = "absent"
    keys = sorted(old.keys() | new.keys())
    return [f"{k}: was {old.get(k, missing)!r}, is {new.get(k, missing)!r}" for k in keys if old.get(k) != new.get(k)]


def write_run(path: Path, settings: Settings, found: Mapping[str, Any]) -> RunFile:
    """A new run.json with a new run id. Raises StoreError."""
    run = RunFile(secrets.token_hex(6), dict(found))
    content = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "created_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "fingerprint": run.fingerprint,
        "settings": {key: plain(_masked(key, getattr(settings, key.lower()))) for key in KNOBS},
    }
    replace(path, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return run


def read_run(path: Path) -> RunFile | None:
    """None: there is none. Raises StoreError where it cannot be read: nobody knows then what was measured."""
    try:
        raw = orjson.loads(path.read_bytes())
        run_id, found = raw["run_id"], raw["fingerprint"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{path} is not a run file: {error!r}") from error
    if not (isinstance(run_id, str) and run_id and isinstance(found, dict)):
        raise StoreError(f"{path} is not a run file: run_id or fingerprint is not what it should be")
    return RunFile(run_id, found)


def _masked(key: str, value: object) -> object:
    """``value`` without secrets, of the two keys that may carry some."""
    if key == "VLLM_ENV" and isinstance(value, Mapping):
        return {name: MASK if is_secret(name) else text for name, text in value.items()}
    if key == "VLLM_EXTRA_ARGS" and isinstance(value, tuple):
        return list(masked_words(value))
    return value
