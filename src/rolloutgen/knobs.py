"""How a setting is declared and read: ``knob`` declares it, a parser reads its text, ``Value`` says where it was set.

A parser takes the text of a value as Bash read it and returns the typed value, or raises ``ValueError`` with a text
that ends the sentence "KEY ...". Texts are never stripped or guessed: ``"4 "`` is not a number.
"""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Parser = Callable[[str], object]

_INT: Final = re.compile(r"-?[0-9]{1,15}")
_FLOAT: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Value:
    """The text of one key, and where it was set: ``my.env:12``, ``scripts/templates/serving.env:3`` or ``default``."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Knob:
    """The declaration of one key of a config.

    ``default`` is its text where none is set; None: there is none. ``layer`` names the templates that bring it instead
    (``serving``, ``backend``, ``scaffold``). ``need``: ``always`` (the config must set it) or empty. ``scope``:
    ``model`` means that only scaffolds that ask a model use it and need it. ``measures``: it is part of the run's
    fingerprint. ``empty``: what an empty value means.
    """

    parse: Parser
    meaning: str
    unit: str
    default: str | None
    layer: str
    need: str
    scope: str
    example: str
    measures: bool
    empty: str


def knob(
    parse: Parser,
    meaning: str,
    *,
    default: str | None = None,
    unit: str = "",
    layer: str = "",
    need: str = "",
    scope: str = "",
    example: str = "",
    measures: bool = False,
    empty: str = "",
) -> Any:
    """A dataclass field that carries its Knob."""
    declared = Knob(parse, meaning, unit, default, layer, need, scope, example, measures, empty)
    return dataclasses.field(metadata={"knob": declared})


def text(pattern: str, wanted: str) -> Parser:
    """A text that matches ``pattern`` whole; ``wanted`` says what that is."""
    compiled = re.compile(pattern)

    def parse(raw: str) -> str:
        if not compiled.fullmatch(raw):
            raise ValueError(f"must be {wanted}")
        return raw

    return parse


def choice(*names: str) -> Parser:
    def parse(raw: str) -> str:
        if raw not in names:
            raise ValueError(f"must be one of: {', '.join(names)}")
        return raw

    return parse


def flag(raw: str) -> bool:
    if raw not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return raw == "1"


def integer(low: int, high: int | None = None) -> Parser:
    wanted = f"a whole number from {low} to {high}" if high is not None else f"a whole number, {low} or more"

    def parse(raw: str) -> int:
        if not _INT.fullmatch(raw) or int(raw) < low or (high is not None and int(raw) > high):
            raise ValueError(f"must be {wanted}")
        return int(raw)

    return parse


def number(low: float, high: float | None = None, *, above: bool = False) -> Parser:
    """A finite number from ``low`` (``above``: over it) to ``high``."""
    start = f"over {low:g}" if above else f"{low:g} or more"
    wanted = f"a number, {start}" + (f", at most {high:g}" if high is not None else "")

    def parse(raw: str) -> float:
        value = float(raw) if _FLOAT.fullmatch(raw) else math.nan
        inside = value > low if above else value >= low
        if not (math.isfinite(value) and inside and (high is None or value <= high)):
            raise ValueError(f"must be {wanted}")
        return value

    return parse


def optional(parser: Parser) -> Parser:
    """An empty text is None; ``Knob.empty`` says what that means."""
    return lambda raw: None if raw == "" else parser(raw)


def path(raw: str) -> Path:
    """A path, not resolved yet. Control characters would break logs and process lists; records hold UTF-8 alone."""
    if raw == "" or re.search(r"[\x00-\x1f]", raw):
        raise ValueError("must be a path without control characters")
    if re.search(r"[\ud800-\udfff]", raw):
        raise ValueError("must be a path in UTF-8")
    return Path(raw)


def words(raw: str) -> tuple[str, ...]:
    """Words quoted as in a shell."""
    try:
        return tuple(shlex.split(raw))
    except ValueError as error:
        raise ValueError(f"must be words quoted as in a shell ({error})") from None


def json_object(raw: str) -> Mapping[str, Any]:
    """A JSON object, without the NaN and Infinity that Python takes and JSON has not."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(raw, parse_constant=refuse)
    except ValueError as error:
        raise ValueError(f"must be a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object, such as '{\"enable_thinking\": false}'")  # noqa: TRY004  # as parsers do
    return value


def pairs(wanted: str) -> Parser:
    """Words ``NAME=VALUE`` quoted as in a shell, each name once; ``wanted`` describes one of them."""

    def parse(raw: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for word in words(raw):
            name, equals, value = word.partition("=")
            if not (name and equals and value):
                raise ValueError(f"must be words {wanted}; this one is not: {word!r}")
            if name in found:
                raise ValueError(f"names {name!r} twice")
            found[name] = value
        return found

    return parse
