"""What a column of an index must look like. Only names and kinds are held; extra columns and fields are left alone."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types

EXTRA_INFO: Final = "extra_info"
PROMPT: Final = "prompt"
REWARD_MODEL: Final = "reward_model"
TASK_PATH: Final = "harbor_task_path"
INSTANCE_ID: Final = "instance_id"
DATA_SOURCE: Final = "data_source"
POINTERS: Final = (TASK_PATH, INSTANCE_ID, DATA_SOURCE)


def problems(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """(column, what is wrong with it) for every column that is missing or of another kind."""
    for name, fields, check in (
        (EXTRA_INFO, POINTERS, _struct),
        (PROMPT, ("role", "content"), _messages),
        (REWARD_MODEL, ("style", "ground_truth"), _any_struct),
    ):
        found = schema.get_all_field_indices(name)
        if not found:
            yield name, "is missing"
        elif len(found) > 1:
            yield name, f"stands in it {len(found)} times"
        else:
            yield from ((name, problem) for problem in check(schema.field(found[0]).type, fields))


def is_text(kind: pa.DataType) -> bool:
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _struct(kind: pa.DataType, fields: tuple[str, ...], label: str = "") -> Iterator[str]:
    """Problems of a struct whose ``fields`` must be text."""
    yield from _any_struct(kind, fields, label)
    for name in fields if types.is_struct(kind) else ():
        index = kind.get_field_index(name)
        if index >= 0 and not is_text(kind.field(index).type):
            yield f"{label}field {name!r} must be text; it is {kind.field(index).type}"


def _any_struct(kind: pa.DataType, fields: tuple[str, ...], label: str = "") -> Iterator[str]:
    if not types.is_struct(kind):
        yield f"{label}must be a struct with {', '.join(fields)}; it is {kind}"
        return
    names = [kind.field(i).name for i in range(kind.num_fields)]
    for name in fields:
        if names.count(name) != 1:
            yield f"{label}field {name!r} is missing" if name not in names else f"{label}field {name!r} stands twice"


def _messages(kind: pa.DataType, fields: tuple[str, ...]) -> Iterator[str]:
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _struct(kind.value_type, fields, "messages: ")
    else:
        yield f"must be a list of structs with {', '.join(fields)}; it is {kind}"
