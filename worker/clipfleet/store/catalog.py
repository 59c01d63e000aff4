"""Collections: made, described, checked against a fingerprint, loaded; and what is known of them, for a while."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.store.connection import Connection, Refused
from clipfleet.store.retry import StoreUnavailable, Verdict
from clipfleet.store.rows import MAX_STR_FIELD_BYTES
from clipfleet.store.spec import PROPERTY, Spec, missing, problem_with, read_description, told
from clipfleet.store.types import MAX_ID_BYTES, METRIC, CollectionInfo, StoreConfig, check_collection_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Catalog", "choose_index"]

T = TypeVar("T")

FLAT_ROWS: Final = 50_000  # exact search stays below about 40 ms up to there, on Lite with 512 dimensions
_HNSW: Final = {"M": 16, "efConstruction": 200}


def choose_index(config: StoreConfig, *, lite: bool) -> str:
    """``FLAT`` (exact) or ``HNSW``: by the configuration, else by the rows to expect.

    A server may grow to anything and gets HNSW unless it is told that 50,000 rows are all; Lite gets FLAT.
    """
    if config.index != "AUTO":
        return config.index
    if config.expected_rows:
        return "FLAT" if config.expected_rows <= FLAT_ROWS else "HNSW"
    return "FLAT" if lite else "HNSW"


class Catalog:
    """What is known of collections, re-read every ``recheck_s`` seconds and after ``forget``.

    Another process may drop a collection and make it anew for another model; trust in what was read is short.
    """

    def __init__(
        self, connection: Connection, config: StoreConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._config = config
        self._clock = clock
        self._known: dict[str, tuple[float, CollectionInfo]] = {}
        self._indexes: dict[str, tuple[int, CollectionInfo, str]] = {}
        self._lock = threading.Lock()

    def ensure(self, spec: Spec) -> CollectionInfo:
        """Make the collection, or check that it is what ``spec`` says; indexed and loaded either way.

        Every step may be done by two workers at once: whoever comes second finds it done.

        Raises:
            RequestFailed: ``model_mismatch``, or ``bad_request`` when its declared fields differ.
            StoreUnavailable: not now.
        """
        known = self._fresh(spec.name)
        # What does not fit is read again before it is refused: an alias may stand for another one since.
        if known is None or problem_with(spec, known) is not None:
            known = self.describe(spec.name) or self._create(spec)
            if (problem := problem_with(spec, known)) is not None:
                raise problem
            known = self._prepared(known)
            self._remember(spec.name, known)
        return known

    def after_writing(self, spec: Spec, info: CollectionInfo) -> CollectionInfo:
        """Where rows belong that have just been written into ``info``: there, unless an alias was switched meanwhile.

        Asked after the write and not before it: no acknowledged row can then be in what the alias stood for earlier,
        which may be dropped. A collection's own name costs nothing; an alias one call for each batch.

        Raises:
            RequestFailed: ``model_mismatch``: the alias stands for another model's collection by now.
            StoreUnavailable: not now.
        """
        if info.name == spec.name or self._stands_for(spec.name) in {"", info.name}:
            return info
        self.forget(spec.name)
        return self.ensure(spec)

    def find(self, name: str) -> CollectionInfo:
        """What is known of an existing collection; of an alias: of what it stands for, by that one's own name.

        Whoever goes on with that name never writes into, nor searches, what the alias stands for later: which may be
        another model's.

        Raises:
            RequestFailed: ``bad_request`` naming it when there is none: a search must not make one, and waiting for
                somebody who does would keep the asker until the deadline.
            StoreUnavailable: not now.
        """
        known = self._fresh(check_collection_name(name))
        if known is None:
            known = self.describe(name)
            if known is None:
                raise missing(name)
            self._remember(name, known)
        return known

    def load(self, name: str) -> None:
        """Bring a collection into memory; after a restart of the store it is not.

        Raises:
            StoreUnavailable: it takes longer than one call may (41 s were seen at 63,000 rows): ask again.
        """
        try:
            self._connection.call("load_collection", name)
        except (Refused, StoreUnavailable) as error:
            self.forget(name)  # and its index: that may be what it lacks
            if isinstance(error, StoreUnavailable):
                raise
            raise StoreUnavailable(f"cannot load collection {name}: {error.text}", 0.5) from error

    def loaded(self, name: str, call: Callable[[], T]) -> T:
        """``call``, loading the collection when it turns out not to be.

        Raises:
            RequestFailed: ``bad_request``: there is no such collection.
            Refused: Milvus refuses the call.
            StoreUnavailable: not now.
        """
        try:
            return call()
        except Refused as error:
            if error.verdict is Verdict.MISSING:
                self.forget(name)
                raise missing(name) from error
            if error.verdict is not Verdict.NOT_LOADED:
                raise
        self.load(name)
        try:
            return call()
        except Refused as error:
            if error.verdict is not Verdict.NOT_LOADED:
                raise
            raise StoreUnavailable(f"collection {name} is still being loaded", 0.5) from error

    def forget(self, name: str) -> None:
        """Read the collection again at the next use, with its index: it may have been made anew without one."""
        with self._lock:
            self._known = {key: each for key, each in self._known.items() if name not in {key, each[1].name}}
            self._indexes = {at.name: one for _, at in self._known.values() if (one := self._indexes.get(at.name))}

    def _index_of(self, number: int, info: CollectionInfo) -> str:
        """The kind of its index, asked for until there is one: Lite counts all rows for it, 170 ms at 16,000."""
        same, described, kind = self._indexes.get(info.name, (0, None, ""))
        if (same, described) != (number, info) and (kind := self._index(info.name)):
            self._indexes[info.name] = (number, info, kind)
        return kind

    def point(self, alias: str, name: str) -> str:
        """Let an alias stand for a collection, from one call of Milvus to the next.

        Returns:
            What it stood for before; empty when it is new.

        Raises:
            RequestFailed: ``bad_request``: no such collection; one has the alias' name.
            StoreUnavailable: not now.
        """
        before = self.describe(alias)
        if before is not None and before.name == alias:
            text = f"{alias} is a collection itself: an alias needs a name that none has"
            raise error_for(ErrorCode.BAD_REQUEST, text)
        self.forget(name)
        target = self.find(name)
        try:
            self._connection.call("create_alias" if before is None else "alter_alias", target.name, alias)
        except Refused as error:
            raise StoreUnavailable(f"cannot let {alias} stand for {name}: {error.text}", 0.5) from error
        self.forget(alias)
        return "" if before is None else before.name

    def is_lite(self) -> bool:
        """Whether the store is Milvus Lite, which tells its version to anybody."""
        try:
            return str(self._connection.call("get_server_version")).startswith("milvus_lite")
        except (Refused, RequestFailed):
            return False  # a server, or what stands before it, may keep it to itself; a token is refused again anyway

    def _fresh(self, name: str) -> CollectionInfo | None:
        with self._lock:
            read_at, info = self._known.get(name, (0.0, None))
        return info if info is not None and self._clock() - read_at < self._config.recheck_s else None

    def _remember(self, name: str, info: CollectionInfo) -> None:
        with self._lock:
            self._known[name] = (self._clock(), info)

    def describe(self, name: str) -> CollectionInfo | None:
        """A collection, or the one that an alias stands for, read now; ``None`` where there is none."""
        try:
            answer = self._connection.call("describe_collection", check_collection_name(name))
            name = str(answer.get("collection_name") or name)
            found = read_description(name, answer, "")
            index = self._index_of(int(answer.get("collection_id") or 0), found)
        except Refused as error:
            if error.verdict is Verdict.MISSING:
                self.forget(name)
                return None
            raise StoreUnavailable(f"cannot describe collection {name}: {error.text}", 0.5) from error
        return replace(found, index=index)

    def _stands_for(self, alias: str) -> str:
        try:
            # What describes an alias is newer than some servers; this answers with the collection's own name on all.
            return str(self._connection.call("describe_collection", alias).get("collection_name") or alias)
        except Refused as error:
            if error.verdict is Verdict.MISSING:
                return ""
            raise StoreUnavailable(f"cannot see what {alias} stands for: {error.text}", 0.5) from error

    def _index(self, name: str) -> str:
        if "vector" not in self._connection.call("list_indexes", name):
            return ""
        answer = self._connection.call("describe_index", name, "vector") or {}
        return str(answer.get("index_type", ""))

    def _create(self, spec: Spec) -> CollectionInfo:
        text = told(spec)
        try:
            self._connection.call(
                "create_collection",
                spec.name,
                schema=self._schema(spec, text),
                properties={PROPERTY: text},
                consistency_level="Bounded",
            )
        except (Refused, StoreUnavailable) as error:
            # Lite answers "already exists" with its code for anything: what is there now tells who was first.
            found = self.describe(spec.name)
            if found is None:
                raise StoreUnavailable(f"cannot create collection {spec.name}: {error}", 0.2) from error
            return found
        found = self.describe(spec.name)
        if found is None:
            raise StoreUnavailable(f"collection {spec.name} vanished while it was made", 0.2)
        return found

    def _schema(self, spec: Spec, description: str) -> Any:
        from pymilvus import DataType  # noqa: PLC0415 - slow to import, see connection.py

        columns = {"int": DataType.INT64, "float": DataType.DOUBLE, "bool": DataType.BOOL, "str": DataType.VARCHAR}
        schema = self._connection.schema(description)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=spec.dimension)
        schema.add_field("metadata", DataType.JSON)
        for field in spec.fields:
            length = {"max_length": MAX_STR_FIELD_BYTES} if field.type == "str" else {}
            schema.add_field(field.name, columns[field.type], **length)
            schema.add_field(field.flag, DataType.BOOL)
        return schema

    def _prepared(self, info: CollectionInfo) -> CollectionInfo:
        if not info.index:
            self._create_index(info.name)
            found = self.describe(info.name)
            if found is None or not found.index:
                raise StoreUnavailable(f"collection {info.name} has no index yet", 0.2)
            info = found
        self.load(info.name)
        return info

    def _create_index(self, name: str) -> None:
        kind = choose_index(self._config, lite=self.is_lite())
        params = self._connection.index_params()
        params.add_index("vector", index_type=kind, metric_type=METRIC, params=_HNSW if kind == "HNSW" else {})
        try:
            self._connection.call("create_index", name, params)
        except (Refused, StoreUnavailable):
            # Whether somebody else made it meanwhile is seen by describing it, which the caller does next.
            return
