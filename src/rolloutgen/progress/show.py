"""Showing a run while it goes on: a live bar on a terminal, else lines; the log and ``progress.json`` in both cases.

The same events feed all of them. The log always gets plain lines: one a finished trial, a digest every minute.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol, TextIO

from rolloutgen.models import Outcome, Trial
from rolloutgen.progress.alarm import ToolAlarm
from rolloutgen.progress.spent import shares_line
from rolloutgen.progress.tally import Snapshot, Tally

PROGRESS: Final = "progress.json"
DIGEST_SEC: Final = 60.0
REFRESH_SEC: Final = 1.0


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_json(path: Path, record: object) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


class Display(Protocol):
    """Where a person looks."""

    def line(self, text: str) -> None:
        """Something happened."""

    def routine(self, text: str) -> None:
        """Something ordinary happened, of which there are thousands."""

    def refresh(self, snapshot: Snapshot) -> None:
        """About once a second."""

    def close(self) -> None: ...


class Lines:
    """Plain text, line by line: files, pipes, logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def line(self, text: str) -> None:
        self._stream.write(f"{utc_now()} {text}\n")
        self._stream.flush()

    def routine(self, text: str) -> None:
        self.line(text)

    def refresh(self, snapshot: Snapshot) -> None:
        """Lines do not change once they are written."""

    def close(self) -> None:
        self._stream.flush()


class Bar:
    """A live bar at the bottom of a terminal; lines scroll above it, routine ones are left to the log."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(file=stream)
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=self._console, auto_refresh=False)
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()

    def line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def routine(self, text: str) -> None:
        """The bar shows the counts."""

    def refresh(self, snapshot: Snapshot) -> None:
        self._bar.update(
            self._task, description=snapshot.line(), completed=snapshot.n_done, total=max(1, snapshot.n_planned)
        )
        self._bar.refresh()

    def close(self) -> None:
        self._bar.stop()


def display_for(stream: TextIO) -> Display:
    return Bar(stream) if stream.isatty() else Lines(stream)


class Progress:
    """The scheduler's observer. ``folder`` is the launch's own (None: no progress.json is kept).

    A display that is gone (a closed terminal, a broken pipe, a full disk) is let go: no verdict depends on it.
    """

    def __init__(
        self, tally: Tally, displays: Iterable[Display], folder: Path | None, alarm: ToolAlarm | None = None
    ) -> None:
        self._tally = tally
        self._displays = list(displays)
        self._folder = folder
        self._alarm = alarm or ToolAlarm(None)

    def started(self, trial: Trial) -> None:  # noqa: ARG002  # the observer's signature
        self._tally.started()

    def finished(self, trial: Trial, outcome: Outcome, *, retry: bool) -> None:
        self._tally.finished(outcome, retry=retry)
        self._routine(describe(trial, outcome, retry=retry))
        alarm = self._alarm.see(outcome)
        if alarm:
            self.say(alarm)

    def paused(self, reason: str, sec: float) -> None:
        self._tally.paused = reason
        self.say(f"new attempts pause for {sec:.0f} s, since this hits all alike: {reason}")

    def resumed(self) -> None:
        self._tally.paused = ""
        self.say("new attempts start again")

    def say(self, text: str) -> None:
        self._each(lambda display: display.line(text))

    def last_state(self) -> None:
        """Show where it ended."""
        self._refresh(self._tally.snapshot())
        self._write(self._tally.snapshot())

    def let_go(self) -> None:
        """Of the bar; lines may follow."""
        self._each(lambda display: display.close())

    async def keep_fresh(self) -> None:
        """Until cancelled: every second the bar and progress.json, every minute a digest."""
        loop = asyncio.get_running_loop()
        next_digest = loop.time() + DIGEST_SEC
        while True:
            snapshot = self._tally.snapshot()
            self._refresh(snapshot)
            await asyncio.to_thread(self._write, snapshot)
            if loop.time() >= next_digest:
                next_digest += DIGEST_SEC
                for line in filter(None, (snapshot.line(), shares_line(snapshot.spent))):
                    self._routine(line)
            await asyncio.sleep(REFRESH_SEC)

    def _refresh(self, snapshot: Snapshot) -> None:
        self._each(lambda display: display.refresh(snapshot))

    def _write(self, snapshot: Snapshot) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                write_json(self._folder / PROGRESS, snapshot.to_json())

    def _routine(self, text: str) -> None:
        self._each(lambda display: display.routine(text))

    def _each(self, show: Callable[[Display], None]) -> None:
        for display in list(self._displays):
            try:
                show(display)
            except OSError:
                self._displays.remove(display)


def describe(trial: Trial, outcome: Outcome, *, retry: bool) -> str:
    """One line about an attempt that ended: ``humaneval_3 trial_0: pass, reward 1, max_turns (12.3 s)``."""
    parts: list[str] = [str(outcome.result)]
    if outcome.reward is not None:
        parts.append(f"reward {outcome.reward:g}")
    parts.extend(str(flag) for flag in outcome.flags)
    if outcome.cause is not None:
        parts.append(f"{outcome.kind}: {outcome.cause}: {one_line(outcome.message)}")
        parts.append("is tried again" if retry else "stays without a verdict")
    spent = (outcome.times.sandbox_sec, outcome.times.agent_sec, outcome.times.verifier_sec)
    total_sec = sum(sec for sec in spent if sec is not None)
    return f"{one_line(trial.instance.instance_id)} trial_{trial.number}: {', '.join(parts)} ({total_sec:.1f} s)"


def one_line(text: str, limit: int = 300) -> str:
    """``text`` in one printable line: what a task or a server says must not forge lines of our log."""
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean if len(clean) <= limit else clean[:limit] + "..."
