"""C7: a call that was left in the text."""

import pytest

from rolloutgen.gateway import markup


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('I look.\n<tool_call>\n{"name": "ls"}', "<tool_call"),
        ("<function=ls><parameter=x>", "<function="),
        ('[TOOL_CALLS] [{"name": "ls"}]', "[TOOL_CALLS]"),
        ('<|python_tag|>{"name": "ls"}', "<|python_tag|>"),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool"),
        ('<invoke name="ls">', "<invoke name="),
        ("I would call the tool ls(), function by function, with a[functools.reduce]", ""),
        ("if a <tool and b> c: pass", ""),
    ],
)
def test_openings_of_the_common_formats_are_known(text: str, found: str) -> None:
    assert markup.find(text) == found
