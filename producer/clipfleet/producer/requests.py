"""Requests before they are sent: the same builders serve single calls, ``submit`` and ``map``.

::

    from clipfleet.producer import requests

    client.map(requests.embed_image(path, tag=path) for path in folder.rglob("*.jpg"))

Pictures are ``bytes``, an ``os.PathLike`` (read here, when the request is sent), ``Url`` (read by the worker, where
it is allowed to) or ``WorkerPath`` (a file that the worker sees under one of its roots). A bare ``str`` is none of
them: a service that passes its users' text on would otherwise read local files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.result import Vector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "Image",
    "NewRequest",
    "Url",
    "VectorLike",
    "WorkerPath",
    "delete",
    "echo",
    "embed_image",
    "embed_text",
    "index_image",
    "run",
    "search",
]

# Read from disk and sent whole; a queue refuses far smaller ones. This only keeps a wrong path (a disk image, a
# device file) from filling this process.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Url:
    """A picture that the worker fetches; off unless the worker runs with ``--allow-urls``."""

    url: str


@dataclass(frozen=True, slots=True)
class WorkerPath:
    """A picture that the worker reads, ``NAME/relative/path`` under a root of ``--allow-root NAME=DIR``."""

    path: str


Image: TypeAlias = "bytes | bytearray | memoryview | os.PathLike[str] | Url | WorkerPath"
VectorLike: TypeAlias = "Vector | Sequence[float] | memoryview"


@dataclass(frozen=True, slots=True)
class _File:
    """A file of this machine, read when its request is sent: a million of them fit into memory unread."""

    path: str


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that has not been sent.

    Attributes:
        pipeline: which pipeline of the worker runs it.
        inputs: the pipeline's inputs.
        options: the pipeline's options.
        timeout: seconds until its deadline; None = the client's.
        id: ``[A-Za-z0-9_-]{1,64}``; None = a fresh one with 128 random bits. Knowing it is the right to read its
            result, and one id must not be sent twice at a time.
        tag: anything of the caller's; it stays here and comes back with the result.
    """

    pipeline: str
    inputs: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    id: str | None = None
    tag: object = None

    @property
    def reads_file(self) -> bool:
        """Whether ``loaded`` will read a file."""
        return isinstance(self.inputs.get("image"), _File)

    def loaded(self) -> NewRequest:
        """This request with its file's bytes in place of the path.

        Raises:
            OSError: the file cannot be read.
            RequestFailed: ``too_large`` above 64 MiB.
        """
        image = self.inputs.get("image")
        if not isinstance(image, _File):
            return self
        with open(image.path, "rb") as file:  # noqa: PTH123 - half the cost of Path.open, for each of a million files
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise error_for(ErrorCode.TOO_LARGE, f"a picture file above {MAX_FILE_BYTES} bytes is not sent")
        return replace(self, inputs={**self.inputs, "image": data})


def run(
    pipeline: str,
    inputs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
    id: str | None = None,  # noqa: A002 - the contract's name
    tag: object = None,
) -> NewRequest:
    """A request for any pipeline; pictures in ``inputs["image"]`` are taken in the forms that the module names."""
    inputs = dict(inputs)
    if "image" in inputs and not isinstance(inputs["image"], dict):
        inputs["image"] = _image(inputs["image"])
    return NewRequest(pipeline, inputs, dict(options or {}), timeout, id, tag)


def echo(data: Any, *, timeout: float | None = None, tag: object = None) -> NewRequest:
    """A request that touches no model and gives ``data`` back: for probes and benchmarks."""
    return NewRequest("echo", {"data": data}, {}, timeout, None, tag)


def embed_text(text: str, *, timeout: float | None = None, tag: object = None) -> NewRequest:
    """A text's embedding."""
    return NewRequest("embed_text", {"text": _text(text)}, {}, timeout, None, tag)


def embed_image(image: Image, *, timeout: float | None = None, tag: object = None) -> NewRequest:
    """A picture's embedding.

    Raises:
        TypeError: for a bare ``str``, and what else is no picture.
    """
    return NewRequest("embed_image", {"image": _image(image)}, {}, timeout, None, tag)


