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
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from clipfleet.producer.files import read_file
from clipfleet.schemas.result import Vector

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


@dataclass(frozen=True, slots=True)
class Url:
    """A picture that the worker fetches; off unless the worker runs with ``--allow-urls``."""

    url: str


@dataclass(frozen=True, slots=True)
class WorkerPath:
    """A picture that the worker reads, ``NAME/relative/path`` under a root of ``--allow-root NAME=DIR``."""

    path: str


Image: TypeAlias = "bytes | bytearray | memoryview | os.PathLike[str] | Url | WorkerPath"
S = TypeVar("S")
VectorLike: TypeAlias = "Vector | Sequence[float] | memoryview"


@dataclass(frozen=True, slots=True)
class _File:
    """A file of this machine, read when its request is sent: a million of them fit into memory unread."""

    path: str


@dataclass(slots=True)
class NewRequest:
    """A request that has not been sent. It may be sent any number of times: change a copy (``dataclasses.replace``).

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
            RequestFailed: ``too_large`` above 64 MiB, ``bad_request`` for a pipe, a device, a folder.
        """
        image = self.inputs.get("image")
        if not isinstance(image, _File):
            return self
        return replace(self, inputs={**self.inputs, "image": read_file(image.path)})


def run(
    pipeline: str,
    inputs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
    id: str | None = None,  # noqa: A002 - the contract's name
    tag: object = None,
) -> NewRequest:
    """A request for any pipeline; pictures in ``inputs["image"]`` are taken in the forms that the module names.

    Raises:
        TypeError: for inputs or options that are no mapping, and for a bare ``str`` as ``inputs["image"]``.
    """
    if not isinstance(pipeline, str):
        raise TypeError(f"a pipeline is named by a str, not {type(pipeline).__name__}")
    inputs = _mapping("inputs", inputs, "{'data': 1}")
    if "image" in inputs and not isinstance(inputs["image"], dict):
        inputs["image"] = _image(inputs["image"])
    options = {} if options is None else _mapping("options", options, "{'return_vector': True}")
    return NewRequest(pipeline, inputs, options, timeout, id, tag)


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

    Raises:
        TypeError: for a bare ``str`` as the picture, and for metadata that are no mapping.
    """
    inputs: dict[str, Any] = {"image": _image(image), "collection": collection}
    if id is not None:
        inputs["id"] = id
    if metadata is not None and (fields := _mapping("metadata", metadata, "{'year': 1999}")):
        inputs["metadata"] = fields
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
        TypeError: unless exactly one of text, image and vector is given, and for a ``str`` as output_fields.
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
        inputs["output_fields"] = _names("output_fields", output_fields)
    return NewRequest("search", inputs, {}, timeout, None, tag)


def delete(
    *,
    ids: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - the contract's name
    collection: str = "images",
    limit: int | None = None,
    dry_run: bool = False,
    return_missing: bool = False,
    timeout: float | None = None,
    tag: object = None,
) -> NewRequest:
    """Remove rows by id or by filter.

    Args:
        ids: of the rows.
        filter: an expression over metadata, see ``search``.
        collection: the collection.
        limit: with a filter, how many rows at most; None = all, and refused above 100,000. Whoever has more deletes
            with a limit until fewer than that are deleted.
        dry_run: delete nothing, and tell as ``matched`` how many there are.
        return_missing: also tell as ``missing`` which of the ids had no row.
        timeout: seconds until the deadline; None = the client's, else 60.
        tag: comes back with the result.

    Raises:
        TypeError: unless exactly one of ids and filter is given, and for a ``str`` as ids.
    """
    if (ids is None) == (filter is None):
        raise TypeError("delete() needs exactly one of ids= and filter=")
    inputs: dict[str, Any] = {"collection": collection}
    if ids is not None:
        inputs["ids"] = _names("ids", ids)
    else:
        inputs["filter"] = filter
    if limit is not None:
        inputs["limit"] = limit
    options = {name: True for name, wanted in (("dry_run", dry_run), ("return_missing", return_missing)) if wanted}
    return NewRequest("delete", inputs, options, timeout, None, tag)


def checked(request: object) -> NewRequest:
    """``request``, if that is what it is.

    Raises:
        TypeError: it is not; the text says how one is built.
    """
    if not isinstance(request, NewRequest):
        raise TypeError(
            f"a request is built by clipfleet.producer.requests, such as requests.embed_text('a red heart'); "
            f"this is of type {type(request).__name__}"
        )
    return request


def iterable(requests: S) -> S:
    """``requests``, if they can be a map's source at all; its items are checked one by one.

    Raises:
        TypeError: they are one text or one request, or cannot be iterated.
    """
    if isinstance(requests, str | bytes | NewRequest) or not isinstance(requests, Iterable | AsyncIterable):
        raise TypeError(
            f"map() takes an iterable of requests, such as (requests.embed_text(text) for text in texts), "
            f"not {type(requests).__name__}"
        )
    return requests


def _mapping(name: str, value: object, example: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a mapping such as {example}, not {type(value).__name__}")
    return dict(value)


def _names(name: str, value: object) -> list[str]:
    if isinstance(value, str):
        raise TypeError(f"{name} is a list of str: write {name}=[{value!r:.40}]")
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{name} is a list of str, not {type(value).__name__}")
    return list(value)


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
