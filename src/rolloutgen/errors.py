"""The error tree: what a person must mend (``FindingsError``), and what an attempt died of (``AttemptError``).

An ``AttemptError`` names the boundary that was crossed by its ``cause``; the exception it came from stays attached as
``__cause__``. Anything else that escapes from an attempt is a bug of ours and counts as ``Cause.INTERNAL``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rolloutgen.outcomes import Cause


class RolloutgenError(Exception):
    """Base of every error that this project raises on purpose."""


class Level(StrEnum):
    """How bad a finding is: a ``FATAL`` one forbids the start."""

    FATAL = "FATAL"
    WARN = "WARN"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check, for people.

    ``subject`` is the key or thing checked, ``message`` says what is wrong and its value, ``where`` where it was set
    (``my.env:12``; empty where that has no meaning), ``mend`` how to mend it (empty for ``ok``).
    """

    level: Level
    subject: str
    message: str
    where: str = ""
    mend: str = ""


class FindingsError(RolloutgenError):
    """What a person must mend before anything starts: one or more fatal findings (exit code 2)."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{f.subject}: {f.message}" for f in self.findings))


class RunFailedError(RolloutgenError):
    """The run cannot go on, and everything is resumable (exit code 1)."""


class StoreError(RolloutgenError):
    """Results could not be written or read; loud, never skipped."""


class AttemptError(RolloutgenError):
    """An attempt ended without a verdict, for a reason that is known."""

    def __init__(self, cause: Cause, message: str) -> None:
        self.cause = cause
        super().__init__(message)


class SandboxError(AttemptError):
    """The sandbox did not start, or is not the machine any more that it was."""

    def __init__(self, message: str, cause: Cause = Cause.SANDBOX_LOST) -> None:
        super().__init__(cause, message)


class NoSpaceError(SandboxError):
    """The sandbox's own disk has no room for what is copied into it."""


class TransportError(AttemptError):
    """An exec or a copy was lost: there is no exit status, and none is guessed."""

    def __init__(self, message: str) -> None:
        super().__init__(Cause.TRANSPORT, message)


class CommandLostError(TransportError):
    """The command's wrapper is gone without a status in a sandbox that is healthy otherwise."""


class InferenceError(AttemptError):
    """A model call failed for our reasons: refused, 5xx, died, hung."""

    def __init__(self, message: str, cause: Cause = Cause.MODEL_CALL) -> None:
        super().__init__(cause, message)
