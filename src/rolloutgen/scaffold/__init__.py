"""The scaffolds that are ours: agent programs that drive the model."""

from collections.abc import Callable, Mapping
from typing import Final

from rolloutgen.scaffold.base import Scaffold
from rolloutgen.settings import Settings


def _shell(settings: Settings) -> Scaffold:
    from rolloutgen.scaffold.shell import Shell

    return Shell.build(settings)


SCAFFOLDS: Final[Mapping[str, Callable[[Settings], Scaffold]]] = {"shell": _shell}
"""Name -> how to build it. ``oracle`` and ``nop`` are Harbor's, and the engine's."""

TOOL_USERS: Final[frozenset[str]] = frozenset()
"""Names of the scaffolds whose calls carry tools."""

THOUGHT_READERS: Final[frozenset[str]] = frozenset({"shell"})
"""Names of the scaffolds that take a model's thoughts out of its text themselves."""

VERSIONS: Final[Mapping[str, str]] = {"shell": "1"}
"""Name -> version, part of a run's fingerprint: raised with every change of what the model is told or allowed."""


PINS_VERSION: Final = "1"
"""Part of a run's fingerprint: raised with every change of what a call carries when the gateway has pinned it."""


def build(settings: Settings) -> Scaffold:
    """The scaffold that the settings name. Raises ValueError for a name that is not known, with those that are."""
    maker = SCAFFOLDS.get(settings.scaffold)
    if maker is None:
        raise ValueError(f"no scaffold {settings.scaffold!r}; known: {', '.join(sorted(SCAFFOLDS))}")
    return maker(settings)
