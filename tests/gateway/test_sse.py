"""Server-sent events in pieces of any size."""

from hypothesis import given
from hypothesis import strategies as st

from rolloutgen.gateway.sse import DONE, DONE_EVENT, KEEP_ALIVE, Events, event


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=5), st.data())
def test_pieces_of_any_size_make_the_same_events(payloads: list[dict[str, str]], data: st.DataObject) -> None:
    stream = b"".join([KEEP_ALIVE, *(event(payload) for payload in payloads), KEEP_ALIVE, DONE_EVENT])
    whole = Events().feed(stream)
    events, found = Events(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += events.feed(stream[:size])
        stream = stream[size:]
    assert found == whole
    assert len(found) == len(payloads) + 1
    assert found[-1] == DONE


def test_other_servers_forms_are_read_too() -> None:
    """CRLF, no space behind the colon, comments and other fields."""
    assert Events().feed(b': hi\r\nevent: x\r\ndata:{"a":1}\r\n\r\ndata: [DONE]\r\n') == [b'{"a":1}', DONE]
    assert Events().feed(b"data: half") == []
