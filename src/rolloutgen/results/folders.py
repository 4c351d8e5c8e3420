"""The folders of one instance: which trials and attempts there are, and the two moves that are ever made.

A move is a rename inside the instance's folder; nothing is deleted, and no symbolic link is followed.
"""

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rolloutgen.paths import OUTCOME, attempt_name, parse_attempt_name, parse_trial_name, trial_name
from rolloutgen.results.durable import sync_folder
from rolloutgen.results.records import InvalidRecordError, Record, decode

_FIRST_READ: Final = 65_536
"""Bytes; nearly every outcome.json is shorter, and is read by one call."""


@dataclass(slots=True)
class Listing:
    """Trial numbers that have a folder of their own, trial number -> numbers of its attempts, and what is no folder.

    ``odd``: names that should be folders and are links or files; their numbers count as seen.
    """

    trials: set[int] = field(default_factory=set)
    attempts: dict[int, list[int]] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)

    def highest(self, trial: int) -> int:
        """The highest attempt number ever seen (0: none)."""
        return max(self.attempts.get(trial, ()), default=0)


def listing(folder: str) -> Listing:
    """What lies in an instance's folder; empty where there is none. Raises OSError."""
    found = Listing()
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return found
    with entries:
        for entry in entries:
            _sort_in(entry, found)
    return found


def _sort_in(entry: os.DirEntry[str], found: Listing) -> None:
    number, attempt = parse_trial_name(entry.name), parse_attempt_name(entry.name)
    if attempt is not None:
        found.attempts.setdefault(attempt[0], []).append(attempt[1])
    elif number is None:
        return
    if not entry.is_dir(follow_symlinks=False):
        found.odd.append(entry.name)
    elif number is not None:
        found.trials.add(number)


def read_record(folder: str) -> Record | None:
    """The outcome in a trial's or attempt's folder; None: it has none. Raises InvalidRecordError, OSError."""
    try:
        # NONBLOCK: whatever lies there under this name, the scan does not hang on it
        descriptor = os.open(f"{folder}/{OUTCOME}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno == errno.ELOOP:
            raise InvalidRecordError("a symbolic link") from None
        raise
    try:
        data = os.read(descriptor, _FIRST_READ)
        if len(data) == _FIRST_READ:
            data += b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
    except IsADirectoryError:
        raise InvalidRecordError("a folder") from None
    finally:
        os.close(descriptor)
    return decode(data)


def promote(instance: Path, trial: int, attempt: int) -> None:
    """Give the attempt that holds the verdict the trial's name, durably. Raises OSError."""
    set_aside(instance, trial)
    (instance / attempt_name(trial, attempt)).rename(instance / trial_name(trial))
    sync_folder(instance)


def set_aside(instance: Path, trial: int) -> None:
    """Make the trial's name free: what holds it without a verdict (C9) becomes an attempt. Raises OSError.

    The caller knows that no verdict lies there.
    """
    taken = instance / trial_name(trial)
    if os.path.lexists(taken):
        taken.rename(instance / attempt_name(trial, listing(str(instance)).highest(trial) + 1))
        sync_folder(instance)
