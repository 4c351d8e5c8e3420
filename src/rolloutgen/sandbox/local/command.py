"""Processes that an init forks: a command under its minder, and a copy.

The minder is a subreaper: whatever the command starts stays below it, also what forks twice or makes a session of its
own, so that the whole tree can be found and killed. It reports the shell's pid and then its wait status, and leaves;
daemons that the ended command left are then the init's children, as in a container.
"""

import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from rolloutgen.sandbox.local import linux
from rolloutgen.sandbox.local.accounts import Account

REPORT: Final = struct.Struct("=i")
"""One number of a minder: first the shell's pid, then its wait status."""
CANNOT_RUN: Final = 126
"""Exit status where the shell could not be started (missing working directory, no memory): stderr says why."""

_SHELLS: Final = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh", "/bin/busybox")
_OPEN_FILES: Final = 65_536
_OOM_SCORE: Final = 500
"""Where the machine itself runs out of memory, a sandbox's command goes before the driver and the model server."""


@dataclass(frozen=True, slots=True)
class Command:
    """One exec. ``outputs`` are the descriptors of stdout and stderr, ``members`` those of the limits' groups."""

    text: str
    cwd: str
    env: Mapping[str, str]
    account: Account
    outputs: tuple[int, int]
    null: int
    members: Sequence[int]
    rlimits: Mapping[int, int]


def find_shell() -> str | None:
    return next((path for path in _SHELLS if os.access(path, os.X_OK)), None)


def require_shell(image: str) -> None:
    """Raise FileNotFoundError where ``image`` has none."""
    if find_shell() is None:
        raise FileNotFoundError(f"{image}: it has no bash and no sh")


def fork_minded(command: Command, report: int) -> int:
    """Start ``command`` under a minder that writes to ``report``; the pid of the minder."""
    return _fork(lambda: _mind(command, report))


def fork_copy(work: Callable[[], None]) -> int:
    """Run ``work`` with no more rights than a command has; its pid."""
    return _fork(lambda: _copy(work))


def _fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:  # noqa: BLE001  (nothing may run on in this fork)
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    return pid


def _copy(work: Callable[[], None]) -> None:
    _default_signals()
    os.setsid()
    linux.set_capabilities(linux.CONTAINER_CAPABILITIES)
    os.umask(0o022)
    work()
    os._exit(0)


def _mind(command: Command, report: int) -> None:
    _default_signals()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    shell = os.fork()
    if shell == 0:
        _become(command)
    for descriptor in command.outputs:
        os.close(descriptor)
    os.write(report, REPORT.pack(shell))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == shell:
            os.write(report, REPORT.pack(status))
            os._exit(0)


def _become(command: Command) -> NoReturn:
    try:
        os.dup2(command.null, 0)
        os.dup2(command.outputs[0], 1)
        os.dup2(command.outputs[1], 2)
        os.setsid()
        os.umask(0o022)
        _limit(command)
        _reduce_to(command.account)
        os.chdir(command.cwd)
        _exec_shell(command)
    except BaseException as error:  # noqa: BLE001  (nothing may run on in this fork)
        with suppress(OSError):
            os.write(2, f"the command could not be started: {error}\n".encode(errors="replace"))
    os._exit(CANNOT_RUN)


def _exec_shell(command: Command) -> NoReturn:
    shell = find_shell()
    if shell is None:
        raise FileNotFoundError("no bash and no sh is left in this sandbox")
    name = os.path.basename(shell)
    arguments = ["busybox", "sh"] if name == "busybox" else [name]
    os.execve(shell, [*arguments, "-c", command.text], dict(command.env))  # noqa: S606  (what this is for)


def _limit(command: Command) -> None:
    for member in command.members:
        os.write(member, b"0")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES
    for kind, amount in {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: files, **command.rlimits}.items():
        resource.setrlimit(kind, (amount, amount))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(str(_OOM_SCORE))


def _reduce_to(account: Account) -> None:
    if account.uid or account.gid or account.groups:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
    if account.uid:
        os.setresuid(account.uid, account.uid, account.uid)
    linux.set_capabilities(frozenset() if account.uid else linux.CONTAINER_CAPABILITIES)


def _default_signals() -> None:
    """A fork of Python ignores SIGPIPE and SIGXFSZ, and answers SIGINT and SIGCHLD; a command must not."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
