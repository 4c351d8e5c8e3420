"""The README's Parameters table: every key of a config, out of its declaration and the layers' templates (A30)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rolloutgen.knobs import Knob
from rolloutgen.settings import KNOBS

BEGIN: Final = "<!-- parameters:begin -->"
END: Final = "<!-- parameters:end -->"

_LEGEND: Final = (
    "M: used by scaffolds that ask a model, and required by those alone. F: part of the fingerprint; a run that goes "
    "on with another value is refused. Empty means that the key is not set, or set to nothing."
)
_ASSIGNMENT: Final = re.compile(r"^([A-Z][A-Z0-9_]*)=(\S*)", re.MULTILINE)


def table(templates: Path) -> str:
    """Markdown; ``templates`` is the folder of the layers (``serving.env``, ``backend/``, ``scaffold/``)."""
    layered = _layered(templates)
    rows = [
        f"| `{key}` | {_meaning(knob)} | {knob.unit} | {_default(key, knob, layered)} | {_marks(knob)} |"
        for key, knob in KNOBS.items()
    ]
    return "\n".join([_LEGEND, "", "| key | meaning | unit | default | |", "|---|---|---|---|---|", *rows]) + "\n"


def between_markers(readme: str) -> str:
    """What stands between the markers of a README. Raises ValueError where they are missing."""
    start = readme.index(BEGIN) + len(BEGIN)
    return readme[start : readme.index(END, start)].strip("\n") + "\n"


def _layered(templates: Path) -> Mapping[str, Mapping[str, str]]:
    """Key -> its default by layer: ``{"MAX_TURNS": {"shell": "8"}}``; the serving layer's name is empty."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(templates.rglob("*.env")):
        name = file.stem if file.parent != templates else ""
        for key, text in _assignments(file):
            found.setdefault(key, {})[name] = text
    return found


def _assignments(file: Path) -> Iterator[tuple[str, str]]:
    """Templates are ours and plain: one assignment a line."""
    for match in _ASSIGNMENT.finditer(file.read_text(encoding="utf-8")):
        yield match[1], match[2].strip("'\"")


def _meaning(knob: Knob) -> str:
    text = knob.meaning + (f"; for example `{knob.example}`" if knob.example else "")
    return text.replace("|", "\\|")


def _marks(knob: Knob) -> str:
    return " ".join(mark for mark, is_so in (("M", knob.scope == "model"), ("F", knob.measures)) if is_so)


def _default(key: str, knob: Knob, layered: Mapping[str, Mapping[str, str]]) -> str:
    if knob.need:
        return "required"
    if knob.layer:
        values = layered.get(key, {})
        return "; ".join(f"{name}: `{text}`" if name else f"`{text}`" for name, text in values.items())
    if knob.default:
        return f"`{knob.default}`"
    return f"empty: {knob.empty}" if knob.empty else "empty"
