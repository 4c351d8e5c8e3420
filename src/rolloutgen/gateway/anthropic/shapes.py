"""Checks of what a client sent: a value of the wrong kind is named with its place, shortened, in a BadRequestError."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from rolloutgen.gateway.errors import BadRequestError

_SHOWN: Final = 60
_KINDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def wrong(where: str, expected: str, value: Any) -> BadRequestError:
    """The error for ``value`` at ``where`` (``messages[3].content[0].type``)."""
    shown = f" {short(value)}" if isinstance(value, str | int | float) else ""
    return BadRequestError(f"{where}: expected {expected}, got {_KINDS.get(type(value), 'something else')}{shown}")


def unserved(where: str, kind: Any, home: str) -> BadRequestError:
    """The error for a block of a type that is not known at its place.

    Claude Code drops a document that it has read when it is told so in these words (2.1.332).
    """
    if kind == "document":
        return BadRequestError(f"{where}: the model server does not support PDFs (a block 'document' in {home})")
    shown = short(kind) if isinstance(kind, str) else "without a type"
    return BadRequestError(f"{where}: a block {shown} in {home} is not served here")


def short(value: Any) -> str:
    """``value`` as a person may read it, never longer than a line."""
    if isinstance(value, str):
        return repr(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    shown = str(value) if isinstance(value, bool | float | None) or abs(value) < 2**64 else "too large"
    return shown[:_SHOWN]


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong(where, "text", value)
    return value


def name(value: Any, where: str) -> str:
    if not text(value, where):
        raise BadRequestError(f"{where}: must not be empty")
    return str(value)


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise wrong(where, "an object", value)
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise wrong(where, "a list", value)
    return value


def number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong(where, "a number", value)
    return value


def shallow(value: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """``value``, if it can be written as JSON again: orjson reads 1,024 levels and writes 254."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise BadRequestError(f"{where}: nested too deeply") from None
    return value
