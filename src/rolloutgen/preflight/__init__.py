"""Preflight: every problem that can be seen before anything starts, all of them at once. Writes nothing, by default.

One file a topic; each declares its ``CHECKS``. What costs nothing where nothing is owed is left out then: a model, a
server or a sandbox that no trial needs is no problem.
"""

from rolloutgen.preflight.report import Report, preflight, what_next

__all__ = ["Report", "preflight", "what_next"]
