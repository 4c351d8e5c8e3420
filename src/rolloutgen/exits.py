"""Exit codes of every command, and what they mean."""

from enum import IntEnum


class Exit(IntEnum):
    """What a launcher does next, and what a person is told."""

    OK = 0
    """Every trial has a verdict; or, of a check, a run would start."""
    FAILED = 1
    USAGE = 2
    """Usage, config or preflight: nothing was started."""
    INCOMPLETE = 3
    """Finished, some trials without a verdict."""
    NOTHING_OWED = 10
    """Of ``check`` and ``prepare``: every trial has its verdict, so no server and no driver are needed."""
    INTERRUPTED = 130
    TERMINATED = 143
