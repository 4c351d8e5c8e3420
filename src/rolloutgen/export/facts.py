"""What a row says beside what was said: whose it is, how it ended, which policy it was."""

import hashlib
from pathlib import Path
from typing import Final

import orjson

from rolloutgen.export.rows import Row, plain_text
from rolloutgen.models import Instance
from rolloutgen.results.fingerprint import RunFile
from rolloutgen.results.records import Record
from rolloutgen.settings import KNOBS

_MODEL_FILE: Final = "MODEL_PATH/"
_POLICY: Final = frozenset({"vllm version", "gateway version"})
_NOT_POLICY: Final = frozenset({"MAX_TURNS"})


def trial_facts(instance: Instance, record: Record) -> Row:
    return {
        "instance_id": plain_text(instance.instance_id),
        "trial": record.trial,
        "attempt": record.attempt or 1,
        "reward": record.reward or 0.0,
        "result": str(record.result),
        "flags": record.flags,
    }


def run_facts(run: RunFile, path: Path) -> dict[str, str]:
    """Of run.json at ``path``."""
    try:
        model = Path(str(orjson.loads(path.read_bytes())["settings"]["MODEL_PATH"])).name
    except (OSError, ValueError, LookupError, TypeError):
        model = ""
    makes = {key: value for key, value in run.fingerprint.items() if _makes_policy(key)}
    digest = hashlib.sha256(orjson.dumps(makes, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return {"run_id": run.run_id, "model": plain_text(model), "policy": digest[:16]}


def _makes_policy(key: str) -> bool:
    knob = KNOBS.get(key)
    if knob is not None:
        return knob.scope == "model" and key not in _NOT_POLICY
    return key in _POLICY or key.startswith(_MODEL_FILE)
