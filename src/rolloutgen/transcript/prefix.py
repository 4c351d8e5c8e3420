"""How much two sequences share at their beginning."""


def common_prefix[T: (str, bytes)](one: T, other: T) -> int:
    """Length of the longest beginning that both have; a few comparisons at the speed of memory."""
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
