"""Text and bytes as views: types that Arrow reads but can neither filter nor, in most places, write.

In the file a view is plain text; only the schema that Arrow stores beside it says so. Rows are therefore handled and
written as plain text, and the file is given the original's schema.
"""

import base64

import pyarrow as pa
from pyarrow import types


def without_views(schema: pa.Schema) -> pa.Schema:
    """``schema`` with every view, at any depth, as large text or bytes."""
    return pa.schema([_field(field) for field in schema], schema.metadata)


def stored_schema(schema: pa.Schema) -> dict[bytes, bytes]:
    """File metadata by which a reader of the file gets ``schema``."""
    return {**(schema.metadata or {}), b"ARROW:schema": base64.b64encode(schema.serialize().to_pybytes())}


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))


def _plain(kind: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one line a type
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([_field(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    if types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    return kind
