"""The one reader of a config: Bash reads it, the layers fill in, and all that is wrong is said at once (C24).

Layers never override the config: ``scripts/templates/serving.env`` (for scaffolds that ask a model),
``backend/<BACKEND>.env`` and ``scaffold/<SCAFFOLD>.env``. The caller's environment is never read.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rolloutgen.config.assignments import assignments, misread
from rolloutgen.config.reading import Draft, read_settings
from rolloutgen.config.shellfile import ShellFile, read_shell_file
from rolloutgen.errors import Finding, FindingsError, Level
from rolloutgen.knobs import Value
from rolloutgen.paths import LogPaths, ResultsPaths, default_exp
from rolloutgen.settings import BACKENDS, KNOBS, SCAFFOLDS, Settings

_CHOOSERS: Final[Mapping[str, str]] = {"scaffold": "SCAFFOLD", "backend": "BACKEND"}


def repository() -> Path:
    """The root of this checkout; relative paths of a config are taken from here."""
    return Path(__file__).resolve().parents[3]


def load_config(path: Path) -> Draft:
    """The settings of the config ``path``, every problem a finding; with a fatal one, nothing of it may be used."""
    file = read_shell_file(path, str(path))
    findings = list(misread(file))
    values = _values(file, path)
    given = {**_layers(values), **values}
    draft = read_settings(given, repository(), frozenset(_excused(file, given, findings)))
    return replace(draft, findings=tuple(sorted((*findings, *draft.findings), key=_line)))


def log_folder() -> Path:
    return repository() / "logs"


def log_paths(settings: Settings) -> LogPaths:
    """The logs of a run: stable across its launches (A23)."""
    exp = settings.exp_name or default_exp(settings.project_name, settings.results_dir)
    return LogPaths(log_folder(), exp)


def resolve_values(draft: Draft) -> dict[str, str]:
    """What the launcher must know of a config. Raises FindingsError with all findings if one is fatal."""
    if draft.is_fatal:
        raise FindingsError(draft.findings)
    settings = draft.settings
    logs = log_paths(settings)
    model = settings.uses_model
    return {
        "EXP": logs.exp,
        "LOG": str(logs.log),
        "SERVER_LOG": str(logs.server_log),
        "LAUNCHES": str(logs.launches),
        "RESULTS_DIR": str(settings.results_dir),
        "OUTPUT_INDEX": str(settings.output_index),
        "LOCK": str(ResultsPaths(settings.results_dir).lock),
        "USES_MODEL": str(int(model)),
        "VLLM_BIN": str(settings.vllm_bin or "") if model else "",
        "MODEL_PATH": str(settings.model_path) if model else "",
        "MODEL_SETUP": str(settings.model_setup or "") if model else "",
        "KEYS": " ".join(KNOBS),
    }


def _layers(values: Mapping[str, Value]) -> dict[str, Value]:
    """The defaults of the layers that the config chose; a layer without a file has none."""
    scaffold, backend = (values[key].text if key in values else "" for key in ("SCAFFOLD", "BACKEND"))
    names = ["serving"] if SCAFFOLDS.get(scaffold, True) else []
    names += [f"backend/{backend}"] if backend in BACKENDS else []
    names += [f"scaffold/{scaffold}"] if scaffold in SCAFFOLDS else []
    found: dict[str, Value] = {}
    for name in names:
        file = Path("scripts", "templates", f"{name}.env")
        if (repository() / file).exists():
            found |= _layer(file)
    return found


def _layer(file: Path) -> dict[str, Value]:
    read = read_shell_file(repository() / file, str(file))
    if read.problems or read.strange:
        raise FindingsError([Finding(Level.FATAL, note.where, note.text) for note in (*read.strange, *read.problems)])
    return _values(read, file)


def _values(file: ShellFile, name: Path) -> dict[str, Value]:
    places = assignments(file.commands)
    return {
        key: Value(text, places[key][-1].where if key in places else str(name)) for key, text in file.values.items()
    }


def _line(finding: Finding) -> float:
    """Findings of lines come first and in order."""
    line = finding.where.rpartition(":")[2]
    return int(line) if line.isdecimal() else math.inf


def _excused(file: ShellFile, given: Mapping[str, Value], findings: Sequence[Finding]) -> Iterator[str]:
    """Keys of which enough was said: their line is in a finding, or they may stand behind the place where it ended."""
    broken = {note.where for note in file.problems}
    named = {key for finding in findings for key in finding.subject.split(", ")}
    for key, declared in KNOBS.items():
        if key in given:
            if given[key].where in broken:
                yield key
        elif key in named or not file.whole or _chooser_is_unknown(declared.layer, given):
            yield key


def _chooser_is_unknown(layer: str, given: Mapping[str, Value]) -> bool:
    key = _CHOOSERS.get(layer)
    chosen = given.get(key) if key else None
    return key is not None and (chosen is None or chosen.text not in {"SCAFFOLD": SCAFFOLDS, "BACKEND": BACKENDS}[key])
