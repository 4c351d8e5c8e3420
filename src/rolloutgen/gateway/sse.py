"""Server-sent events, as OpenAI's API uses them: each ``data:`` line is an event of its own."""

from typing import Final

import orjson

DONE: Final = b"[DONE]"
DONE_EVENT: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": hold\n\n"
"""A comment: clients read over it."""


def event(payload: object) -> bytes:
    """The event that carries this as JSON."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


class Events:
    """Finds the events in bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads of the events that ``piece`` completes."""
        first, *others = piece.split(b"\n")
        self._parts.append(first)
        if not others:
            return []
        lines = [b"".join(self._parts), *others]
        self._parts = [lines.pop()]
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
