"""Parallel waits count once."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.gateway.spans import Union

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda two: (min(two), max(two))), max_size=12)


def _moments(spans: list[tuple[int, int]]) -> int:
    return len({moment for begin, end in spans for moment in range(begin, end)})


@given(SPANS)
def test_the_length_is_that_of_all_moments_in_any_span(spans: list[tuple[int, int]]) -> None:
    union = Union()
    for begin, end in sorted(spans, key=lambda span: span[1]):
        union.add(begin, end)
    assert union.length(60, 60) == _moments(spans)


@given(SPANS, st.integers(0, 60))
def test_an_open_span_counts_up_to_now_and_is_not_kept(spans: list[tuple[int, int]], begin: int) -> None:
    union = Union()
    for first, last in sorted(spans, key=lambda span: span[1]):
        union.add(first, last)
    assert union.length(begin, 60) == _moments([*spans, (begin, 60)])
    assert union.length(60, 60) == _moments(spans)


def test_what_is_settled_stays_counted() -> None:
    union = Union()
    union.add(0, 10)
    union.settle()
    union.add(10, 15)
    assert union.length(20, 21) == 16
