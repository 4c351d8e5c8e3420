"""The file under every transcript: one JSON object a line, appended, and what was written survives a kill.

A line goes to the kernel at once, so that a killed process loses nothing that was said; ``sync`` brings it to the disk.
What a transcript says is in the package's docstring. Here is also the one of agents without a model.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import orjson

SCHEMA_VERSION: Final = 2

type Message = dict[str, Any]
"""A chat message: role and content."""


class Lines:
    """The writer of one file; whoever opens it owns it."""

    def __init__(self, path: Path) -> None:
        """Create ``path``; an older file is an error (FileExistsError)."""
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = 0

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def n_bytes(self) -> int:
        """Of all lines so far."""
        return self._size

    def write(self, line: Mapping[str, object]) -> None:
        """Append one line, whole or not at all. Raises OSError, and ValueError after ``close``."""
        if self._file is None:
            raise ValueError("the transcript is closed")
        data = memoryview(encode_line(line))
        try:
            rest = data
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # what follows a torn line must stay readable
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def sync(self) -> None:
        """Wait until everything so far is on the disk. Raises OSError."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            descriptor, self._file = self._file, None
            os.close(descriptor)


class Transcript:
    """The transcript of an agent without a model."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        """Create ``path`` (an older file is an error); ``executor`` runs the waits for the disk."""
        self._executor = executor
        self._lines = Lines(path)

    def write(self, kind: str, *, messages: Sequence[Message] = (), **fields: object) -> None:
        """Append one line."""
        line = {"type": kind, "at": now(), **fields}
        if messages:
            line["messages"] = list(messages)
        self._lines.write(line)

    async def sync(self) -> None:
        """Wait until everything so far is on the disk."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._lines.sync)

    def close(self) -> None:
        """Idempotent. What came after the last ``sync`` is brought to the disk by whoever keeps the outcome."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Encoded(bytes):
    """JSON already: what ``encode`` gave, to be put into a line as it is."""

    __slots__ = ()


def encode(value: object) -> Encoded:
    """``value`` as JSON, in its own order of keys; with a space before it where orjson does not write or read it.

    That is half of a surrogate pair, a number over 64 bits, or deep nesting. JSON has no NaN and no infinities.
    """
    return Encoded(encode_plainly(value))


def encode_plainly(value: object) -> bytes:
    """The same for what is called for every message of every call."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b" " + json.dumps(value).encode()


def encode_line(line: Mapping[str, object]) -> bytes:
    """A line and its end; values may be ``Encoded``. The space before an odd one stands also before the line."""
    odd = any(isinstance(value, Encoded) and value[:1] == b" " for value in line.values())
    try:
        data = orjson.dumps(line, default=_fragment)
    except TypeError:
        odd = True
        data = b"{%b}" % b",".join(b"%b:%b" % (encode(key), _encoded(value)) for key, value in line.items())
    return b"%b%b\n" % (b" " if odd else b"", data)


def _fragment(value: object) -> orjson.Fragment:
    if isinstance(value, Encoded):
        return orjson.Fragment(bytes(value))
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _encoded(value: object) -> Encoded:
    return value if isinstance(value, Encoded) else encode(value)


def decode(data: bytes) -> Any:
    """What ``encode`` wrote, or any other JSON. Raises ValueError."""
    if not data.startswith(b" "):
        with contextlib.suppress(ValueError):
            return orjson.loads(data)
    return json.loads(data)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a transcript; a last line that a kill tore is left out. Raises ValueError for other damage."""
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            if data == b"\n":
                continue
            line = None
            with contextlib.suppress(ValueError):
                line = decode(data)
            if isinstance(line, dict):
                yield line
            elif data.endswith(b"\n"):
                raise ValueError(f"{path}:{number} is not a JSON object")
