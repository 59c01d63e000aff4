"""Frames of videos, one each so many seconds; an id is ``<video>#t=<seconds>``.

That is how a moment of a video is addressed: https://www.w3.org/TR/media-frags/.
"""

from __future__ import annotations

import importlib.util
import io
from functools import partial
from hashlib import blake2b
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.files import printable, unreadable
from clipfleet.index.sources.item import Failure, Item, Skip, SourceError, Stored, opened
from clipfleet.index.sources.seen import Met
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from clipfleet.index.sources.item import Event, Place
    from clipfleet.index.sources.seen import Seen

__all__ = ["VIDEO_SUFFIXES", "Videos"]

VIDEO_SUFFIXES: Final = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts")
# What tells the kind, of a transport stream the beginning of the second packet.
_HEAD_BYTES: Final = 189
_JPEG_QUALITY: Final = 95


class Videos:
    """Videos, one after the other, none of them whole in memory."""

    def __init__(self, videos: Sequence[tuple[Path | Place, str]], name: str, every_s: float) -> None:
        """Take the videos.

        Args:
            videos: each with the id that those of its frames begin with.
            name: what the user called them.
            every_s: seconds between two frames, counted from the first one; 0: every frame.

        Raises:
            SourceError: PyAV is not installed.
        """
        if importlib.util.find_spec("av") is None:
            raise SourceError(f'{name}: videos need PyAV: pip install "clipfleet[video]"')
        self._videos = videos
        self._name = name
        self._every_s = every_s

    def stems(self) -> list[str]:
        """With what the ids of each video's frames begin."""
        return [id_ for _, id_ in self._videos]

    def only(self, kept: Sequence[bool]) -> Videos:
        """Some of the videos."""
        return Videos(list(compress(self._videos, kept)), self._name, self._every_s)

    @property
    def about(self) -> str:
        """Which kind it was taken for."""
        videos = "a video" if len(self._videos) == 1 else f"{len(self._videos):,} videos"
        each = f"a frame each {self._every_s:g} s" if self._every_s else "every frame"
        return f"{self._name}: {videos}, {each}; ids are VIDEO#t=SECONDS"

    def events(self, seen: Seen) -> Iterator[Event]:
        """Their frames; one that breaks off gives those before that, and then a ``Failure`` of the video."""
        for place, id_ in self._videos:
            label = printable(str(place))
            try:
                yield from self._frames(place, id_, label, seen)
            except RequestFailed as error:
                yield Failure(id_, label, error, whole=True)
            except OSError as error:
                yield Failure(id_, label, unreadable(error), whole=True)

    def count(self) -> Iterator[object]:
        """Nothing.

        Raises:
            OSError: always: how many frames there are is known when they are read.
        """
        raise OSError("frames are not counted beforehand")

    def _frames(self, place: Path | Place, id_: str, label: str, seen: Seen) -> Iterator[Event]:
        from clipfleet.operators.limits import ImageLimits  # noqa: PLC0415 - of the worker's portion
        from clipfleet.operators.video import Reading, frames_of, video_kind  # noqa: PLC0415

        with opened(place) as file:
            kind = video_kind(file.read(_HEAD_BYTES))
            file.seek(0)
            reading = Reading(self._every_s, None, ImageLimits().max_pixels)
            for pixels, at in frames_of(file, kind, reading):
                own = f"{id_}#t={at:.3f}"
                match seen.add(own, label.encode()):
                    case Met.SAME:
                        yield Skip(Skip.DUPLICATE)
                        continue
                    case Met.TAKEN:
                        yield Failure(own, label, error_for(ErrorCode.BAD_REQUEST, "another picture has the same id"))
                        continue
                metadata = {"path": id_, "name": printable(place.name), "seconds": round(at, 3)}
                picture = Stored(partial(_jpeg, pixels), blake2b(pixels.data, digest_size=16).hexdigest())
                yield Item(own, f"{label}#t={at:.3f}", picture, metadata)


def _jpeg(pixels: Any) -> bytes:
    from PIL import Image  # noqa: PLC0415 - 50 ms that whoever has no videos saves

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return out.getvalue()
