"""Head and tail of a stream, for any cut of it into pieces."""

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
