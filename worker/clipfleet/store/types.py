"""What goes into a store and comes out of it: rows, hits, collections, and the limits that all stores share.

The limits are the common subset of Milvus Lite 3.2 and Milvus 2.3 and later: what one of them refuses, we refuse for
all, with a text of our own, before any byte is sent.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MAX_ID_BYTES",
    "MAX_LIMIT",
    "MAX_METADATA_BYTES",
    "METRIC",
    "CollectionInfo",
    "Consistency",
    "Field",
    "FieldType",
    "Hit",
    "Row",
    "StoreConfig",
    "Vectors",
    "check_collection_name",
]


FieldType = Literal["int", "float", "bool", "str"]
Consistency = Literal["Strong", "Session", "Bounded", "Eventually"]

METRIC: Final = "COSINE"
MAX_ID_BYTES: Final = 1024
MAX_METADATA_BYTES: Final = 65_536  # Milvus refuses a JSON value above it; Lite takes it and would differ
MAX_LIMIT: Final = 16_384  # Milvus refuses a larger top-k

_COLLECTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Our columns, and the words of both stores' filter languages, in any case.
_RESERVED_FIELDS = frozenset(
    {"id", "vector", "metadata", "and", "or", "not", "in", "like", "is", "null", "exists", "true", "false", "iso"}
    | {"interval", "empty", "text_match", "phrase_match", "random_sample", "array_length"}
    | {f"{kind}_contains{which}" for kind in ("json", "array") for which in ("", "_all", "_any")}
)


def check_collection_name(name: object) -> str:
    """Return ``name`` if Milvus takes it as a collection's name.

    Raises:
        RequestFailed: ``bad_request``, saying what a name looks like.
    """
    if not isinstance(name, str) or not _COLLECTION_NAME.fullmatch(name):
        raise error_for(
            ErrorCode.BAD_REQUEST,
            f"{name!r:.80} is no collection name: letters, digits and _, not starting with a digit, at most 128",
        )
    return name


@dataclass(frozen=True, slots=True)
class Field:
    """A metadata key that is kept in a typed column too, where filters on it are about 50 times faster.

    The column is an index: the metadata that comes back is always the one that was given.

    Attributes:
        name: the metadata key.
        type: ``int`` (64 bits), ``float`` (64 bits), ``bool`` or ``str`` (at most 65,535 bytes of UTF-8).

    Raises:
        RequestFailed: ``bad_request`` for an unusable name or type.
    """

    name: str
    type: FieldType

    def __post_init__(self) -> None:
        name_ok = _FIELD_NAME.fullmatch(self.name) and self.name.lower() not in _RESERVED_FIELDS
        if not name_ok or self.name.endswith("__set") or self.type not in get_args(FieldType):
            raise error_for(
                ErrorCode.BAD_REQUEST,
                f"cannot declare the field {self.name!r:.80} as {self.type!r:.20}: names are letters, digits and _, "
                "not id, vector, metadata, a word of the filter language, nor ending in __set; "
                "types are int, float, bool, str",
            )

    @property
    def flag(self) -> str:
        """The column that says whether a row has a value: Milvus before 2.5 knows no null."""
        return f"{self.name}__set"


@dataclass(frozen=True, slots=True)
class Row:
    """One row to write.

    Attributes:
        id: the caller's; 1 to 1,024 bytes of UTF-8.
        vector: float32, shape ``[dimension]``; finite, not all zero, any length (the metric is the cosine).
        metadata: JSON-able, string keys, at most 65,536 bytes as compact JSON.
    """

    id: str
    vector: NDArray[np.float32]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """One row that a search found; ``score`` is the cosine similarity in -1 to 1, higher is better."""

    id: str
    score: float
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A collection and the one model that it belongs to.

    Attributes:
        name: its name.
        fingerprint: of model, weights and preprocessing; empty when clipfleet did not make the collection.
        dimension: of its vectors.
        fields: the typed columns.
        index: ``FLAT`` (exact) or ``HNSW``; empty when there is none yet.
        rows: counted at Strong consistency, or ``None`` when not asked for or when the collection is not loaded.
    """

    name: str
    fingerprint: str
    dimension: int
    fields: tuple[Field, ...] = ()
    index: str = ""
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How to reach Milvus.

    Attributes:
        uri: ``http://``, ``https://`` or ``tcp://`` of a Milvus, or of the server that ``lite.LiteServer`` runs.
        token: ``user:password`` or an API key; not shown by ``repr``.
        ca_file: PEM file of the authorities that may sign the certificate of an ``https://`` Milvus; empty = those
            that gRPC brings along (https://grpc.github.io/grpc/core/md_doc_environment_variables.html).
        timeout_s: of one call; a hung server would block for more than 40 s without it.
        consistency: of searches. Bounded (the default) answers in about 2 ms and may miss the last seconds' rows;
            Strong sees every acknowledged row, at about 200 ms on a server.
        index: ``AUTO`` picks FLAT on Milvus Lite or up to 50,000 expected rows, else HNSW.
        expected_rows: how large collections are going to be, where known; 0 = unknown.
        recheck_s: how long what is known of a collection is trusted before it is read again.

    Raises:
        ValueError: the address is none of the above, or the CA file no use; the text says what to do.
    """

    uri: str = field(repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    timeout_s: float = 10.0
    consistency: Consistency = "Bounded"
    index: Literal["AUTO", "FLAT", "HNSW"] = "AUTO"
    expected_rows: int = 0
    recheck_s: float = 10.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in {"http", "https", "tcp"} or not parts.hostname:
            # What cannot be taken apart may hold a password anywhere.
            shown = "this" if "@" in self.uri else repr(self.uri)
            raise ValueError(
                f"{shown} is no Milvus address: give http://host:19530. "
                "A local file or folder (milvus.db) is refused on purpose: Milvus Lite opened by a worker loses rows "
                "once a second process or thread reads it. `clipfleet up` and `--local` run it as a server and give "
                "its address; clipfleet.store.lite.LiteServer does the same from Python."
            )
        if self.timeout_s <= 0:
            raise ValueError("timeout_s must be above 0: a hung Milvus would block for ever")
        if self.ca_file:
            check_ca_file(self.uri, self.ca_file)


def check_ca_file(uri: str, ca_file: str) -> None:
    """Whether ``ca_file`` can vouch for the Milvus at ``uri``.

    Raises:
        ValueError: the address is not encrypted, or the file holds no certificate that can be read.
    """
    if urlsplit(uri).scheme != "https":
        # Who names a CA believes that the line is encrypted.
        raise ValueError("a CA file is for an https:// Milvus: over http:// and tcp:// everything is sent in the clear")
    try:
        ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"the CA file {ca_file!r} cannot be used: {error.strerror or error}") from None


if TYPE_CHECKING:
    Vectors = NDArray[np.float32]
else:
    Vectors = Any
