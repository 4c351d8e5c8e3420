"""What a check is: a small function, the keys it needs, and what it yields.

A check reads a ``Context`` and yields findings; the place of a key is filled in here. It never writes. A check whose
keys are invalid, or whose data could not be read, is skipped, and that is said: a skip is never taken for an ok.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rolloutgen.config.reading import Draft
from rolloutgen.errors import Finding, FindingsError, Level, RolloutgenError
from rolloutgen.settings import Settings

if TYPE_CHECKING:
    from rolloutgen.plan import Plan
    from rolloutgen.tasks import TaskFacts


@dataclass(frozen=True, slots=True)
class Context:
    """What checks may read. ``plan`` is None where the index, the shard or the results could not be read.

    ``tasks``: what the folders of the owed instances say; None where there is no plan.
    """

    draft: Draft
    launch_id: str
    plan: "Plan | None" = None
    tasks: "TaskFacts | None" = None

    @property
    def settings(self) -> Settings:
        return self.draft.settings


type Found = Iterable[Finding] | AsyncIterator[Finding]


@dataclass(frozen=True, slots=True)
class Check:
    """``needs``: keys; ``model``: only where a model is asked; ``plan``: needs the plan and its tasks.

    ``work``: not where nothing is owed; where nobody knows what is owed, it runs.
    """

    name: str
    run: Callable[[Context], Found]
    needs: tuple[str, ...] = ()
    model: bool = False
    plan: bool = False
    work: bool = False

    def why_not(self, context: Context) -> str | None:
        """Why it cannot run (None: it can; empty: it has no business here)."""
        if self.model and not ({"SCAFFOLD"} & context.draft.invalid) and not context.settings.uses_model:
            return ""
        if self.work and context.plan is not None and not context.plan.n_to_try:
            return ""
        wrong = sorted({*self.needs, *({"SCAFFOLD"} if self.model else ())} & context.draft.invalid)
        if wrong:
            return f"not checked before {', '.join(wrong)} is right"
        if self.plan and context.plan is None:
            return "not checked before the index and the results can be read"
        return None


def fatal(subject: str, message: str, mend: str) -> Finding:
    return Finding(Level.FATAL, subject, message, mend=mend)


def warn(subject: str, message: str, mend: str = "") -> Finding:
    return Finding(Level.WARN, subject, message, mend=mend)


def ok(subject: str, message: str) -> Finding:
    return Finding(Level.OK, subject, message)


FIRST: Final = 10
"""How many names a finding lists."""


def first_names(names: Sequence[str], total: int | None = None) -> str:
    """``a, b, c and 12 more``."""
    total = len(names) if total is None else total
    shown = ", ".join(repr(name) for name in names[:FIRST])
    return shown + (f" and {total - FIRST} more" if total > FIRST else "")


async def run_checks(checks: Sequence[Check], context: Context, executor: Executor) -> list[Finding]:
    """All findings, in the order of ``checks``; checks run at the same time, plain functions in the executor."""
    found = await asyncio.gather(*(_run_one(check, context, executor) for check in checks))
    return placed((finding for findings in found for finding in findings), context.draft)


async def _run_one(check: Check, context: Context, executor: Executor) -> list[Finding]:
    why_not = check.why_not(context)
    if why_not is not None:
        return [warn(check.name, why_not)] if why_not else []
    try:
        if inspect.isasyncgenfunction(check.run):
            return [finding async for finding in check.run(context)]
        return await asyncio.get_running_loop().run_in_executor(executor, lambda: list(_plain(check, context)))
    except FindingsError as error:
        return list(error.findings)
    except (OSError, RolloutgenError) as error:
        return [fatal(check.name, f"could not be checked: {error}", "see the message")]


def _plain(check: Check, context: Context) -> Iterator[Finding]:
    found = check.run(context)
    assert not isinstance(found, AsyncIterator)
    yield from found


def placed(findings: Iterable[Finding], draft: Draft) -> list[Finding]:
    """The findings, those about a key with the place where it was set."""
    return [_placed(finding, draft) for finding in findings]


def _placed(finding: Finding, draft: Draft) -> Finding:
    value = draft.values.get(finding.subject)
    return replace(finding, where=value.where) if value is not None and not finding.where else finding
