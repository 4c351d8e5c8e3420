"""The task index, Arrow in and Arrow out: validate, select a shard, filter."""

from rolloutgen.index.filtered import write_filtered
from rolloutgen.index.shard import Shard, select
from rolloutgen.index.table import Index

__all__ = ["Index", "Shard", "select", "write_filtered"]
