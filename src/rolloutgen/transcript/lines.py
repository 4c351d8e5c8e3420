"""transcript.jsonl: everything that was said between a scaffold and the model in one attempt, one JSON object a line.

Every line has ``type`` and ``at`` (UTC, ISO 8601). Lines that say something have ``messages``: what was added to the
conversation, in the chat format of the OpenAI API, each message once. ``read_messages`` puts them together again: that
is the conversation as the model saw it, ready for SFT.

start        first. schema_version, scaffold, scaffold_version; model and request (None without a model): the
             parameters that are sent with every request; messages: system prompt, examples, instruction
reply        the model has answered. turn; calls: one entry a request (stop, continues, started_at, sec, finish_reason,
             usage, id, tries: its HTTP tries with status or error); command; messages: the answer
command      without a model: a command ran. command, exit_status, timed_out
observation  the command has ended. turn, exit_status, timed_out, truncated; messages: what the model is told
end          last; missing after a kill. ending, turns, flags, failures

A line goes to the kernel at once, so that a killed process loses nothing that was said; ``sync`` brings it to the disk.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

SCHEMA_VERSION: Final = 1

type Message = dict[str, Any]
"""A chat message: role and content."""


class Transcript:
    """The one writer of transcript.jsonl. Whoever speaks with the model owns it: a scaffold, or a server before it."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        """Create ``path`` (an older file is an error); ``executor`` runs the waits for the disk."""
        self._executor = executor
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, *, messages: Sequence[Message] = (), **fields: object) -> None:
        """Append one line."""
        if self._file is None:
            raise ValueError("the transcript is closed")
        line = {"type": kind, "at": now(), **fields}
        if messages:
            line["messages"] = list(messages)
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    async def sync(self) -> None:
        """Wait until everything so far is on the disk."""
        if self._file is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, os.fsync, self._file)

    def close(self) -> None:
        """Idempotent. What came after the last ``sync`` is brought to the disk by whoever keeps the outcome."""
        if self._file is not None:
            descriptor, self._file = self._file, None
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a transcript; a last line that a kill tore is left out. Raises ValueError for other damage."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except ValueError:
            if number == len(lines):
                return
            raise ValueError(f"{path}:{number} is not JSON") from None


def read_messages(path: Path) -> list[Message]:
    """The conversation of one attempt, as the model saw it."""
    return [message for line in read(path) for message in line.get("messages", ())]
