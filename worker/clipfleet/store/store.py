"""The store: a worker's and an operator's view of Milvus."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.store.answers import check_ids, check_limit, hits_of, pieces, row_refused
from clipfleet.store.catalog import Catalog
from clipfleet.store.compile import compile_filter, ids_expression
from clipfleet.store.connection import Connection, Refused
from clipfleet.store.filters import Filter, parse
from clipfleet.store.listing import collections
from clipfleet.store.removal import MAX_DELETED, delete_ids, delete_matching, delete_rows, drop_collection
from clipfleet.store.retry import StoreUnavailable, Verdict
from clipfleet.store.rows import Encoded, check_vector, chunks, encode_rows
from clipfleet.store.scan import scan
from clipfleet.store.searching import nearest, search_request
from clipfleet.store.sketch import unchanged
from clipfleet.store.spec import Spec, mismatch
from clipfleet.store.turns import Turns
from clipfleet.store.types import (
    MAX_LIMIT,
    CollectionInfo,
    Consistency,
    Field,
    Hit,
    Row,
    StoreConfig,
    Vectors,
    check_collection_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Store"]

T = TypeVar("T")


class Store:
    """One Milvus. Made after a fork or spawn, shared by the threads of one process, never pickled.

    Every call raises ``StoreUnavailable`` when Milvus is away, slow, loading or asks for less: nothing is decided then,
    and ``retrying`` repeats it until a deadline. ``RequestFailed`` is a verdict.
    """

    def __init__(self, config: StoreConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._connection = Connection(config)
        self._catalog = Catalog(self._connection, config, clock)
        self._clock = clock
        self._specs: dict[str, Spec] = {}
        self._written: dict[str, float] = {}
        self._turns = Turns(self._catalog.is_lite)

    def ensure_collection(
        self, name: str, *, fingerprint: str, dimension: int, fields: Sequence[Field] = ()
    ) -> CollectionInfo:
        """Make a collection for a model, or check that it is this model's; cheap when done before.

        Args:
            name: letters, digits and ``_``, at most 128.
            fingerprint: of model, weights and preprocessing.
            dimension: of its vectors.
            fields: metadata keys to keep in typed columns too; of an existing collection, any of those it has.

        Raises:
            RequestFailed: ``model_mismatch`` naming both fingerprints; ``bad_request`` for an unusable name, dimension
                or field, or for fields that the existing collection does not declare.
            StoreUnavailable: not now.
        """
        spec = Spec(name, fingerprint, dimension, tuple(fields))
        info = self._catalog.ensure(spec)
        self._specs[name] = spec
        return info

    def upsert(self, name: str, rows: Sequence[Row]) -> list[RequestFailed | None]:
        """Write whole rows, replacing those with the same ids; returns when Milvus has acknowledged them.

        Of several rows with one id the last wins. Sent in chunks of at most 512 rows and 16 MiB, never flushed. Where
        ``name`` is an alias that was switched meanwhile, they are written into what it stands for now.

        Args:
            name: a collection that ``ensure_collection`` of this store has seen.
            rows: in any number.

        Returns:
            For each row in order ``None`` (acknowledged) or why it was refused.

        Raises:
            StoreUnavailable: some rows may be written, others not: write all of them again.
            RequestFailed: ``model_mismatch``: the collection has been made anew for another model.
            LookupError: ``ensure_collection`` was not called before.
        """
        if name not in self._specs:
            raise LookupError(f"ensure_collection({name!r}, ...) comes before upsert")
        spec, written = self._specs[name], None
        info = self._catalog.ensure(spec)
        while info != written:
            encoded, failed = encode_rows(rows, info)
            for piece in chunks(encoded):
                self._turns.await_write()  # once, however many calls it takes to find the rows that are refused
                self._written[info.name] = self._clock()
                failed.update(self._write(spec, info, piece))
            info, written = self._catalog.after_writing(spec, info), info
        return [failed.get(position) for position in range(len(rows))]

    def search(
        self,
        name: str,
        vectors: Vectors,
        *,
        fingerprint: str,
        limit: int,
        filter: Filter = None,  # noqa: A002 - the word of the wire format
        output_fields: Sequence[str] | None = None,
        consistency: Consistency | None = None,
    ) -> list[list[Hit] | RequestFailed]:
        """Find the nearest rows of each query, in one call of Milvus.

        Args:
            name: the collection, or an alias.
            vectors: float32, shape ``[n, dimension]``.
            fingerprint: of the model that made ``vectors``.
            limit: hits for each query, 1 to 16,384.
            filter: see ``filters``.
            output_fields: metadata keys to return; ``None`` = all, ``[]`` = none. Keys that a row lacks are left out.
            consistency: other than the configured one.

        Returns:
            For each query in order its hits, best first, or why that query alone was refused (a zero vector, say).

        Raises:
            RequestFailed: for all of them: ``bad_request`` (no such collection, limit, filter), ``model_mismatch``.
            StoreUnavailable: not now.
        """
        request = search_request(limit, output_fields, consistency or self._config.consistency)

        def search(info: CollectionInfo) -> list[list[Hit] | RequestFailed]:
            if (problem := mismatch(info, fingerprint)) is not None:
                raise problem
            refused = [check_vector(vector, info.dimension) for vector in vectors]
            queries = [vector for vector, problem in zip(vectors, refused, strict=True) if problem is None]
            asked = request | {"filter": compile_filter(parse(filter), info.fields)}
            found = iter(nearest(partial(self._search, info.name, asked), queries))
            return [hits_of(next(found), output_fields) if problem is None else problem for problem in refused]

        return self._resolved(name, search)

    def get(self, name: str, ids: Sequence[str]) -> list[Row | None]:
        """The rows with these ids in their order, ``None`` for those that are not there; read at Strong consistency."""
        check_ids(ids)
        rows: dict[str, Row] = {}
        for found in self._having(name, ids, ["id", "vector", "metadata"]):
            vector = np.asarray(found["vector"], dtype=np.float32)
            rows[found["id"]] = Row(found["id"], vector, found["metadata"])
        return [rows.get(row_id) for row_id in ids]

    def present(self, name: str, ids: Sequence[str]) -> set[str]:
        """Which of these ids have a row; read at Strong consistency, and without the rows."""
        check_ids(ids)
        return {row["id"] for row in self._having(name, ids, ["id"], now=True)}

    def holds(self, name: str, noted: Mapping[str, str]) -> dict[str, bool]:
        """Of each of these ids that has a row, whether its vector is the one noted; read at Strong consistency.

        Args:
            name: the collection.
            noted: ids, and what the worker noted when it wrote their rows (see ``sketch``); empty: any will do.
        """
        found = dict.fromkeys(self.present(name, [id_ for id_, sketch in noted.items() if not sketch]), True)
        rows = self._having(name, [id_ for id_, sketch in noted.items() if sketch], ["id", "vector"])
        return found | unchanged(noted, rows)

    def scan(self, name: str, *, after: str = "") -> Iterator[list[Row]]:
        """All rows with ids above ``after``, by pages, in the order of their ids; see ``scan.scan``."""
        yield from scan(partial(self._ask, self._catalog.find(name).name), after)

    def delete(
        self,
        name: str,
        *,
        ids: Sequence[str] | None = None,
        filter: Filter = None,  # noqa: A002 - the word of the wire format
        limit: int | None = None,
    ) -> int:
        """Delete rows by id or by filter.

        Args:
            name: the collection.
            ids: of the rows.
            filter: which rows; not empty (``drop`` takes all).
            limit: with a filter, how many rows at most, 1 to 100,000; None = all, if there are no more than that.

        Returns:
            How many of them were there, looked up at Strong consistency.

        Raises:
            RequestFailed: ``bad_request``: no such collection; both, neither, or an empty filter; too many.
            StoreUnavailable: some may be deleted: the same call again deletes the rest.
        """
        if ids is not None and filter is None and limit is None:
            return len(self.discard(name, ids))
        check_limit(1 if limit is None else limit, MAX_DELETED)

        def delete(info: CollectionInfo) -> int:
            expression = compile_filter(parse(filter), info.fields)
            if ids is not None or not expression:
                raise error_for(ErrorCode.BAD_REQUEST, "delete takes either ids or a filter that is not empty")
            return delete_matching(expression, limit, *self._remover(info.name), partial(self._count, info.name))

        return self._resolved(name, delete, now=True)

    def discard(self, name: str, ids: Sequence[str]) -> set[str]:
        """Delete the rows with these ids; which of them there were. Raises as ``delete`` does."""
        check_ids(ids)
        return self._resolved(name, lambda info: delete_ids(ids, *self._remover(info.name)), now=True)

    def count(self, name: str, filter: Filter = None) -> int:  # noqa: A002 - the word of the wire format
        """Rows of a collection, or those that match a filter, at Strong consistency."""
        return self._resolved(name, lambda at: self._count(at.name, compile_filter(parse(filter), at.fields)), now=True)

    def describe(self, name: str) -> CollectionInfo | None:
        """A collection, or the one that an alias stands for, read now; ``None`` where there is none."""
        return self._catalog.describe(name)

    def switch(self, alias: str, name: str) -> str:
        """Let an alias stand for a collection from now on; returns what it stood for before. See ``Catalog.point``."""
        return self._catalog.point(alias, name)

    def list_collections(self) -> list[CollectionInfo]:
        """All collections with fingerprint, dimension and rows; those of other programs have an empty fingerprint."""
        return collections(self._catalog, self._connection)

    def drop(self, name: str) -> None:
        """Delete a collection and its rows, if there is one; ``bad_request`` where an alias still stands for it."""
        drop_collection(self._connection, check_collection_name(name))
        self._catalog.forget(name)
        self._specs.pop(name, None)

    def probe(self) -> str:
        """Ask for the version, and search each collection in use: after a restart these are not ready for long.

        Returns:
            The server's version, ``milvus_lite-3.2.2`` or ``v2.3.5``; raises ``StoreUnavailable`` until it is ready.
        """
        version = str(self._connection.call("get_server_version"))
        for name, spec in tuple(self._specs.items()):
            vector = np.eye(1, spec.dimension, dtype=np.float32)
            self.search(name, vector, fingerprint=spec.fingerprint, limit=1, output_fields=[])
        return version

    def flush_quiet(self, quiet_s: float = 2.0) -> list[str]:
        """On Milvus Lite, flush the collections that this store wrote to and has left alone for ``quiet_s`` seconds.

        For idle moments, never per batch: a search reads unflushed rows one by one. A server does it by itself.

        Returns:
            The collections flushed.
        """
        now = self._clock()
        quiet = [name for name, written_at in self._written.items() if now - written_at >= quiet_s]
        for name in quiet:
            # Refused: it was dropped meanwhile. Anything else leaves the name for the next idle moment.
            with suppress(Refused):
                if self._catalog.is_lite():
                    self._connection.call("flush", name)
            self._written.pop(name, None)
        return quiet

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        self._connection.close()

    def _write(self, spec: Spec, info: CollectionInfo, piece: Sequence[Encoded]) -> dict[int, RequestFailed]:
        try:
            answer = self._connection.call("upsert", info.name, [row.entity for row in piece])
        except Refused as error:
            self._catalog.forget(info.name)
            if error.verdict in {Verdict.MISSING, Verdict.NOT_LOADED}:
                raise StoreUnavailable(f"collection {info.name} is gone; it will be made anew: {error.text}") from error
            if self._catalog.ensure(spec).fields != info.fields:
                # Made anew by somebody: no row is at fault.
                raise StoreUnavailable(f"collection {info.name} has other columns by now: {error.text}") from error
            if len(piece) == 1:
                return dict.fromkeys(piece[0].positions, row_refused(error))
            middle = len(piece) // 2
            return self._write(spec, info, piece[:middle]) | self._write(spec, info, piece[middle:])
        written = int(answer.get("upsert_count", 0))
        if written != len(piece):
            raise StoreUnavailable(f"Milvus acknowledged {written} of {len(piece)} rows")
        return {}

    def _search(self, name: str, request: dict[str, Any], queries: list[Any]) -> list[Any]:
        with self._turns.searching():
            return list(
                self._catalog.loaded(name, partial(self._connection.call, "search", name, data=queries, **request))
            )

    def _having(self, name: str, ids: Sequence[str], fields: list[str], *, now: bool = False) -> list[Any]:
        def query(info: CollectionInfo) -> list[Any]:
            return [row for piece in pieces(ids) for row in self._query(info.name, ids_expression(piece), fields)]

        return self._resolved(name, query, now=now)

    def _query(self, name: str, expression: str, fields: list[str], limit: int | None = MAX_LIMIT) -> list[Any]:
        request = {"filter": expression, "output_fields": fields, "consistency_level": "Strong"}
        try:
            return self._ask(name, request if limit is None else {**request, "limit": limit})
        except Refused as error:
            raise error_for(ErrorCode.BAD_REQUEST, f"Milvus refuses the query: {error.text}") from error

    def _ask(self, name: str, request: dict[str, Any]) -> list[Any]:
        return list(self._catalog.loaded(name, lambda: self._connection.call("query", name, **request)))

    def _count(self, name: str, expression: str) -> int:
        return int(self._query(name, expression, ["count(*)"], limit=None)[0]["count(*)"])

    def _remover(self, name: str) -> tuple[Callable[[str, int], list[str]], Callable[[str], None]]:
        """What looks rows of a collection up, and what deletes them."""

        def find(expression: str, limit: int) -> list[str]:
            return [row["id"] for row in self._query(name, expression, ["id"], limit)]

        return find, partial(delete_rows, self._connection, name)

    def _resolved(self, name: str, call: Callable[[CollectionInfo], T], *, now: bool = False) -> T:
        """``call`` with what ``name`` stands for; ``now``: by Milvus, and not by memory, which is some seconds old.

        Once more where that does not go, and ``name`` is something else by now: switched, or made anew.
        """
        if now:
            self._catalog.forget(name)
        info = self._catalog.find(name)
        try:
            return call(info)
        except RequestFailed as error:
            if error.code is ErrorCode.MODEL_MISMATCH or isinstance(error.__cause__, Refused):
                self._catalog.forget(name)
            other = self._catalog.find(name)
            if other == info:
                raise
        return call(other)