def index_image(
    image: Image,
    *,
    id: str | None = None,  # noqa: A002 - the contract's name
    metadata: Mapping[str, Any] | None = None,
    collection: str = "images",
    return_vector: bool = False,
    timeout: float | None = None,
    tag: object = None,
) -> NewRequest:
    """Embed a picture and store its row.

    Args:
        image: the picture.
        id: the row's id; None = the content's hash.
        metadata: the row's metadata, stored and returned unchanged.
        collection: the collection.
        return_vector: also give the vector back.
        timeout: seconds until the deadline; None = the client's, else 10 minutes.
        tag: comes back with the result.
    """
    inputs: dict[str, Any] = {"image": _image(image), "collection": collection}
    if id is not None:
        inputs["id"] = id
    if metadata:
        inputs["metadata"] = dict(metadata)
    return NewRequest("index_image", inputs, {"return_vector": True} if return_vector else {}, timeout, None, tag)


def search(  # noqa: PLR0913 - the contract's fields, all by name
    query: str | None = None,
    *,
    text: str | None = None,
    image: Image | None = None,
    vector: VectorLike | None = None,
    collection: str = "images",
    limit: int = 10,
    filter: str | None = None,  # noqa: A002 - the contract's name
    output_fields: Iterable[str] | None = None,
    timeout: float | None = None,
    tag: object = None,
) -> NewRequest:
    """The rows nearest to a text, a picture or a vector.

    Args:
        query: the text, by position.
        text: the text, by name.
        image: a picture.
        vector: float32 vector of the collection's dimension.
        collection: the collection.
        limit: how many hits at most.
        filter: an expression over metadata, such as ``'year > 1990 and kind == "icon"'``.
        output_fields: metadata fields to return; None = all.
        timeout: seconds until the deadline; None = the client's, else 60.
        tag: comes back with the result.

    Raises:
        TypeError: unless exactly one of text, image and vector is given.
    """
    if query is not None and text is not None:
        raise TypeError("search() takes the text once: by position or as text=")
    text = query if query is not None else text
    if sum(given is not None for given in (text, image, vector)) != 1:
        raise TypeError("search() needs exactly one of text, image= and vector=")
    inputs: dict[str, Any] = {"collection": collection, "limit": limit}
    if text is not None:
        inputs["text"] = _text(text)
    elif image is not None:
        inputs["image"] = _image(image)
    elif vector is not None:
        inputs["vector"] = _vector(vector)
    if filter is not None:
        inputs["filter"] = filter
    if output_fields is not None:
        inputs["output_fields"] = list(output_fields)
    return NewRequest("search", inputs, {}, timeout, None, tag)


def delete(
    *,
    ids: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - the contract's name
    collection: str = "images",
    timeout: float | None = None,
    tag: object = None,
) -> NewRequest:
    """Remove rows by id or by filter.

    Raises:
        TypeError: unless exactly one of ids and filter is given, and for a ``str`` as ids.
    """
    if (ids is None) == (filter is None):
        raise TypeError("delete() needs exactly one of ids= and filter=")
    if isinstance(ids, str):
        raise TypeError("delete(ids=) takes a list of ids, not one str")
    inputs: dict[str, Any] = {"collection": collection}
    if ids is not None:
        inputs["ids"] = list(ids)
    else:
        inputs["filter"] = filter
    return NewRequest("delete", inputs, {}, timeout, None, tag)


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a text is a str, not {type(text).__name__}")
    return text


def _image(image: object) -> object:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str):
        raise TypeError(
            "a str is no picture: pass its bytes, pathlib.Path(...) for a file of this machine, Url(...) for an "
            "address that the worker fetches, or WorkerPath(...) for a file that the worker sees"
        )
    if isinstance(image, Url):
        return {"url": image.url}
    if isinstance(image, WorkerPath):
        return {"path": image.path}
    if isinstance(image, os.PathLike):
        return _File(os.fspath(image))
    if isinstance(image, bytearray | memoryview):
        return bytes(image)
    raise TypeError(f"a picture is bytes, an os.PathLike, Url or WorkerPath, not {type(image).__name__}")


def _vector(vector: object) -> dict[str, Any]:
    if isinstance(vector, Vector):
        return vector.to_wire()
    if isinstance(vector, Sequence) and not isinstance(vector, str | bytes | bytearray | memoryview):
        return Vector(struct.pack(f"<{len(vector)}f", *vector)).to_wire()
    try:
        view = memoryview(vector)  # type: ignore[arg-type]  # whatever has a buffer: numpy arrays, array.array
    except TypeError:
        raise TypeError("a vector is a Vector, a sequence of floats or a one-dimensional buffer of floats") from None
    if view.ndim != 1 or view.format not in {"f", "<f", "d", "<d"}:
        raise TypeError(f"a vector is one-dimensional float32 or float64, not {view.ndim}-dimensional {view.format!r}")
    return Vector(view.tobytes() if view.format.endswith("f") else struct.pack(f"<{len(view)}f", *view)).to_wire()
