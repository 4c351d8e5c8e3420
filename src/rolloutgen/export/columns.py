"""The columns of each format, in their order, and their types."""

from collections.abc import Mapping
from typing import Final

from rolloutgen.export.rows import MESSAGE_FIELDS
from rolloutgen.export.writers import Kind

_HEAD: Final[dict[str, Kind]] = {
    "schema_version": "int64",
    "run_id": "string",
    "instance_id": "string",
    "trial": "int64",
    "attempt": "int64",
    "branch": "int64",
    "part": "int64",
}
_BODY: Final[Mapping[str, dict[str, Kind]]] = {
    "messages": {"messages": [dict.fromkeys(MESSAGE_FIELDS, "string")], "tools": "string", "loss_mask": ["int64"]},
    "tokens": {"input_ids": ["int64"], "loss_mask": ["int64"]},
}
_LOGPROBS: Final[dict[str, Kind]] = {"logprobs": ["double"], "has_logprobs": "bool"}
_TAIL: Final[dict[str, Kind]] = {
    "prefix_break": "bool",
    "reward": "double",
    "result": "string",
    "flags": "string",
    "finish_reason": "string",
    "model": "string",
    "policy": "string",
    "scaffold": "string",
}


def columns(format_: str, *, logprobs: bool) -> dict[str, Kind]:
    """Name -> type; ``logprobs``: with those of tokens."""
    return {**_HEAD, **_BODY[format_], **(_LOGPROBS if logprobs and format_ == "tokens" else {}), **_TAIL}
