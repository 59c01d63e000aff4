"""A result as it travels: what a result key or an inbox holds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, overload

from clipfleet.schemas.codec import SMALL_BYTES, decode_map, encode_around, encode_map, small_map
from clipfleet.schemas.errors import ErrorCode, ProtocolError, RequestFailed, error_for
from clipfleet.schemas.keys import ID
from clipfleet.schemas.limits import MAX_RESULT_BYTES, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Hit", "Result", "Vector", "decode_result", "encode_failure", "encode_success"]


class Vector(Sequence[float]):
    """An L2-normalised float32 vector that owns no numpy.

    ``numpy.asarray(vector)`` and ``memoryview(vector.buffer)`` copy nothing.

    Attributes:
        buffer: the little-endian float32 bytes.
        shape: ``(n,)``.
    """

    __slots__ = ("_view", "buffer", "shape")

    def __init__(self, buffer: bytes) -> None:
        if len(buffer) % 4:
            raise ProtocolError(f"{len(buffer)} bytes are no float32 vector")
        self.buffer = buffer
        self._view: memoryview[float] = memoryview(buffer).cast("f")
        self.shape = (len(self._view),)

    @classmethod
    def of(cls, value: object) -> Vector:
        """From the wire's map ``{dtype: "f4", shape: [n], data: bin}``.

        Raises:
            ProtocolError: ``bad_request`` when it is none.
        """
        if not isinstance(value, dict) or value.get("dtype") != "f4":
            raise ProtocolError("a vector is {dtype: 'f4', shape: [n], data: bin}")
        data, shape = value.get("data"), value.get("shape")
        if type(data) is not bytes or not isinstance(shape, list) or shape != [len(data) // 4] or len(data) % 4:
            raise ProtocolError("a vector's data must be bin of 4 x shape[0] bytes")
        return cls(data)

    def to_wire(self) -> dict[str, Any]:
        """The wire's map."""
        return {"dtype": "f4", "shape": list(self.shape), "data": self.buffer}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "<f4", "shape": self.shape, "data": self.buffer}

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> list[float]: ...
    def __getitem__(self, index: int | slice) -> float | list[float]:
        if isinstance(index, slice):
            return list(self._view[index])
        return self._view[index]

    def __len__(self) -> int:
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self.buffer == other.buffer

    def __hash__(self) -> int:
        return hash(self.buffer)

    def __reduce__(self) -> tuple[Any, ...]:
        return Vector, (self.buffer,)  # a memoryview does not travel

    def __repr__(self) -> str:
        head = ", ".join(f"{x:.4f}" for x in self._view[:3])
        return f"Vector([{head}{', ...' if len(self) > 3 else ''}], n={len(self)})"

    def tolist(self) -> list[float]:
        """As Python floats."""
        return list(self._view)

    def norm(self) -> float:
        """Euclidean length; 1 within float32 for what a worker answers."""
        return math.sqrt(math.fsum(x * x for x in self._view))


