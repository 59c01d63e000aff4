"""Rows on their way into Milvus: each checked by itself, duplicates merged, cut into chunks that every store takes.

What one store refuses and another swallows (NaN, 64 KiB of JSON, long ids) is refused here, row by row, so that a bad
row never costs its neighbours theirs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.store.types import MAX_ID_BYTES, MAX_METADATA_BYTES, CollectionInfo, Field, Row, Vectors

__all__ = ["Encoded", "check_id", "check_vector", "chunks", "encode_row", "encode_rows"]

CHUNK_ROWS: Final = 512
CHUNK_BYTES: Final = 16 * 2**20  # a quarter of the server's message limit
MAX_JSON_DEPTH: Final = 32
MAX_STR_FIELD_BYTES: Final = 65_535  # VARCHAR
_JSON_INTEGERS = range(-(2**63), 2**64)  # beyond, Milvus' JSON reader makes floats of them
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row as Milvus takes it, with the positions of all the given rows that it stands for."""

    positions: tuple[int, ...]
    entity: dict[str, Any]
    size: int


def check_id(row_id: object) -> RequestFailed | None:
    """Why ``row_id`` cannot be a row's id, or ``None``."""
    if not isinstance(row_id, str) or not row_id:
        return error_for(ErrorCode.BAD_REQUEST, "an id is a text of at least one character")
    try:
        size = len(row_id.encode())
    except UnicodeEncodeError:
        return error_for(ErrorCode.BAD_REQUEST, "the id is no valid Unicode")
    if size > MAX_ID_BYTES:
        return error_for(
            ErrorCode.BAD_REQUEST, f"the id has {size} bytes of UTF-8, at most {MAX_ID_BYTES} are possible"
        )
    return None


def check_vector(vector: object, dimension: int) -> RequestFailed | None:
    """Why ``vector`` cannot be stored or searched in ``dimension`` dimensions, or ``None``."""
    array = np.asarray(vector)
    if array.shape != (dimension,) or array.dtype.kind != "f":
        text = (
            f"a vector of {array.dtype} and shape {array.shape}, the collection has float32 and {dimension} dimensions"
        )
        return error_for(ErrorCode.BAD_SHAPE, text)
    if not np.isfinite(array).all():
        return error_for(ErrorCode.BAD_REQUEST, "the vector holds a NaN or an infinity")
    with np.errstate(over="ignore", under="ignore"):
        norm = float(np.linalg.norm(array.astype("<f4")))
    if not 0.0 < norm < math.inf:
        return error_for(ErrorCode.BAD_REQUEST, "the vector is zero or too long: it has no direction to compare")
    return None


def encode_rows(rows: Sequence[Row], info: CollectionInfo) -> tuple[list[Encoded], dict[int, RequestFailed]]:
    """Check and encode rows; of several with one id the last wins, as if they had been written one after the other.

    Returns:
        The rows to send (ids unique: Lite keeps the last of two, Milvus the first), and the refusals by position.
    """
    failed: dict[int, RequestFailed] = {}
    latest: dict[str, Encoded] = {}
    for position, row in enumerate(rows):
        problem = check_id(row.id) or check_vector(row.vector, info.dimension)
        if problem is None:
            try:
                entity, size = encode_row(row, info.fields)
            except RequestFailed as refusal:
                problem = refusal
            else:
                earlier = latest[row.id].positions if row.id in latest else ()
                latest[row.id] = Encoded((*earlier, position), entity, size)
        if problem is not None:
            failed[position] = problem
    return list(latest.values()), failed


def encode_row(row: Row, fields: Sequence[Field]) -> tuple[dict[str, Any], int]:
    """The entity of one row, whole (a key that is left out would survive on Lite), and its size in bytes, roughly.

    Raises:
        RequestFailed: ``bad_request`` for metadata that is no JSON or does not fit a declared field; ``too_large``.
    """
    text = _metadata_json(row.metadata)
    vector: Vectors = np.ascontiguousarray(row.vector, dtype="<f4")
    entity: dict[str, Any] = {"id": row.id, "vector": vector, "metadata": text}
    size = len(row.id) + vector.nbytes + len(text)
    for field in fields:
        value = row.metadata.get(field.name)
        entity[field.flag] = value is not None
        entity[field.name] = _EMPTY[field.type] if value is None else _column_value(field, value)
        size += 10 + (len(value) if isinstance(value, str) else 0)
    return entity, size


def chunks(encoded: Sequence[Encoded]) -> Iterator[list[Encoded]]:
    """``encoded`` in order, in pieces of at most 512 rows and about 16 MiB (one huge row stands alone)."""
    piece: list[Encoded] = []
    size = 0
    for row in encoded:
        if piece and (len(piece) == CHUNK_ROWS or size + row.size > CHUNK_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += row.size
    if piece:
        yield piece


_EMPTY: Final[dict[str, Any]] = {"int": 0, "float": 0.0, "bool": False, "str": ""}


def _column_value(field: Field, value: object) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if field.type == "int" and isinstance(value, int) and is_number and value in _INT64:
        return value
    if field.type == "float" and isinstance(value, int | float) and is_number:
        return float(value)
    if field.type == "bool" and isinstance(value, bool):
        return value
    if field.type == "str" and isinstance(value, str) and len(value.encode()) <= MAX_STR_FIELD_BYTES:
        return value
    text = f"metadata {field.name} is declared {field.type}, and {value!r:.60} is no {field.type}, or too long"
    if isinstance(value, str) and field.type != "str":
        text += f"; 'clipfleet index --field {field.name}:{field.type}' reads text as it"
    raise error_for(ErrorCode.BAD_REQUEST, text)


def _metadata_json(metadata: object) -> str:
    if not isinstance(metadata, Mapping):
        raise error_for(ErrorCode.BAD_REQUEST, f"metadata is a mapping, not {type(metadata).__name__}")
    _check_json(metadata)
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except UnicodeEncodeError:
        raise error_for(ErrorCode.BAD_REQUEST, "metadata holds text that is no valid Unicode") from None
    except (TypeError, ValueError) as error:
        raise error_for(ErrorCode.BAD_REQUEST, f"metadata is no JSON: {error}") from None
    if size > MAX_METADATA_BYTES:
        text = f"metadata has {size} bytes as JSON, at most {MAX_METADATA_BYTES} are possible"
        raise error_for(ErrorCode.TOO_LARGE, text)
    return text


def _check_json(metadata: Mapping[object, object] | Mapping[str, object]) -> None:
    """Refuse what json.dumps would change in silence (keys made text, huge integers) or recurse too deep for."""
    stack: list[tuple[object, int]] = [(metadata, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise error_for(ErrorCode.BAD_REQUEST, "metadata keys are text")
            stack.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list | tuple):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, int) and value not in _JSON_INTEGERS:
            raise error_for(ErrorCode.BAD_REQUEST, "metadata holds an integer of more than 64 bits")
        if depth > MAX_JSON_DEPTH:
            raise error_for(ErrorCode.BAD_REQUEST, f"metadata is nested deeper than {MAX_JSON_DEPTH}")
