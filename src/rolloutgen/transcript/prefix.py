"""What two sequences share: at their beginning, and in pieces. At the speed of memory, not of Python."""

from typing import Final

_WINDOW: Final = 32
"""Elements that must be alike before a piece counts as shared."""
_PIECES_MAX: Final = 16
_SEARCHED_MAX: Final = 2 << 20
"""So many characters or bytes are searched at most: a few milliseconds, also where nothing is shared."""


def common_prefix[T: (str, bytes)](one: T, other: T) -> int:
    """Length of the longest beginning that both have."""
    same, different = 0, min(len(one), len(other)) + 1
    if one[: different - 1] == other[: different - 1]:
        return different - 1
    while different - same > 1:
        middle = (same + different) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            different = middle
    return same


def common_parts[T: (str, bytes)](old: T, new: T, width: int = 1) -> list[T | tuple[int, int]]:
    """``new`` as a list of ranges of ``old`` and of what is not there; elements are ``width`` long.

    Finds the common beginning, and then most of what an insertion, a cut or an exchange left as it was: not all.
    """
    parts: list[T | tuple[int, int]] = []
    at = behind = 0
    length = common_prefix(old, new) // width * width
    budget = _SEARCHED_MAX
    while True:
        if length:
            parts.append((behind, behind + length))
        at, behind = at + length, behind + length
        found, budget = _next_piece(old, behind, new, at, width, budget)
        if found is None or len(parts) >= _PIECES_MAX:
            break
        begin, there = found
        if there > at:
            parts.append(new[at:there])
        at, behind, length = there, begin, common_prefix(old[begin:], new[there:]) // width * width
    if at < len(new):
        parts.append(new[at:])
    return parts


def _next_piece[T: (str, bytes)](
    old: T, behind: int, new: T, at: int, width: int, budget: int
) -> tuple[tuple[int, int] | None, int]:
    """Where a piece of ``old`` past ``behind`` begins, in it and in ``new`` past ``at``; and the rest of the budget."""
    window = _WINDOW * width
    for place in _probes(behind, len(old) - window, window):
        if len(new) - at < window or budget <= 0:
            break
        found = new.find(old[place : place + window], at)
        budget -= (found if found >= 0 else len(new)) - at
        if found >= 0 and found % width == 0:
            back = common_prefix(old[behind:place][::-1], new[at:found][::-1]) // width * width
            return (place - back, found - back), budget
    return None, budget


def _probes(first: int, last: int, step: int) -> list[int]:
    """Places from ``first`` to ``last``, ever more apart from either end; the nearest first, lest any is missed."""
    if first > last:
        return []
    steps = [0, *(step << power for power in range(((last - first) // step).bit_length()))]
    return sorted({each for far in steps for each in (first + far, last - far)})
