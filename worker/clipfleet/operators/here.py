"""Running one operator by itself, to try it out."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, cast

from clipfleet.operators.operator import BatchOperator, Operator, Place
from clipfleet.operators.services import ProcessServices

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["local_services", "run_here"]


def local_services() -> ProcessServices:
    """For pipelines and operators outside a worker: the demo model unless one is named; Milvus by ``MILVUS_URI``."""
    given = os.environ.get
    return ProcessServices(
        milvus_uri=given("MILVUS_URI") or None,
        milvus_token=given("MILVUS_TOKEN", ""),
        milvus_ca_file=given("MILVUS_CA_FILE", ""),
    )


def run_here(operator: Operator, values: tuple[Any, ...]) -> Any:
    """Open an operator (once) and give it one item.

    Raises:
        Exception: what it raised, or returned for this item.
    """
    return _opened(operator)(*values)


@functools.cache
def _services() -> ProcessServices:
    return local_services()


@functools.lru_cache(maxsize=32)
def _opened(operator: Operator) -> Callable[..., Any]:
    place = Place(_services())
    if not isinstance(operator, BatchOperator):
        return cast("Callable[..., Any]", operator.open(place))
    opened = operator.open(place)

    def one(*values: Any) -> Any:
        columns = [[opened.prepare(*values)]] if opened.prepare is not None else [[value] for value in values]
        (found,) = opened.run(*columns)
        if isinstance(found, Exception):
            raise found
        return found

    return one
