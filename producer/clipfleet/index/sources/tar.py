"""Shards: tars of pictures and of what is said of them, as webdataset and img2dataset write them.

The members of one sample stand next to one another and differ only in their suffix: ``0001.jpg``, ``0001.json``,
``0001.txt``. The sample's key is the member's name without what follows its last dot, so that ``22.05.png`` and
``22.05.json`` belong together, and so do neither ``train.v1/0001.jpg`` and ``train.v1/0002.jpg``. (webdataset itself
cuts at the first dot of the file's name.) Suffixes are read case-blind. A picture's id is ``<shard>/<key>``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.files import MAX_FILE_BYTES, PICTURE_SUFFIXES, printable
from clipfleet.index.sources.item import Failure, Hides, Item, Skip
from clipfleet.index.sources.json_text import read_object
from clipfleet.index.sources.seen import Met
from clipfleet.index.sources.tar_stream import Gap, Member, TarStream
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from clipfleet.index.sources.item import Event, Place
    from clipfleet.index.sources.seen import Seen

__all__ = ["TAR_SUFFIXES", "Tars"]

TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz")
_SIDES: Final = frozenset({".json", ".txt", ".cls"})
# Metadata have at most 64 KiB as compact JSON; a pretty one is larger.
_MAX_SIDE_BYTES: Final = 1 << 20


class Tars:
    """Shards, one after the other."""

    def __init__(self, paths: Sequence[Path | Place], name: str) -> None:
        """Take the shards.

        Args:
            paths: the shards, each of which may be missing.
            name: what the user called them.
        """
        self._paths = paths
        self._name = name

    def stems(self) -> list[str]:
        """With what the ids of each shard begin."""
        return [_stem(path.name) for path in self._paths]

    def only(self, kept: Sequence[bool]) -> Tars:
        """Some of the shards."""
        return Tars(list(compress(self._paths, kept)), self._name)

    @property
    def about(self) -> str:
        """Which kind it was taken for."""
        shards = "a webdataset shard" if len(self._paths) == 1 else f"{len(self._paths):,} webdataset shards"
        return f"{self._name}: {shards}; ids are SHARD/KEY, .json, .txt and .cls beside a picture its metadata"

    def events(self, seen: Seen) -> Iterator[Event]:
        """Pictures with their metadata; what is damaged costs itself alone.

        A shard that ends too early gives its whole members and then a ``Failure`` of the shard.
        """
        for path in self._paths:
            yield from _Shard(path, seen).events()

    def count(self) -> Iterator[object]:
        """Each picture by its header.

        Raises:
            OSError: a shard is packed: to count its members is to read them.
        """
        for path in self._paths:
            try:
                with TarStream(path, lambda _name: 0) as stream:
                    if stream.packed:
                        raise OSError("packed")
                    yield from (each for each in stream if isinstance(each, Member) and _is_picture(each))
            except RequestFailed:
                yield path


@dataclass(slots=True)
class _Sample:
    """The members of one key that stand next to one another.

    Attributes:
        key: their names without the suffix.
        picture: the picture among them.
        metadata: what the others say of it.
        sides: those others' suffixes.
    """

    key: str
    picture: Member | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    sides: set[str] = field(default_factory=set)


class _Shard:
    """One shard on its way through."""

    def __init__(self, path: Path | Place, seen: Seen) -> None:
        self._path = path
        self._label = printable(str(path))
        self._stem = _stem(path.name)
        self._seen = seen
        self._sample = _Sample("")

    def events(self) -> Iterator[Event]:
        """Everything in it."""
        try:
            with TarStream(self._path, _most_bytes) as stream:
                for each in stream:
                    yield from self._damaged(each) if isinstance(each, Gap) else self._member(each)
                yield from self._flush()
                if stream.trouble:
                    error = error_for(ErrorCode.FETCH_FAILED, f"incomplete: {stream.trouble}", retryable=False)
                    yield Failure(self._stem, self._label, error, whole=True)
        except RequestFailed as error:
            yield Failure(self._stem, self._label, error, whole=True)

    def _damaged(self, gap: Gap) -> Iterator[Event]:
        yield from self._flush()
        error = error_for(ErrorCode.FETCH_FAILED, f"damaged at byte {gap.offset:,}: no header", retryable=False)
        yield Failure(f"{self._stem}@{gap.offset}", self._label, error, whole=True)

    def _member(self, member: Member) -> Iterator[Event]:
        if member.is_folder:
            return
        if member.doubtful:
            yield replace(self._failure(member.name, member, _unread(member)), hides=Hides.ANY)
            return
        name = "/".join(part for part in member.name.split("/") if part not in {"", "."})
        path = PurePosixPath(name)
        suffix = path.suffix.lower()
        if path.name.startswith(".") or (suffix not in PICTURE_SUFFIXES and suffix not in _SIDES):
            yield Skip(Skip.OTHER)
            return
        key = name[: -len(suffix)]
        if key != self._sample.key:
            yield from self._flush()
            self._sample = _Sample(key)
        error = _unusable(member, path)
        if error is not None:
            yield self._failure(key, member, error)
        elif suffix in _SIDES:
            yield from self._side(member, suffix)
        elif self._sample.picture is None:
            self._sample.picture = member
        elif self._sample.picture.data == member.data:
            yield Skip(Skip.DUPLICATE)
        else:
            yield self._failure(key, member, _bad(f"{self._sample.picture.name} has the same key"))

    def _side(self, member: Member, suffix: str) -> Iterator[Event]:
        """Take what a member says of its picture. Where it is broken that costs the picture nothing."""
        sample = self._sample
        if suffix in sample.sides:
            yield self._failure(sample.key, member, _bad(f"its picture has another {suffix} already"))
            return
        sample.sides.add(suffix)
        if sample.picture is None and f"{self._stem}/{sample.key}" in self._seen:
            yield self._failure(
                sample.key, member, _bad("it does not stand next to its picture, which went without it")
            )
            return
        data = member.data or b""
        try:
            if suffix == ".json":
                sample.metadata |= read_object(data)
            else:
                text = printable(data.decode("utf-8", "surrogateescape").strip())
                name = "caption" if suffix == ".txt" else "cls"
                sample.metadata.setdefault(name, int(text) if suffix == ".cls" and text.isdecimal() else text)
        except ValueError as error:
            yield self._failure(sample.key, member, _bad(f"{error}; its picture goes without it"))

    def _flush(self) -> Iterator[Event]:
        sample, self._sample = self._sample, _Sample("")
        id_ = f"{self._stem}/{sample.key}"
        # A name that no member can have: it tells that something was said before its picture came, and is lost.
        said = f"\0{id_}"
        if sample.picture is None:
            if sample.sides:
                self._seen.add(said, b"")
                yield Skip(Skip.OTHER, len(sample.sides))
            return
        data = sample.picture.data or b""
        match self._seen.add(id_, data):
            case Met.SAME:
                yield Skip(Skip.DUPLICATE)
                return
            case Met.TAKEN:
                yield self._failure(sample.key, sample.picture, _bad("another picture has the same id"))
                return
        name = sample.picture.name
        place = {"path": f"{self._stem}/{name}", "name": PurePosixPath(name).name}
        yield Item(id_, f"{self._label}/{name}", data, place | sample.metadata, len(data))
        if not sample.sides and said in self._seen:
            apart = _bad("its metadata do not stand next to it: it went without them")
            yield self._failure(sample.key, sample.picture, apart)

    def _failure(self, key: str, member: Member, error: RequestFailed) -> Failure:
        return Failure(f"{self._stem}/{key}", f"{self._label}/{member.name}", error)


def _unread(member: Member) -> RequestFailed:
    return error_for(ErrorCode.UNSUPPORTED_MEDIA, f"a member that is {member.kind} is not read")


def _bad(message: str) -> RequestFailed:
    return error_for(ErrorCode.BAD_REQUEST, message)


def _stem(name: str) -> str:
    low = name.lower()
    longest = max((suffix for suffix in TAR_SUFFIXES if low.endswith(suffix)), key=len, default="")
    return printable(name[: len(name) - len(longest)])


def _is_picture(member: Member) -> bool:
    return PurePosixPath(member.name).suffix.lower() in PICTURE_SUFFIXES


def _most_bytes(name: str) -> int:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in PICTURE_SUFFIXES:
        return MAX_FILE_BYTES
    return _MAX_SIDE_BYTES if suffix in _SIDES else -1


def _unusable(member: Member, path: PurePosixPath) -> RequestFailed | None:
    """Why a member's content cannot be used; None when it can."""
    if member.kind:
        return _unread(member)
    if ".." in path.parts:
        # Nothing is ever opened by this name, but it would be stored as if something could.
        return _bad("a name with '..' leads out of its shard")
    if member.data is None:
        return error_for(ErrorCode.TOO_LARGE, f"{member.size:,} bytes")
    return None
