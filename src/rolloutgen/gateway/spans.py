"""The length of a union of time spans: parallel waits count once."""


class Union:
    """Spans are added in the order of their ends, as a clock gives them; their begins may lie anywhere."""

    def __init__(self) -> None:
        self._sec = 0.0
        self._parts: list[tuple[float, float]] = []

    def add(self, begin: float, end: float) -> None:
        while self._parts and self._parts[-1][1] >= begin:
            first, last = self._parts.pop()
            self._sec -= last - first
            begin = min(begin, first)
        self._parts.append((begin, end))
        self._sec += end - begin

    def length(self, begin: float, now: float) -> float:
        """As if one more span ended now, without adding it."""
        covered = sum(last - max(first, begin) for first, last in self._parts if last > begin)
        return self._sec + now - begin - covered

    def settle(self) -> None:
        """No later span begins before the last end: what is counted stays, and its spans are forgotten."""
        self._parts.clear()
