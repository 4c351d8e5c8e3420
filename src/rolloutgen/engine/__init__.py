"""One attempt -> one Outcome, with Harbor as the engine. Nothing outside this package imports harbor.

``Engine`` is imported without Harbor; it brings Harbor in when it is made.
"""

from rolloutgen.engine.engine import Engine

__all__ = ["Engine"]
