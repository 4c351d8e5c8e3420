"""The only file that knows file names: results, logs and launch records.

RESULTS_DIR/
  run.json  summary.csv  trials.csv  .lock
  <instance>/<trial>/                   the attempt that gave the verdict
    outcome.json  transcript.jsonl
    harbor/                             the trial folder as Harbor lays it out
  <instance>/<trial>.attempt_<k>/       a running attempt, and those without a verdict

logs/
  <exp>.log  <exp>.vllm.log             one run, appended across launches
  .launches/<launch_id>/                one launch: launch.json, server.json, ...
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolloutgen.models import Attempt, Trial

OUTCOME: Final = "outcome.json"
TRANSCRIPT: Final = "transcript.jsonl"
HARBOR: Final = "harbor"
RESERVED: Final = frozenset({"run.json", "summary.csv", "trials.csv"})

_NAME_MAX: Final = 200
"""Bytes of an encoded name; file systems allow 255, and temporary names need room."""
_SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+@")
_PLAIN: Final = re.compile(r"[a-zA-Z0-9_+@-][a-zA-Z0-9_.+@-]{0,199}")
"""Ids that are their own folder's name: nearly all."""
_TRIAL: Final = re.compile(r"trial_(0|[1-9][0-9]*)")
_ATTEMPT: Final = re.compile(r"trial_(0|[1-9][0-9]*)\.attempt_([1-9][0-9]*)")


def encode_id(instance_id: str) -> str:
    """A folder name for an instance id: injective, readable, never a file of ours, never hidden, within 200 bytes.

    Safe bytes stand as they are, others as ``%XX``. A leading dot is encoded; so is the first byte of a name of ours
    (``run.json``). What is too long is cut and closed by ``%~`` and its SHA-256: ``%~`` occurs in no uncut name.
    """
    if _PLAIN.fullmatch(instance_id) and instance_id not in RESERVED:
        return instance_id
    raw = instance_id.encode("utf-8", "surrogatepass")
    parts = [chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in raw]
    if parts and (parts[0] == "." or instance_id in RESERVED):
        parts[0] = f"%{raw[0]:02X}"
    name = "".join(parts) or "%"
    if len(name) <= _NAME_MAX:
        return name
    digest = hashlib.sha256(raw).hexdigest()
    return name[: _NAME_MAX - len(digest) - 2] + "%~" + digest


def trial_name(number: int) -> str:
    return f"trial_{number}"


def attempt_name(trial: int, attempt: int) -> str:
    return f"{trial_name(trial)}.attempt_{attempt}"


def parse_trial_name(name: str) -> int | None:
    """The trial number of a verdict's folder, or None."""
    match = _TRIAL.fullmatch(name)
    return int(match[1]) if match else None


def parse_attempt_name(name: str) -> tuple[int, int] | None:
    """(trial number, attempt number) of an attempt's folder, or None."""
    match = _ATTEMPT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class ResultsPaths:
    """Everything below one RESULTS_DIR (``root``, absolute)."""

    root: Path

    @property
    def run_json(self) -> Path:
        return self.root / "run.json"

    @property
    def summary_csv(self) -> Path:
        return self.root / "summary.csv"

    @property
    def trials_csv(self) -> Path:
        return self.root / "trials.csv"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    def instance(self, instance_id: str) -> Path:
        return self.root / encode_id(instance_id)

    def verdict(self, trial: Trial) -> Path:
        return self.instance(trial.instance.instance_id) / trial_name(trial.number)

    def attempt(self, trial: Trial, number: int) -> Path:
        return self.instance(trial.instance.instance_id) / attempt_name(trial.number, number)


def harbor_folder(attempt: Attempt) -> Path:
    """Where Harbor lays its trial folder out, inside the attempt's own."""
    return attempt.folder / HARBOR


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Everything below ``logs/`` (``root``, absolute) for the run called ``exp``."""

    root: Path
    exp: str

    @property
    def log(self) -> Path:
        return self.root / f"{self.exp}.log"

    @property
    def server_log(self) -> Path:
        return self.root / f"{self.exp}.vllm.log"

    @property
    def launches(self) -> Path:
        return self.root / ".launches"

    def launch(self, launch_id: str) -> Path:
        return self.launches / launch_id


def default_exp(project_name: str, results_dir: Path) -> str:
    """``<PROJECT_NAME>-<basename of RESULTS_DIR>-<6 hex of its absolute path>``: stable across resumes (A23)."""
    digest = hashlib.sha256(str(results_dir).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{project_name}-{results_dir.name}-{digest[:6]}"
