"""Bounded memory for unbounded output: head and tail of a stream, and a line between that says what is missing."""

from collections import deque


class HeadTail:
    """Keeps the first and the last half of ``limit`` bytes of what is added."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        rest = data[room:] if room < len(data) else b""
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._half:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._dropped += gone

    @property
    def truncated(self) -> bool:
        return self._dropped > 0 or self._tail_size > self._half

    def value(self) -> bytes:
        tail = b"".join(self._tail)
        if not self.truncated:
            return bytes(self._head) + tail
        surplus = max(0, len(tail) - self._half)
        missing = self._dropped + surplus
        return b"%b\n... %d bytes of output left out ...\n%b" % (bytes(self._head), missing, tail[surplus:])
