"""Bounded memory for unbounded output: head and tail of a stream, and a line between that says what is missing."""


class HeadTail:
    """Keeps the first and the last half of ``limit`` bytes of what is added."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        if len(self._tail) >= 2 * self._half:  # now and then, so that a byte is moved once
            self._trim()

    @property
    def truncated(self) -> bool:
        return self._dropped > 0 or len(self._tail) > self._half

    def value(self) -> bytes:
        if not self.truncated:
            return bytes(self._head + self._tail)
        self._trim()
        return b"%b\n... %d bytes of output left out ...\n%b" % (bytes(self._head), self._dropped, bytes(self._tail))

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._half)
        self._dropped += surplus
        del self._tail[:surplus]
