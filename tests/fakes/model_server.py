"""The scripted model server (upstream.py) under the names by which the tests of scaffolds and engine know it."""

from fakes.answers import CONTEXT, DROP, GARBAGE, HANG, OVERLOADED, RATE_LIMIT, Call, Fault
from fakes.upstream import Upstream as ModelServer

__all__ = ["CONTEXT", "DROP", "GARBAGE", "HANG", "OVERLOADED", "RATE_LIMIT", "Call", "Fault", "ModelServer"]
