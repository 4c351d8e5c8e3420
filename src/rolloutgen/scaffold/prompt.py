"""What the scaffold ``shell`` says: the system prompt, the examples, and what it makes of a command's output."""

from typing import Final

from rolloutgen.sandbox.base import ExecResult
from rolloutgen.scaffold.model import Message

SYSTEM: Final = """\
You work in a Linux shell. Answer with one shell command at a time, and nothing else: no explanation. Its output and \
exit status come back to you. Several lines are possible as a here-document (cat > file <<'EOF') or in a ``` block. \
Use as many commands as you need. When the task is done, answer: exit"""

EXAMPLES: Final = (
    ("Delete the file notes.bak.", "rm notes.bak"),
    ("Make the file start.sh executable.", "chmod +x start.sh"),
    ("Create a directory named logs.", "mkdir logs"),
    ("Create an empty file named ready.", "touch ready"),
    ("Rename the file a.txt to b.txt.", "mv a.txt b.txt"),
    ("Copy the file main.c to main.orig.", "cp main.c main.orig"),
    ("Write the word yes into the file answer.txt.", "echo yes > answer.txt"),
    ("Delete the directory tmp and everything in it.", "rm -r tmp"),
)
"""Task and command. Bare, so that a small model sees little else than the pattern; the end is shown once, at last."""

CUT: Final = "(your answer was cut off at {tokens} tokens, so nothing was run; use shorter commands)"
NOT_RUN: Final = "(your command was not run, since {why})"
FINISHED: Final = "exit"


def opening(instruction: str) -> list[Message]:
    """The conversation before the model's first answer."""
    messages = [_message("system", SYSTEM)]
    for task, command in EXAMPLES:
        messages += [_message("user", task), _message("assistant", command)]
    messages += [_message("user", _status(0)), _message("assistant", FINISHED)]
    return [*messages, _message("user", instruction.strip())]


def observation(result: ExecResult, limit_sec: float, max_chars: int) -> Message:
    """What the model is told of its command: output (head and tail where it is long), then the exit status."""
    output = (result.stdout + result.stderr).decode(errors="replace").strip("\n")
    ending = f"(stopped after {limit_sec:.0f} s)" if result.timed_out else _status(result.exit_status)
    return _message("user", f"{_bounded(output, max_chars)}\n{ending}" if output else ending)


def _bounded(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _status(status: int) -> str:
    return f"(exit status {status})"


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
