"""Head and tail of a stream, for any cut of it into pieces."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.sandbox.output import HeadTail


@given(pieces=st.lists(st.binary(max_size=40), max_size=30), limit=st.integers(2, 200).map(lambda half: half * 2))
def test_whole_below_the_limit_else_head_and_tail(pieces: list[bytes], limit: int) -> None:
    kept = HeadTail(limit)
    for piece in pieces:
        kept.add(piece)
    everything = b"".join(pieces)
    if len(everything) <= limit:
        assert (kept.value(), kept.truncated) == (everything, False)
    else:
        missing = len(everything) - limit
        line = b"\n... %d bytes of output left out ...\n" % missing
        assert kept.truncated
        assert kept.value() == everything[: limit // 2] + line + everything[-(limit // 2) :]


def test_many_small_pieces_take_no_more_memory_than_their_bytes() -> None:
    """A command that writes two bytes at a time must not cost the driver ten times the limit."""
    tracemalloc.start()
    kept = HeadTail(1 << 18)
    for number in range(1 << 18):
        kept.add(number.to_bytes(3))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