@dataclass(frozen=True, slots=True)
class Hit:
    """One search hit.

    Attributes:
        id: the stored row's id.
        score: cosine similarity, -1 to 1, higher is better.
        metadata: the row's metadata, as far as asked for.
    """

    id: str
    score: float
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """The outcome of one request. All who wait for it get the same object: change nothing in it.

    (It is not frozen, since a frozen dataclass takes five times as long to make.)

    Attributes:
        id: the request's id.
        ok: whether there are outputs; else ``error`` says why not.
        outputs: the pipeline's outputs as they came (vectors still as the wire's map).
        error: the failure, ready to raise; None when ok.
        model: fingerprint of the model that answered; empty where none was asked.
        notes: remarks such as ``truncated: true``.
        timing: milliseconds by name, as the worker measured them.
    """

    id: str
    ok: bool
    outputs: dict[str, Any] = field(default_factory=dict)
    error: RequestFailed | None = None
    model: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)

    def unwrap(self) -> Result:
        """Itself when ok.

        Raises:
            RequestFailed: the failure otherwise.
        """
        if self.error is not None:
            try:
                raise self.error
            finally:
                # The error's traceback holds this frame: a cycle, and in it the caller's frame with its picture.
                del self
        return self

    @property
    def vector(self) -> Vector:
        """The embedding in ``outputs``.

        Raises:
            RequestFailed: the failure when not ok.
            ProtocolError: when the pipeline gave none.
        """
        return Vector.of(self.unwrap().outputs.get("vector"))

    @property
    def hits(self) -> list[Hit]:
        """The search hits in ``outputs``, best first.

        Raises:
            RequestFailed: the failure when not ok.
            ProtocolError: when the pipeline gave none.
        """
        rows = self.unwrap().outputs.get("hits")
        if not isinstance(rows, list):
            raise ProtocolError("this result holds no hits")
        return [_hit(row) for row in rows]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that a pipeline gave, in order: one, or as many as there were where it opens rows.

        Each maps columns to values; a float32 vector is a :class:`Vector`, every other array the wire's map.

        Raises:
            RequestFailed: the failure when not ok.
            ProtocolError: when the outputs are no rows.
        """
        outputs = self.unwrap().outputs
        rows = outputs["rows"] if outputs.keys() == {"rows"} else [outputs]
        if type(rows) is not list or not all(type(row) is dict for row in rows):
            raise ProtocolError("this result holds no rows")
        return [{name: _column(value) for name, value in row.items()} for row in rows]


def encode_success(
    request_id: str,
    outputs: Mapping[str, Any],
    *,
    model: str = "",
    notes: Mapping[str, Any] | None = None,
    timing: Mapping[str, float] | None = None,
) -> bytes:
    """A success as msgpack.

    Raises:
        ProtocolError: for outputs and notes that the other side would refuse: ``too_large`` for more than it reads,
            else ``bad_request``.
    """
    message: dict[str, Any] = {
        "v": VERSION,
        "id": request_id,
        "ok": True,
        "outputs": outputs,
        "model": model,
        "notes": notes or {},
        "timing": timing or {},
    }
    data = encode_around(message, (outputs, notes))
    if len(data) > MAX_RESULT_BYTES:
        raise ProtocolError(f"{len(data)} bytes exceed the limit of {MAX_RESULT_BYTES}", ErrorCode.TOO_LARGE)
    return data


def encode_failure(request_id: str, error: RequestFailed) -> bytes:
    """A failure as msgpack; the message is cut to 2,000 characters."""
    text = error.message[:2_000].encode("utf-8", "replace").decode()
    return encode_map(
        {
            "v": VERSION,
            "id": request_id,
            "ok": False,
            "error": {"code": str(error.code), "message": text, "retryable": error.retryable},
        }
    )


def decode_result(data: bytes) -> Result:
    """The result in ``data``.

    Raises:
        ProtocolError: when it is none.
    """
    if len(data) <= SMALL_BYTES and _OURS.match(data):
        rest = small_map(b"\x84" + data[_REST_AT:], 1, _REST)
        if rest is not None:
            outputs, model, notes, timing = rest.values()
            if type(outputs) is dict and type(model) is str and type(notes) is dict and type(timing) is dict:
                return Result(data[_ID_AT].decode(), True, outputs, None, model, notes, timing)
    message = decode_map(data, max_bytes=MAX_RESULT_BYTES)
    version = message.get("v")
    if type(version) is not int or version != VERSION:
        raise ProtocolError(f"result of version {version!r:.40}")
    request_id, ok = message.get("id"), message.get("ok")
    if type(request_id) is not str or not ID.match(request_id) or type(ok) is not bool:
        raise ProtocolError("a result has an id and ok")
    if not ok:
        return Result(request_id, ok=False, error=_error(message.get("error"), request_id))
    outputs = message.get("outputs")
    if type(outputs) is not dict:
        raise ProtocolError("a success has a map of outputs")
    model = message.get("model")
    if type(model) is not str:
        model = ""
    return Result(request_id, ok, outputs, None, model, _map(message.get("notes")), _map(message.get("timing")))


# As our workers write a success to one of our clients' ids. What follows is read without what is known by then.
_OURS: Final = re.compile(rb"\x87\xa1v\x01\xa2id\xb6[A-Za-z0-9_-]{22}\xa2ok\xc3")
_ID_AT, _REST_AT, _REST = slice(8, 30), 34, ["outputs", "model", "notes", "timing"]


def _column(value: object) -> object:
    if type(value) is dict and value.keys() == {"dtype", "shape", "data"} and value["dtype"] == "f4":
        return Vector.of(value) if type(value["shape"]) is list and len(value["shape"]) == 1 else value
    return value


def _hit(row: object) -> Hit:
    hit = _map(row)
    key, score, metadata = hit.get("id"), hit.get("score"), hit.get("metadata")
    if not isinstance(key, str) or not (metadata is None or type(metadata) is dict):
        raise ProtocolError("a hit has a string id and a map of metadata")
    if type(score) is bool or not isinstance(score, int | float):
        raise ProtocolError("a hit has a number as its score")
    return Hit(key, float(score), metadata or {})


def _map(value: object) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _error(value: object, request_id: str) -> RequestFailed:
    error = _map(value)
    code, message, retryable = error.get("code"), error.get("message"), error.get("retryable")
    return error_for(
        code if type(code) is str else ErrorCode.INTERNAL,
        message if type(message) is str else "",
        retryable=retryable if type(retryable) is bool else None,
        request_id=request_id,
    )
