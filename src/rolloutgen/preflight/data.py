"""Checks of the data: index and shard, the owed tasks' folders, and what is stored of earlier launches."""

from collections.abc import Iterator
from typing import Final

from rolloutgen.changes import changed_tasks
from rolloutgen.errors import Finding
from rolloutgen.preflight.check import Check, Context, fatal, first_names, ok, warn


def _shard(context: Context) -> Iterator[Finding]:
    """What is wrong with index and instances file was found while the plan was made."""
    assert context.plan is not None
    shard = context.plan.shard
    yield from shard.warnings
    yield ok("INDEX_FILE", f"{len(shard.index)} instances, {len(shard)} of them in this shard")


def _results(context: Context) -> Iterator[Finding]:
    """What lies in RESULTS_DIR: done, owed, and what does not belong to this shard (C12, C15)."""
    plan = context.plan
    assert plan is not None
    scan = plan.scan
    yield ok("RESULTS_DIR", f"{scan.n_done} of {scan.n_planned} trials done, {scan.n_owed} owed")
    yield from scan.findings
    if plan.n_exhausted:
        yield warn(
            "ATTEMPTS_PER_TRIAL",
            f"{plan.n_exhausted} trials have used up their attempts and are not tried again",
            "RETRY_EXHAUSTED=1 gives them as many again",
        )


def _tasks(context: Context) -> Iterator[Finding]:
    facts = context.tasks
    assert facts is not None
    if facts.n_problems:
        yield fatal(
            "INDEX_FILE",
            f"{facts.n_problems} of {facts.n_tasks} owed tasks are not whole: "
            + first_names(facts.problems, facts.n_problems),
            "mend the task folders, or leave those instances out with INSTANCES_FILE",
        )
    else:
        yield ok("tasks", f"{facts.n_tasks} owed tasks have task.toml, instruction and tests")


def _memory(context: Context) -> Iterator[Finding]:
    """BACKEND=local: files of a sandbox lie in memory too, so one without a limit can take the whole machine."""
    facts, settings = context.tasks, context.settings
    assert facts is not None
    if settings.backend == "local" and settings.sandbox_memory_mb is None and facts.n_unlimited:
        yield warn(
            "SANDBOX_MEMORY_MB",
            f"{facts.n_unlimited} owed tasks limit no memory: one agent that fills its disk can end the run, "
            "and the server with it",
            "set SANDBOX_MEMORY_MB, or memory_mb in those tasks",
        )


def _changed(context: Context) -> Iterator[Finding]:
    """A measurement of one task must not mix two versions of it."""
    assert context.plan is not None
    changed = changed_tasks(context.plan)
    if changed.ids:
        yield fatal(
            "RESULTS_DIR",
            f"{len(changed.ids)} tasks have changed since trials of them were scored: {first_names(changed.ids)}",
            "bring the tasks back, or measure anew in another RESULTS_DIR",
        )
    elif changed.n_compared:
        yield ok("RESULTS_DIR", f"{changed.n_compared} tasks are as they were when trials of them were scored")
    if changed.n_not_compared:
        yield warn("RESULTS_DIR", f"{changed.n_not_compared} finished tasks were not compared with what was scored")


_DATA: Final = ("INDEX_FILE", "INSTANCES_FILE", "RESULTS_DIR", "N_TRIALS")

CHECKS: Final = (
    Check("INDEX_FILE", _shard, _DATA, plan=True),
    Check("RESULTS_DIR", _results, (*_DATA, "ATTEMPTS_PER_TRIAL", "RETRY_EXHAUSTED"), plan=True),
    Check("tasks", _tasks, _DATA, plan=True, work=True),
    Check("memory", _memory, (*_DATA, "BACKEND", "SANDBOX_MEMORY_MB"), plan=True, work=True),
    Check("changed tasks", _changed, _DATA, plan=True),
)
