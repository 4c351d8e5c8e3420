"""JSON in and out: by orjson, which is quick, strict, and refuses what is legal but rare.

Surrogates that stand alone become U+FFFD on the way in: no tokenizer takes them, and no UTF-8 file.
"""

import re
from typing import Any, Final

import orjson

_HEX: Final = rb"[0-9a-fA-F]"
_SURROGATES: Final = re.compile(rb"\\u[dD](?:[89abAB]%b{2}(\\u[dD][c-fC-F]%b{2})?|[c-fC-F]%b{2})" % (_HEX, _HEX, _HEX))
"""A pair, or a half that stands alone."""
_BACKSLASH, _MASKED = b"\\\\", b"\0\0"
_LEVELS: Final = 16
"""What is sent may be put so much deeper into other objects, by the transcript for one."""


def loads(raw: bytes) -> Any:
    """Raises ValueError for what is not JSON in UTF-8."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if b"\\u" not in raw or b"\0" in raw:
            raise
    return orjson.loads(_mended(raw))


def _mended(raw: bytes) -> bytes:
    """Without halves of pairs. Backslashes that are escaped themselves are none, and NUL stands in no JSON."""
    return _SURROGATES.sub(_whole, raw.replace(_BACKSLASH, _MASKED)).replace(_MASKED, _BACKSLASH)


def _whole(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] else b"\\ufffd"


def dumps(value: Any) -> bytes:
    """Raises ValueError where it is nested too deeply."""
    wrapped = value
    for _ in range(_LEVELS):
        wrapped = [wrapped]
    try:
        return orjson.dumps(wrapped)[_LEVELS:-_LEVELS]
    except orjson.JSONEncodeError as error:
        raise ValueError(str(error)) from error
