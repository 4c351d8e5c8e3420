"""Sequences of which each is told by what it shares with an earlier one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_KEPT: Final = 4
"""So many are kept whole: those that come next mostly go on with one of them."""


@dataclass(slots=True)
class _Link[T: (str, bytes)]:
    of: int | None
    parts: Sequence[T | tuple[int, int]]
    after: T


@dataclass(slots=True)
class Chain[T: (str, bytes)]:
    """Sequences by number; memory grows with what is new in each."""

    empty: T
    _links: dict[int, _Link[T]] = field(default_factory=dict)
    _kept: dict[int, T] = field(default_factory=dict)

    def __contains__(self, number: int) -> bool:
        return number in self._links

    def add(self, number: int, of: int | None, parts: Sequence[T | tuple[int, int]]) -> None:
        """``parts``: what is new, and ranges of the earlier sequence ``of`` with what follows on it (``follow``).

        Raises ValueError where that is not there; ``get`` raises it where it lacks the range.
        """
        if of is not None and of not in self._links:
            raise ValueError(f"{number} is made of {of}, which is not there")
        self._links[number] = _Link(of, parts, self.empty)

    def follow(self, number: int, after: T) -> None:
        """What follows on a sequence, for later ones that go on with it; at most once, and before they come."""
        self._links[number].after = after

    def get(self, number: int) -> T:
        wanted: list[int] = []
        at: int | None = number
        while at is not None and at not in self._kept:
            wanted.append(at)
            at = self._links[at].of
        for each in reversed(wanted):
            self._keep(each, self._make(self._links[each]))
        return self._kept[number]

    def _make(self, link: _Link[T]) -> T:
        base = self.empty if link.of is None else self._kept[link.of] + self._links[link.of].after
        made = self.empty
        for part in link.parts:
            if isinstance(part, tuple) and not 0 <= part[0] <= part[1] <= len(base):
                raise ValueError(f"the transcript is damaged: {part} of {len(base)}")
            made += base[part[0] : part[1]] if isinstance(part, tuple) else part
        return made

    def _keep(self, number: int, made: T) -> None:
        if len(self._kept) == _KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[number] = made
