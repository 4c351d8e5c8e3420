"""A file of shell assignments, read by Bash and by nobody else (``scripts/lib/config.sh``).

Bash reads it again with each unset variable defined as empty until none is left, so that all of them are reported.
Characters of other editors (BOM, CR LF) are reported, and read past in a copy, so that the other problems show too.
"""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Final

READER: Final = Path(__file__).parents[3] / "scripts" / "lib" / "config.sh"

_PASSES_MAX: Final = 100
_HANG_SEC: Final = 20.0
"""Behind the reader's own limit of ten seconds."""
_SAID: Final = re.compile(r"(?:[a-z ]+: )?line (\d+): (.*)")
_UNSET: Final = re.compile(r"([A-Za-z_]\w*): unbound variable", re.ASCII)
_QUOTED: Final = re.compile(r"`.*'")
"""The line that a syntax error shows again."""
_BROKEN_OFF: Final = re.compile(r"syntax error|unexpected (EOF|end of file)")
_TIMED_OUT: Final = frozenset({124, 137, -signal.SIGTERM, -signal.SIGKILL})


@dataclass(frozen=True, slots=True)
class Note:
    """Something at one place: ``where`` is ``name:line``, or just the name for the file as a whole."""

    where: str
    text: str


@dataclass(slots=True)
class ShellFile:
    """What Bash made of a file.

    ``values``: key -> text, without all-lower-case names; ``arrays``: keys that were set as such.
    ``commands``: what ran, in order, one Note a command.
    ``strange``: characters that do not belong in it; ``problems``: whatever else is wrong. With either, the values are
    good for nothing but the search for more problems.
    ``whole``: it was read to its end.
    """

    values: dict[str, str] = field(default_factory=dict)
    arrays: list[str] = field(default_factory=list)
    commands: list[Note] = field(default_factory=list)
    strange: list[Note] = field(default_factory=list)
    problems: list[Note] = field(default_factory=list)
    whole: bool = False


def read_shell_file(path: Path, name: str) -> ShellFile:
    """Read ``path``, called ``name`` in places. Nothing in the file makes this raise, hang or print."""
    try:
        content = path.read_bytes() if path.is_file() else None
    except OSError as error:
        return ShellFile(problems=[Note(name, f"cannot be read ({error.strerror})")])
    if content is None:
        state = "is a folder" if path.is_dir() else "is not a file" if path.exists() else "does not exist"
        return ShellFile(problems=[Note(name, state)])
    strange = list(_strange_characters(content, name))
    if not strange:
        return _read_all(path.absolute(), name)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "config")
        copy.write_bytes(content.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"").replace(b"\0", b""))
        found = _read_all(copy, name)
    found.strange = strange
    return found


def _strange_characters(content: bytes, name: str) -> Iterator[Note]:
    if content.startswith(b"\xef\xbb\xbf"):
        yield Note(f"{name}:1", "begins with a byte order mark (BOM); remove it: sed -i '1s/^\\xef\\xbb\\xbf//' FILE")
    lines = content.split(b"\n")
    returns = [number for number, line in enumerate(lines, 1) if b"\r" in line]
    if returns:
        text = f"{len(returns)} line(s) end in CR LF, as on Windows; convert the file: sed -i 's/\\r$//' FILE"
        yield Note(f"{name}:{returns[0]}", text)
    zeros = [number for number, line in enumerate(lines, 1) if b"\0" in line]
    if zeros:
        yield Note(f"{name}:{zeros[0]}", "holds a NUL character: it is not a text file")


def _read_all(path: Path, name: str) -> ShellFile:
    """Read until no unset variable is left; the last reading counts, with the unset variables of all."""
    unset: dict[str, Note] = {}
    found = ShellFile()
    for _ in range(_PASSES_MAX):
        found, missing = _read_once(path, name, list(unset))
        if missing.keys() <= unset.keys():
            break
        unset = missing | unset
    found.problems[:0] = unset.values()
    return found


def _read_once(path: Path, name: str, defined: list[str]) -> tuple[ShellFile, dict[str, Note]]:
    """One reading with the variables ``defined`` as empty; also the unset variables that Bash met."""
    status, output, messages = _run(["bash", str(READER), str(path), *defined])
    found = ShellFile()
    failed = _take_records(output, path, name, found)
    left_early = not found.whole
    missing = _take_messages(messages, path, name, found)
    explained = {note.where for note in (*found.problems, *missing.values())}
    failed_by_line = {note.where: note for note in failed if note.where not in explained}
    found.problems.extend(failed_by_line.values())
    last = _last_place(found, name)
    if status in _TIMED_OUT:
        found.problems.append(Note(last, "is still being read after ten seconds: a command waits, or loops"))
    elif left_early and last not in explained:
        found.problems.append(Note(last, "ends the shell before the end of the file (exit or exec)"))
    return found, missing


def _last_place(found: ShellFile, name: str) -> str:
    """Where the last command stands. One that was interrupted is traced again, at line 1, when the shell ends."""
    *before, last = found.commands or [Note(name, "")]
    return before[-1].where if before and before[-1].text == last.text else last.where


def _run(command: list[str]) -> tuple[int, str, str]:
    """(status, stdout, stderr) of a command that is ended, with all it started, if it takes too long."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            output, messages = process.communicate(timeout=_HANG_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, messages = process.communicate()
    return process.returncode, os.fsdecode(output), os.fsdecode(messages)


def _take_records(output: str, path: Path, name: str, found: ShellFile) -> list[Note]:
    """Put what config.sh printed into ``found``; returns the commands that failed."""
    failed: list[Note] = []
    for kind, place, text in batched(output.split("\0")[:-1], 3):
        note = Note(place.replace(str(path), name, 1) if place else name, text)
        match kind:
            case "command" if note not in found.commands:
                found.commands.append(note)
            case "failed":
                failed.append(Note(note.where, f"a command failed, {text}"))
            case "array":
                found.arrays.append(text)
            case "value":
                key, _, value = text.partition("=")
                found.values[key] = value
            case "end":
                found.whole = True
    return failed


def _take_messages(messages: str, path: Path, name: str, found: ShellFile) -> dict[str, Note]:
    """Put what Bash complained of into ``found``; returns the unset variables, by name."""
    unset: dict[str, Note] = {}
    for line in messages.splitlines():
        said = _SAID.fullmatch(line.removeprefix(f"{path}: ")) if line.startswith(f"{path}: ") else None
        if said is None or _QUOTED.fullmatch(said[2]):
            continue
        note = Note(f"{name}:{said[1]}", said[2])
        variable = _UNSET.fullmatch(said[2])
        if variable:
            unset.setdefault(variable[1], note)
        else:
            found.problems.append(note)
        found.whole = found.whole and not _BROKEN_OFF.search(said[2])
    return unset
