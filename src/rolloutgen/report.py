"""Text for people: findings, the effective settings, the end of a run. Returns lines; prints nothing."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from rolloutgen.config.reading import Draft
from rolloutgen.errors import Finding, Level
from rolloutgen.masking import CARRIERS, MASK, masked_words
from rolloutgen.settings import KNOBS


def masked(key: str, text: str) -> str:
    """The text of a setting without the secrets that it may carry (tokens for the server, keys in its arguments)."""
    if key not in CARRIERS:
        return text
    try:
        return masked_command(shlex.split(text))
    except ValueError:
        return MASK


def masked_command(words: Iterable[str]) -> str:
    """A command line for people, quoted as in a shell, without its secrets."""
    return " ".join(word if word.endswith(MASK) else shlex.quote(word) for word in masked_words(words))


def findings_lines(findings: Iterable[Finding]) -> list[str]:
    """One or two lines a finding: level, subject, what is wrong, where; then how to mend it.

    Those that say the same of several subjects and are not fatal share a line, so that what must be mended stands out.
    """
    lines = []
    for alike in _alike(findings):
        finding = alike[0]
        subjects = ", ".join(dict.fromkeys(one.subject for one in alike))
        where = f"  [{finding.where}]" if finding.where and len({one.where for one in alike}) == 1 else ""
        lines.append(f"{finding.level:<5} {subjects}: {finding.message}{where}")
        if finding.mend:
            lines.append(f"      -> {finding.mend}")
    return lines


def _alike(findings: Iterable[Finding]) -> Iterable[Sequence[Finding]]:
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        same = number if finding.level is Level.FATAL else (finding.level, finding.message, finding.mend)
        groups.setdefault(same, []).append(finding)
    return groups.values()


def count_line(findings: Sequence[Finding]) -> str:
    """``2 FATAL, 1 WARN, 14 ok``."""
    return ", ".join(f"{sum(f.level is level for f in findings)} {level}" for level in Level)


def settings_lines(draft: Draft) -> list[str]:
    """The effective settings with their origin, secrets masked, ours only; unused ones of the model are left out."""
    rows = list(_settings(draft))
    wide = max((len(key) for key, _, _ in rows), default=0)
    return [f"{key:<{wide}} = {text}  [{where}]" for key, text, where in rows]


def _settings(draft: Draft) -> Iterator[tuple[str, str, str]]:
    for key, knob in KNOBS.items():
        value = draft.values.get(key)
        if value is not None:
            yield key, masked(key, value.text), value.where
        elif knob.default is not None and (knob.scope != "model" or draft.settings.uses_model):
            yield key, knob.default or (f"(empty: {knob.empty})" if knob.empty else ""), "default"
