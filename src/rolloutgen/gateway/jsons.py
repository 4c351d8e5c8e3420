"""JSON in and out: by orjson, which is quick, strict, and refuses what is legal but rare.

Surrogates that stand alone become U+FFFD on the way in: no tokenizer takes them, and no UTF-8 file.
"""

import json
import re
from typing import Any, Final

import orjson

_LONE: Final = re.compile("[\ud800-\udfff]")
_LEVELS: Final = 16
"""What is sent may be put so much deeper into other objects, by the transcript for one."""


def loads(raw: bytes) -> Any:
    """Raises ValueError for what is not JSON in UTF-8."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if b"\\u" not in raw:
            raise
    try:
        return _clean(json.loads(raw, parse_int=orjson.loads, parse_float=orjson.loads, parse_constant=_refuse))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dumps(value: Any) -> bytes:
    """Raises ValueError where it is nested too deeply."""
    wrapped = value
    for _ in range(_LEVELS):
        wrapped = [wrapped]
    try:
        return orjson.dumps(wrapped)[_LEVELS:-_LEVELS]
    except orjson.JSONEncodeError as error:
        raise ValueError(str(error)) from error


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_LONE.sub("\ufffd", name): _clean(item) for name, item in value.items()}
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
