"""What a collection shall be, what is read of one, and whether the two agree.

Fingerprint, metric and declared fields are kept as JSON in the collection's property ``clipfleet``, and in its
description too: Lite drops descriptions, and a server's other tools show them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.store.types import METRIC, CollectionInfo, Field, check_collection_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PROPERTY", "Spec", "mismatch", "missing", "problem_with", "read_description", "told"]

PROPERTY: Final = "clipfleet"
_MAX_DIMENSION: Final = 32_768


@dataclass(frozen=True, slots=True)
class Spec:
    """What a worker wants a collection to be."""

    name: str
    fingerprint: str
    dimension: int
    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        check_collection_name(self.name)
        if not self.fingerprint or not 1 <= self.dimension <= _MAX_DIMENSION:
            text = f"collection {self.name}: a fingerprint and 1 to {_MAX_DIMENSION} dimensions are needed"
            raise error_for(ErrorCode.BAD_REQUEST, text)
        if len({field.name for field in self.fields}) != len(self.fields):
            raise error_for(ErrorCode.BAD_REQUEST, f"collection {self.name}: a field is declared twice")


def told(spec: Spec) -> str:
    """What a collection says of itself, as JSON."""
    return json.dumps(
        {
            "v": 1,
            "fingerprint": spec.fingerprint,
            "dimension": spec.dimension,
            "metric": METRIC,
            "fields": {field.name: field.type for field in spec.fields},
        }
    )


def mismatch(info: CollectionInfo, fingerprint: str) -> RequestFailed | None:
    """The ``model_mismatch`` that names both, or ``None`` when the collection belongs to ``fingerprint``."""
    if info.fingerprint == fingerprint:
        return None
    owner = f"model {info.fingerprint}" if info.fingerprint else "no clipfleet model"
    text = f"collection {info.name} belongs to {owner}, this is model {fingerprint}: vectors of two models never mix"
    return error_for(ErrorCode.MODEL_MISMATCH, text)


def missing(name: str) -> RequestFailed:
    """The ``bad_request`` about a collection that is not there."""
    return error_for(ErrorCode.BAD_REQUEST, f"there is no collection {name}: index something into it first")


def read_description(name: str, answer: dict[str, Any], index: str) -> CollectionInfo:
    """A ``CollectionInfo`` from pymilvus' description of any collection, ours or not."""
    properties = answer.get("properties") or {}
    told: dict[str, Any] = {}
    for text in (properties.get(PROPERTY), answer.get("description")):
        told = told or _object(text)
    dimension = 0
    for column in answer.get("fields", ()):
        if column.get("name") == "vector":
            dimension = int((column.get("params") or {}).get("dim", 0))
    declared = told.get("fields") or {}
    fields = tuple(Field(key, kind) for key, kind in declared.items())
    # A vector column of another size than was told is no collection of ours, whatever it says.
    ours = told.get("dimension") == dimension and told.get("metric") == METRIC
    return CollectionInfo(name, str(told.get("fingerprint", "")) if ours else "", dimension, fields, index)


def _object(text: object) -> dict[str, Any]:
    try:
        value = json.loads(str(text))
    except ValueError:
        return {}
    return value if isinstance(value, dict) and value.get("v") == 1 else {}


def problem_with(spec: Spec, info: CollectionInfo) -> RequestFailed | None:
    """Why a collection is not what ``spec`` says, or ``None``."""
    problem = mismatch(info, spec.fingerprint)
    if problem is None and info.dimension != spec.dimension:
        text = f"collection {info.name} has {info.dimension} dimensions, the model {spec.dimension}"
        problem = error_for(ErrorCode.MODEL_MISMATCH, text)
    if problem is None and not set(spec.fields) <= set(info.fields):
        problem = error_for(
            ErrorCode.BAD_REQUEST,
            f"collection {info.name} declares {_listed(info.fields)}, not {_listed(spec.fields)}: "
            "fields are declared when a collection is made; index into a new one",
        )
    return problem


def _listed(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name}:{field.type}" for field in fields) or "no fields"
