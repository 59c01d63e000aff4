"""How a picture travels to the workers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.index.files import read_picture
from clipfleet.index.shrink import shrunk
from clipfleet.index.sources.item import Stored
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.limits import DEFAULT_INDEX_TTL_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clipfleet.index.sources import Item
    from clipfleet.producer.requests import Image, NewRequest

__all__ = ["Send", "Sending"]


class Send(StrEnum):
    """What a request carries of a picture."""

    BYTES = "bytes"  # the picture
    PATH = "path"  # where a worker reads it, below one of its roots
    URL = "url"  # where a worker fetches it


@dataclass(frozen=True, slots=True)
class Sending:
    """How the pictures of one run travel.

    Attributes:
        collection: where their rows go.
        send: what a request carries; None = the bytes of files and of members, the addresses of tables.
        roots: with ``Send.PATH``, the folders here that workers know by these names (``worker --allow-root``).
        shrink_px: pictures above 2 MiB are sent with this shorter side; 0 = as they are. See ``shrunk``.
        vectors: whether vectors are asked for, and nothing is stored by the fleet.
    """

    collection: str = "images"
    send: Send | None = None
    roots: Mapping[str, Path] = field(default_factory=dict)
    shrink_px: int = 0
    vectors: bool = False

    def with_content(self, item: Item) -> tuple[Item, bytes]:
        """An item, read where its bytes travel, and 16 bytes by which the same picture is known under another id.

        Of an address it is the address: what is behind it, a worker alone will see. A file that travels as its path is
        read for this alone.

        Raises:
            RequestFailed: it cannot be read.
        """
        from clipfleet.producer.requests import Url  # noqa: PLC0415

        picture = item.picture
        if isinstance(picture, Url):
            return item, _digest(b"url " + picture.url.encode("utf-8", "surrogatepass"))
        data = _read(picture)
        # What was hashed is what is sent, also where the file changes meanwhile.
        return item if self.send is Send.PATH else replace(item, picture=data), _digest(b"bytes " + data)

    def request(self, item: Item) -> NewRequest:
        """The request for an item.

        Raises:
            RequestFailed: its file cannot be read, or it cannot travel so.
        """
        from clipfleet.producer import requests  # noqa: PLC0415  so that the walk alone needs no client

        image = self._image(item)
        if self.vectors:
            # As long as index_image has, and not as an embedding that somebody waits for.
            return requests.embed_image(image, timeout=DEFAULT_INDEX_TTL_MS / 1000)
        return requests.index_image(image, id=item.id, metadata=item.metadata, collection=self.collection)

    def _image(self, item: Item) -> Image:
        from clipfleet.producer.requests import Url, WorkerPath  # noqa: PLC0415

        picture = item.picture
        if isinstance(picture, Url):
            if self.send not in {None, Send.URL}:
                raise _cannot(f"an address is fetched by a worker: it is not sent as {self.send}")
            return picture
        if self.send is Send.URL:
            raise _cannot("it has no address to be sent as a url")
        if self.send is Send.PATH:
            if not isinstance(picture, Path):
                raise _cannot("it is inside another file: it has no path to be sent")
            return WorkerPath(self._below_root(picture))
        return shrunk(_read(picture), self.shrink_px)

    def _below_root(self, path: Path) -> str:
        """``NAME:relative/path`` by the root that is nearest to the file."""
        # What a link stands for, since workers follow none.
        real = os.path.realpath(path)
        below = [
            (len(folder), f"{name}:{os.path.relpath(real, folder)}")
            for name, folder in ((name, os.path.realpath(root)) for name, root in self.roots.items())
            if os.path.commonpath([real, folder]) == folder
        ]
        if not below:
            raise _cannot("it is in none of the folders that workers know (--root NAME=DIR)")
        text = max(below)[1]
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _cannot("its path is not UTF-8: it can be sent as bytes alone") from None
        return text


def _read(picture: bytes | Path | Stored) -> bytes:
    if isinstance(picture, Stored):
        return picture.read()
    return read_picture(picture) if isinstance(picture, Path) else picture


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _cannot(text: str) -> RequestFailed:
    return error_for(ErrorCode.BAD_REQUEST, text)
