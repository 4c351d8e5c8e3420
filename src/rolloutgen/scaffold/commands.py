"""How a model's answer becomes one shell command: the protocol of the scaffold ``shell``.

An answer is one line. Three things open something that a line cannot hold, and then the answer goes on until it is
closed: a here-document, a fenced block, and a block of thoughts. So a model that knows one-liners only needs nothing
else, and one that writes files can.
"""

import re
from typing import Final

LINE: Final = "\n"
"""Where an answer stops unless something is open."""

_HEREDOC: Final = re.compile(r"(?<!<)<<-?[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_]\w*))")
_ARITHMETIC: Final = re.compile(r"\(\(.*?\)\)")
_FENCE: Final = "```"
_THINK: Final = ("<think>", "</think>")
_PROMPT: Final = re.compile(r"^\$[ \t]+")
_DONE: Final = frozenset({"", "exit", "exit 0", "done", "logout"})


def unclosed(text: str) -> str | None:
    """Where the answer must stop that began with ``text`` (None: it is complete)."""
    begin, end = _THINK
    if text.lstrip().startswith(begin) and end not in text:
        return end
    said = _said(text)
    if said is None or (not said and begin in text):
        return LINE
    if said.startswith(_FENCE):
        body = said.removeprefix(_FENCE)
        return None if f"\n{_FENCE}" in body or (LINE not in body and body.endswith(_FENCE)) else f"\n{_FENCE}"
    return next((f"\n{word}" for word in _words(said) if not _closed(said, word)), None)


def closing(stop: str) -> str:
    """What must be put at the answer's end when it stopped at ``stop``: servers leave the stop sequence out."""
    return "" if stop == LINE else stop


def command_of(text: str) -> str:
    """The command of a complete answer, without fence, thoughts or prompt sign."""
    said = _said(text) or ""
    if said.startswith(_FENCE):
        first, _, rest = said.partition("\n")
        said = rest.rpartition(f"\n{_FENCE}")[0] if rest else first.strip("`").strip()
        return said.strip("\n") if f"\n{_FENCE}" in f"\n{rest}" else said
    if len(said) > 1 and said[0] == said[-1] == "`" and "`" not in said[1:-1]:
        said = said[1:-1]
    return _PROMPT.sub("", said)


def is_done(command: str) -> bool:
    """Whether the model says that it has finished."""
    return command.strip().rstrip(";.").lower() in _DONE


def _said(text: str) -> str | None:
    """What follows the thoughts (None: nothing yet)."""
    begin, end = _THINK
    if not text.lstrip().startswith(begin):
        return text.strip()
    _, closed, rest = text.partition(end)
    return rest.strip() if closed else None


def _words(text: str) -> list[str]:
    """The closing words of the here-documents that the first line opens."""
    return [a or b or c for a, b, c in _HEREDOC.findall(_ARITHMETIC.sub("", text.partition("\n")[0]))]


def _closed(text: str, word: str) -> bool:
    return any(line.strip("\t") == word for line in text.splitlines()[1:])
