"""Users of a sandbox, read from its own /etc/passwd and /etc/group by hand.

Not by ``pwd``: that would load the image's NSS libraries into a process of ours.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_MAX_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a command runs as. ``groups`` are the supplementary ones."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    name: str = "root"
    home: str = "/root"


def find(user: str | int | None) -> Account:
    """The account of a name, a uid, or a uid as text; root for None. Raises LookupError for an unknown name."""
    if user is None or user in (0, "0", "root"):
        return Account()
    wanted = str(user)
    for name, _, uid, gid, _, home, *_ in _rows("/etc/passwd", 7, (2, 3)):
        if wanted in (name, uid):
            return Account(int(uid), int(gid), _groups_of(name), name, home or "/")
    if not wanted.isdecimal():
        raise LookupError(f"there is no user {wanted!r} in this sandbox's /etc/passwd")
    return Account(int(wanted), int(wanted), (), wanted, "/")


def check_mapped(account: Account) -> None:
    """Raise PermissionError where the sandbox's user namespace does not know this uid or gid."""
    for kind, number in (("uid", account.uid), ("gid", account.gid)):
        if not _is_mapped(kind, number):
            raise PermissionError(
                f"user {account.name!r} ({kind} {number}) does not exist in this sandbox: an ordinary user of the "
                f"machine can offer root alone; run as root, or let the task run as root"
            )


def _is_mapped(kind: str, number: int) -> bool:
    with open(f"/proc/self/{kind}_map", encoding="ascii") as table:
        ranges = [[int(word) for word in line.split()] for line in table]
    return any(first <= number < first + count for first, _, count in ranges)


def _groups_of(name: str) -> tuple[int, ...]:
    return tuple(int(gid) for _, _, gid, members, *_ in _rows("/etc/group", 4, (2,)) if name in members.split(","))


def _rows(path: str, columns: int, numbers: tuple[int, ...]) -> Iterator[list[str]]:
    """The rows of a file that a hostile sandbox may have replaced by anything: bounded, and never waiting."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        text = os.read(descriptor, _MAX_BYTES).decode(errors="replace") if regular else ""
    finally:
        os.close(descriptor)
    for line in text.splitlines():
        row = line.split(":")
        if len(row) >= columns and all(row[column].isdecimal() for column in numbers):
            yield row
