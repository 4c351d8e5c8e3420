"""The working directory that a Dockerfile ends with.

Known: line continuations, comments, stages that build on earlier ones, relative WORKDIRs, and variables set by ENV, or
by ARG with a default. What the base image sets is not known here.
"""

import re
import shlex
from pathlib import PurePosixPath
from typing import Final

_CONTINUED: Final = re.compile(r"\\[ \t]*\n")
_COMMENT: Final = re.compile(r"^[ \t]*#.*\n", re.MULTILINE)
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


def last_workdir(text: str) -> str | None:
    """The last WORKDIR of the last stage, absolute (None: it sets none, or one with a variable that is not known)."""
    workdir: str | None = None
    stages: dict[str, str | None] = {}
    variables: dict[str, str] = {}
    stage = ""
    for line in _CONTINUED.sub(" ", _COMMENT.sub("", text + "\n")).splitlines():
        word, _, rest = line.strip().partition(" ")
        match word.upper():
            case "FROM":
                stages[stage] = workdir
                base, stage = _stage(rest)
                workdir = stages.get(base)
            case "ENV" | "ARG":
                variables |= _assignments(rest, variables)
            case "WORKDIR":
                value = _expand(rest.strip().strip("\"'"), variables)
                workdir = None if value is None else str(PurePosixPath(workdir or "/", value))
    return workdir


def _stage(rest: str) -> tuple[str, str]:
    """(base, name) of ``FROM [--platform=...] base [AS name]``, in lower case."""
    words = [word for word in rest.lower().split() if not word.startswith("--")]
    base, _, name = (*words, "", "", "")[:3]
    return base, name


def _assignments(rest: str, variables: dict[str, str]) -> dict[str, str]:
    try:
        words = shlex.split(rest)
    except ValueError:
        return {}
    if words and "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"] if len(words) > 1 else []
    pairs = (word.partition("=") for word in words if "=" in word)
    expanded = {name: _expand(value, variables) for name, _, value in pairs}
    return {name: value for name, value in expanded.items() if value is not None}


def _expand(text: str, variables: dict[str, str]) -> str | None:
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        name = match[1] or match[3]
        found = variables.get(name, match[2])
        missing = missing or found is None
        return found or ""

    result = _VARIABLE.sub(value, text)
    return None if missing or not result else result
