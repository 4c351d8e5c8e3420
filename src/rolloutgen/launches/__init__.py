"""Launches of this host: their records in logs/.launches, and the removal of what dead ones left."""

from rolloutgen.launches.record import Launch, begin, driver, end, mark_driver, read, read_all
from rolloutgen.launches.sweep import cleanup, end_launch, sweep

__all__ = [
    "Launch",
    "begin",
    "cleanup",
    "driver",
    "end",
    "end_launch",
    "mark_driver",
    "read",
    "read_all",
    "sweep",
]
