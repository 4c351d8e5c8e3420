"""From the texts of a config to ``Settings``: everything that is wrong with them, at once, and nothing guessed."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolloutgen.errors import Finding, Level
from rolloutgen.knobs import Knob, Value
from rolloutgen.settings import KNOBS, SCAFFOLDS, Settings

PREFLIGHT_ONLY: Final = "PREFLIGHT_ONLY"
"""A key of the train runner that users may expect here; it has an answer of its own (A17)."""

_STAND_IN: Final[Mapping[str, object]] = {"scaffold": "nop", "backend": "local"}
_NO_KEYS: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Draft:
    """What could be read of a config.

    ``settings`` holds stand-ins (None) for the keys in ``invalid``: use it only where ``invalid`` is empty, or for
    checks that need none of those keys. ``values`` holds every key that was set, with its text and place.
    """

    settings: Settings
    values: Mapping[str, Value]
    findings: tuple[Finding, ...]
    invalid: frozenset[str]

    @property
    def is_fatal(self) -> bool:
        return any(finding.level is Level.FATAL for finding in self.findings)


def read_settings(values: Mapping[str, Value], base: Path, excused: frozenset[str] = _NO_KEYS) -> Draft:
    """Parse every key; relative paths are taken from ``base``. Reports all that is wrong at once; raises nothing.

    ``excused`` keys are invalid without a finding of their own: whoever read ``values`` has said already what is wrong.
    """
    findings: list[Finding] = []
    parsed: dict[str, object] = {}
    invalid: set[str] = set()
    uses_model = _uses_model(values)
    for key, declared in KNOBS.items():
        result = _read_one(key, declared, values.get(key), uses_model)
        if isinstance(result, Finding) or key in excused:
            invalid.add(key)
            parsed[key.lower()] = _STAND_IN.get(key.lower())
            findings += [result] if isinstance(result, Finding) and key not in excused else []
        else:
            parsed[key.lower()] = base / result if isinstance(result, Path) else result
    findings.extend(_unknown_keys(values))
    if not uses_model:
        findings.extend(_unused_keys(values))
    settings = Settings(**parsed)  # type: ignore[arg-type]  # built by name from the same declarations
    return Draft(settings, dict(values), tuple(findings), frozenset(invalid))


def _uses_model(values: Mapping[str, Value]) -> bool:
    scaffold = values.get("SCAFFOLD")
    return scaffold is None or SCAFFOLDS.get(scaffold.text, True)


def _read_one(key: str, declared: Knob, value: Value | None, uses_model: bool) -> object:
    """The typed value of ``key``, or the Finding that says what is wrong with it."""
    if value is None or (value.text == "" and declared.default is None):
        needed = declared.need or declared.layer
        if needed and (uses_model or declared.scope != "model"):
            return _missing(key, declared, value)
        if declared.default is None:
            return None
    source = value if value is not None else Value(declared.default or "", "default")
    try:
        return declared.parse(source.text)
    except ValueError as error:
        return Finding(Level.FATAL, key, f"{error}; it is {source.text!r}", source.where, _advice(key, declared))


def _missing(key: str, declared: Knob, value: Value | None) -> Finding:
    state = "is empty" if value is not None else "is not set"
    return Finding(Level.FATAL, key, state, value.where if value else "", _advice(key, declared))


def _advice(key: str, declared: Knob) -> str:
    example = declared.example or declared.default
    return f"{key}: {declared.meaning}" + (f"; for example {key}={example}" if example else "")


def _unknown_keys(values: Mapping[str, Value]) -> Iterator[Finding]:
    for key, value in values.items():
        if key == PREFLIGHT_ONLY:
            mend = "take it out, and use: bash scripts/infer/infer.sh --dry-run CONFIG"
            yield Finding(Level.FATAL, key, "belongs to the train runner", value.where, mend)
        elif key not in KNOBS:
            near = difflib.get_close_matches(key, KNOBS, n=1)
            hint = f"did you mean {near[0]}?" if near else "see the README's Parameters"
            mend = f"{hint} (names of your own: lower case)"
            yield Finding(Level.FATAL, key, "is not a key of this program", value.where, mend)


def _unused_keys(values: Mapping[str, Value]) -> Iterator[Finding]:
    unused = [key for key in values if key in KNOBS and KNOBS[key].scope == "model"]
    if unused:
        scaffold = values["SCAFFOLD"]
        message = f"{scaffold.text} asks no model; not used: {', '.join(unused)}"
        yield Finding(Level.WARN, "SCAFFOLD", message, scaffold.where)
