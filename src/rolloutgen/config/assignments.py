"""Which command of a config sets which key, and what is wrong with the way it does (C24)."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rolloutgen.config.shellfile import Note, ShellFile
from rolloutgen.errors import Finding, Level
from rolloutgen.settings import KNOBS

_EXPORT: Final = re.compile(r"(?:export|declare|typeset|readonly)\s+(?:-\w+\s+)*")
_ASSIGNS: Final = re.compile(r"([A-Za-z_]\w*)\+?=", re.ASCII)
_SPACED: Final = re.compile(r"([A-Za-z_]\w*)(?:=\s+(?![A-Za-z_]\w*\+?=)\S|\s+=)", re.ASCII)


def misread(file: ShellFile) -> Iterator[Finding]:
    """Everything that keeps ``file`` from being used, by line and key."""
    places = assignments(file.commands)
    yield from _problems(file)
    for key in file.arrays:
        where = places[key][-1].where if key in places else ""
        yield Finding(Level.FATAL, key, "is an array; a setting is one text", where, f"write {key}='ONE TEXT'")
    yield from _set_twice(places)
    yield from _set_for_one_command(file, places)


def assignments(commands: Sequence[Note]) -> dict[str, list[Note]]:
    """Key -> the commands that assign it, in order."""
    places: dict[str, list[Note]] = {}
    for command in commands:
        for key in _assigned(command.text):
            places.setdefault(key, []).append(command)
    return places


def _assigned(command: str) -> Iterator[str]:
    """The variables that a simple command assigns. Behind a substitution only Bash knows the words."""
    rest = _EXPORT.sub("", command, count=1)
    try:
        words = [rest] if re.search(r"\$\(|`", rest) else shlex.split(rest)
    except ValueError:
        words = [rest]
    for word in words:
        match = _ASSIGNS.match(word)
        if match is None:
            return
        yield match[1]


def _problems(file: ShellFile) -> Iterator[Finding]:
    """What Bash could not read, by line and key; of a line with spaces around ``=``, just that."""
    broken = {note.where for note in file.problems}
    spaced: dict[str, str] = {}
    for command in file.commands:
        match = _SPACED.match(_EXPORT.sub("", command.text, count=1))
        if match and (match[1] in KNOBS or command.where in broken):
            spaced[command.where] = match[1]
    for note in file.strange:
        yield Finding(Level.FATAL, "config", note.text, note.where)
    for where, key in spaced.items():
        yield Finding(Level.FATAL, key, "has spaces around '='", where, f"write {key}=VALUE, without spaces")
    for note in file.problems:
        if note.where not in spaced:
            subject = _subject(note.where, file)
            yield Finding(Level.FATAL, subject, note.text, note.where, _mend(note.text, subject))


def _subject(where: str, file: ShellFile) -> str:
    keys = {key for command in file.commands if command.where == where for key in _assigned(command.text)}
    return ", ".join(sorted(keys)) or "config"


def _mend(problem: str, subject: str) -> str:
    if problem.endswith("command not found") and subject != "config":
        return f"quote a value that has spaces: {subject}='TWO WORDS'"
    variable, unbound, _ = problem.partition(": unbound variable")
    return f"set {variable} above this line, or write ${{{variable}:-}}" if unbound else ""


def _set_twice(places: Mapping[str, Sequence[Note]]) -> Iterator[Finding]:
    """A key that one file sets twice; a file that it sources may set it too, which is overriding on purpose."""
    for key, commands in places.items():
        by_file: dict[str, list[str]] = {}
        for command in commands:
            by_file.setdefault(command.where.rpartition(":")[0], []).append(command.where)
        for wheres in by_file.values():
            if len(wheres) > 1 and not key.islower():
                lines = ", ".join(where.rpartition(":")[2] for where in wheres)
                yield Finding(Level.FATAL, key, f"is set more than once: lines {lines}", wheres[-1], "keep one of them")


def _set_for_one_command(file: ShellFile, places: Mapping[str, Sequence[Note]]) -> Iterator[Finding]:
    broken = {note.where for note in file.problems}
    for key, commands in places.items():
        last = commands[-1]
        lost = file.whole and key in KNOBS and key not in (*file.values, *file.arrays) and last.where not in broken
        if lost and not _SPACED.match(last.text):
            message = f"is not set after the line that sets it: {last.text}"
            yield Finding(Level.FATAL, key, message, last.where, f"write {key}=VALUE on a line of its own")
