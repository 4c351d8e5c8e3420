"""What an init is busy with: a command under its minder, or a copy. Each ends with exactly one answer."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

from rolloutgen.sandbox.local import accounts, command, ptree, transfer, wire

TIMED_OUT: Final = 124


class Job(Protocol):
    """``report`` is the pipe of the fork, ``deadline`` a monotonic time, ``answer`` what goes to the driver (None: not
    yet).
    """

    number: int
    report: int
    closed: bool
    deadline: float | None
    answer: dict[str, Any] | None

    def read_report(self) -> None:
        """Take what the fork wrote."""

    def child_ended(self, pid: int, status: int) -> None:
        """A child of the init was reaped."""

    def wake(self) -> None:
        """Called now and then: undo what a hostile command may do to the fork."""

    def end(self, why: str) -> None:
        """Kill it with everything it started; ``why`` becomes a key of the answer."""


@dataclass(slots=True)
class Exec:
    """A command. Where a hostile one killed its minder, the shell became the init's own child, and its status is still
    true.
    """

    minder: int
    report: int
    deadline: float | None
    number: int = 0
    closed: bool = False
    answer: dict[str, Any] | None = None
    _data: bytes = b""
    _ended: dict[int, int] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        message: wire.Message,
        descriptors: Sequence[int],
        null: int,
        members: Sequence[int],
        rlimits: Mapping[int, int],
    ) -> Self:
        """Raises LookupError for a user that does not exist here, PermissionError for one that cannot be mapped."""
        account = accounts.find(message["user"])
        accounts.check_mapped(account)
        env = {"HOME": account.home, **message["env"]}
        outputs = (descriptors[0], descriptors[1])
        order = command.Command(message["text"], message["cwd"], env, account, outputs, null, members, rlimits)
        readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            minder = command.fork_minded(order, writable)
        finally:
            os.close(writable)
        timeout = message["timeout_sec"]
        return cls(minder, readable, None if timeout is None else time.monotonic() + timeout)

    @property
    def _shell(self) -> int | None:
        size = command.REPORT.size
        return command.REPORT.unpack(self._data[:size])[0] if len(self._data) >= size else None

    def read_report(self) -> None:
        try:
            data = os.read(self.report, 64)
        except BlockingIOError:
            return
        self._data += data
        self.closed = self.closed or not data
        if len(self._data) >= 2 * command.REPORT.size and self.answer is None:
            status = command.REPORT.unpack(self._data[command.REPORT.size : 2 * command.REPORT.size])[0]
            self.answer = {"status": _shell_status(status)}

    def child_ended(self, pid: int, status: int) -> None:
        if pid in (self._shell, self.minder):
            self._ended[pid] = status
            self._settle(pid)

    def _settle(self, pid: int) -> None:
        """The minder or an orphaned shell is gone: is there still a status to come?"""
        if self.answer is None:
            self.read_report()
        if self.answer is not None:
            return
        shell = self._shell
        if shell in self._ended:
            self.answer = {"status": _shell_status(self._ended[shell])}
        elif pid == self.minder and (shell is None or not _is_child(shell)):
            self.answer = {"lost": True}

    def wake(self) -> None:
        if self.minder not in self._ended:
            os.kill(self.minder, signal.SIGCONT)

    def end(self, why: str) -> None:
        self.deadline = None
        if self.answer is not None:
            return
        roots = [self.minder, *([self._shell] if self._shell and self.minder in self._ended else [])]
        left = [root for root in roots if not ptree.kill_tree(root)]
        self.answer = {"status": TIMED_OUT, why: True, "clean": not left}


@dataclass(slots=True)
class Copy:
    """A copy in either direction."""

    worker: int
    report: int
    number: int = 0
    closed: bool = False
    deadline: float | None = None
    answer: dict[str, Any] | None = None
    _data: bytes = b""
    _ended: bool = False

    @classmethod
    def start(cls, message: wire.Message, descriptors: Sequence[int]) -> Self:
        readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        channel, path = descriptors[0], message["path"]
        work = transfer.upload if message["direction"] == "upload" else transfer.download
        try:
            worker = command.fork_copy(transfer.reporting(writable, lambda: work(channel, path)))
        finally:
            os.close(writable)
        return cls(worker, readable)

    def read_report(self) -> None:
        try:
            data = os.read(self.report, 8192)
        except BlockingIOError:
            return
        self._data += data
        if not data and self.answer is None:
            self.closed = True
            self.answer = transfer.parse_report(self._data)

    def child_ended(self, pid: int, status: int) -> None:  # noqa: ARG002  (as the Protocol has it)
        """Its report says all; the pipe's end follows."""
        self._ended = self._ended or pid == self.worker

    def wake(self) -> None:
        if not self._ended:
            os.kill(self.worker, signal.SIGCONT)

    def end(self, why: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.worker, signal.SIGKILL)
        self.answer = self.answer or {"error": why}


def _shell_status(status: int) -> int:
    """A wait status as a shell says it: 128+n for a death by signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _is_child(pid: int) -> bool:
    """Whether ``pid`` lives, or waits to be reaped, as a child of this process."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
