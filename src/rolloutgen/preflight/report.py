"""Running the checks, and what comes of it."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from rolloutgen.config.reading import Draft
from rolloutgen.errors import Finding, FindingsError, Level, StoreError
from rolloutgen.exits import Exit
from rolloutgen.plan import Plan, make_plan
from rolloutgen.preflight import config, data, gateway, host, model, sandbox, server
from rolloutgen.preflight.check import Check, Context, placed, run_checks
from rolloutgen.tasks import TaskFacts, look

_PLAN_KEYS: Final = frozenset({"INDEX_FILE", "INSTANCES_FILE", "RESULTS_DIR", "N_TRIALS", "ATTEMPTS_PER_TRIAL"})
_CHECKS: Final[tuple[Check, ...]] = (
    *data.CHECKS,
    *config.CHECKS,
    *model.CHECKS,
    *server.CHECKS,
    *gateway.CHECKS,
    *sandbox.CHECKS,
    *host.CHECKS,
)
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Report:
    """Every finding, those of the config first. ``plan`` is None where it could not be made."""

    findings: tuple[Finding, ...]
    plan: Plan | None

    @property
    def fatal(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level is Level.FATAL)

    @property
    def exit_code(self) -> Exit:
        if self.fatal or self.plan is None:
            return Exit.USAGE
        return what_next(self.plan)


def what_next(plan: Plan) -> Exit:
    """Go on, or end at once: everything has a verdict, or the rest has used up its attempts."""
    if plan.n_to_try:
        return Exit.OK
    return Exit.INCOMPLETE if plan.scan.n_owed else Exit.NOTHING_OWED


async def preflight(draft: Draft, launch_id: str = "", *, repair: bool = False) -> Report:
    """Check everything. ``launch_id`` marks the probe sandbox (empty: there is no launch).

    ``repair``: see ``make_plan``; without it nothing is written anywhere.
    """
    with ThreadPoolExecutor(_THREADS, "preflight") as executor:
        in_thread = asyncio.get_running_loop().run_in_executor
        plan, problems = await in_thread(executor, _plan, draft, repair)
        tasks = await in_thread(executor, _tasks, plan) if plan is not None else None
        found = await run_checks(_CHECKS, Context(draft, launch_id or f"check-{os.getpid()}", plan, tasks), executor)
    return Report((*draft.findings, *placed(problems, draft), *found), plan)


def _plan(draft: Draft, repair: bool) -> tuple[Plan | None, tuple[Finding, ...]]:
    if _PLAN_KEYS & draft.invalid:
        return None, ()
    try:
        return make_plan(draft.settings, repair=repair), ()
    except FindingsError as error:
        return None, error.findings
    except StoreError as error:
        return None, (Finding(Level.FATAL, "RESULTS_DIR", str(error), mend="mend the disk or the permissions"),)


def _tasks(plan: Plan) -> TaskFacts:
    return look(plan.shard.instances[position] for position in plan.scan.owed_positions())
