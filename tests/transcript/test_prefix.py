"""What two prompts share is found where an edit left it, and told without loss."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutgen.transcript.pieces import packed
from rolloutgen.transcript.prefix import common_parts, common_prefix


def together[T: (str, bytes)](old: T, parts: list[T | tuple[int, int]]) -> T:
    made = old[:0]
    for part in parts:
        made += old[part[0] : part[1]] if isinstance(part, tuple) else part
    return made


def new_in(parts: list[bytes | tuple[int, int]]) -> int:
    """Ids that are not of the older prompt."""
    return sum(len(part) for part in parts if isinstance(part, bytes)) // 4


@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_the_common_beginning_is_the_longest(one: str, other: str) -> None:
    n = common_prefix(one, other)
    assert one[:n] == other[:n]
    assert one[n : n + 1] != other[n : n + 1] or n == len(one) == len(other)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_edited_ids_are_put_together_again(data: st.DataObject) -> None:
    """Whatever is cut, put in or exchanged, also where few ids repeat for ever."""
    most = data.draw(st.sampled_from([1, 3, 200_000]))
    ids = data.draw(st.lists(st.integers(0, most), max_size=40)) * data.draw(st.integers(1, 12))
    edited = list(ids)
    for _ in range(data.draw(st.integers(0, 4))):
        begin = data.draw(st.integers(0, len(edited)))
        end = data.draw(st.integers(begin, len(edited)))
        edited[begin:end] = data.draw(st.lists(st.integers(0, most), max_size=50))
    old, new = packed(ids), packed(edited)
    assert together(old, common_parts(old, new, 4)) == new
    letters = ("".join(map(chr, ids)), "".join(map(chr, edited)))
    assert together(letters[0], common_parts(*letters)) == letters[1]


def test_an_edit_costs_what_it_changed() -> None:
    """The first message exchanged, the middle cut out, something put in: the rest is not told again."""
    ids = [(number * 2_654_435_761) % 150_000 for number in range(20_000)]
    for edited, at_most in (
        ([1, 2, 3, *ids[10:], 4], 40),
        ([*ids[:100], *ids[17_000:]], 40),
        ([*ids[:9_000], 5, 6, 7, *ids[9_000:], 8], 40),
        ([*ids[:50], 9, *ids[70:15_000], 10, *ids[15_040:]], 150),
        ([*ids[:50], *ids[19_000:]], 600),
    ):
        parts = common_parts(packed(ids), packed(edited), 4)
        assert together(packed(ids), parts) == packed(edited)
        assert new_in(parts) <= at_most
