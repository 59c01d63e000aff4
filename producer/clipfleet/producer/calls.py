"""The methods that every client has, written once: a face says only how a request is carried out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clipfleet.producer import requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clipfleet.producer.requests import Image, NewRequest, VectorLike

__all__ = ["Calls"]

R = TypeVar("R")


class Calls(ABC, Generic[R]):
    """One request in, one result out. ``R`` is ``Result``, or a coroutine of it in the async clients.

    Every method takes ``timeout`` in seconds: the request's deadline, for the caller's wait and on the fleet alike.

    Every one raises ``RequestFailed``, by family (``.code`` tells the case): ``BadInput``, ``ModelFailed``,
    ``StoreFailed``, ``Expired``, ``Cancelled``, ``Unavailable`` and, of these, ``QueueFull`` with ``.retry_after``
    seconds.
    """

    def call(self, request: NewRequest) -> R:
        """Carry out a request that was built by ``clipfleet.producer.requests``.

        Raises:
            RequestFailed: how it failed.
            OSError: its picture's file cannot be read.
            TypeError: it is no such request.
            RuntimeError: the client is closed.
        """
        return self._carry_out(requests.checked(request))

    @abstractmethod
    def _carry_out(self, request: NewRequest) -> R:
        """Send it and wait for its result."""

    def embed_text(self, text: str, *, timeout: float | None = None) -> R:
        """The embedding of a text: ``.vector``, float32, L2-normalised, shape (dimension,)."""
        return self.call(requests.embed_text(text, timeout=timeout))

    def embed_image(self, image: Image, *, timeout: float | None = None) -> R:
        """The embedding of a picture: ``.vector``, float32, L2-normalised, shape (dimension,).

        Raises:
            TypeError: for a bare ``str``; say ``pathlib.Path``, ``Url`` or ``WorkerPath``.
        """
        return self.call(requests.embed_image(image, timeout=timeout))

    def index_image(
        self,
        image: Image,
        *,
        id: str | None = None,  # noqa: A002 - the contract's name
        metadata: Mapping[str, Any] | None = None,
        collection: str = "images",
        return_vector: bool = False,
        timeout: float | None = None,
    ) -> R:
        """Embed a picture and store its row: ``.outputs["id"]`` and, if asked for, ``.vector``.

        ``id`` None = the content's hash. The result comes when the store has acknowledged the row.
        """
        return self.call(
            requests.index_image(
                image, id=id, metadata=metadata, collection=collection, return_vector=return_vector, timeout=timeout
            )
        )

    def search(  # noqa: PLR0913 - the contract's fields, all by name
        self,
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
    ) -> R:
        """The rows nearest to exactly one of a text, a picture and a vector: ``.hits``, best first.

        A hit is ``(id, score, metadata)``; score = cosine similarity, -1 to 1.
        """
        return self.call(
            requests.search(
                query,
                text=text,
                image=image,
                vector=vector,
                collection=collection,
                limit=limit,
                filter=filter,
                output_fields=output_fields,
                timeout=timeout,
            )
        )

    def delete(
        self,
        *,
        ids: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the contract's name
        collection: str = "images",
        limit: int | None = None,
        dry_run: bool = False,
        return_missing: bool = False,
        timeout: float | None = None,
    ) -> R:
        """Remove rows by ids or by filter: ``.outputs["deleted"]``; see ``requests.delete``."""
        return self.call(
            requests.delete(
                ids=ids,
                filter=filter,
                collection=collection,
                limit=limit,
                dry_run=dry_run,
                return_missing=return_missing,
                timeout=timeout,
            )
        )

    def run(
        self,
        pipeline: str,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> R:
        """Any pipeline of the fleet: ``.rows``, one of them or several; ``.outputs`` as they came."""
        return self.call(requests.run(pipeline, inputs, options, timeout=timeout))
