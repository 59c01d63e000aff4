"""``frames``: pictures out of a video, by PyAV (``pip install "clipfleet[video]"``)."""

from __future__ import annotations

import io
import math
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from clipfleet.operators.operator import Operator, Place, current_item
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["Frames", "Reading", "frames_of", "video_kind"]

# Of a time in seconds: streams count in fractions such as 1/90000.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Frames(Operator):
    """Take pictures out of a video, one every so many seconds; for ``flat_map``.

    Seconds count from the first frame. Frames are decoded as they are asked for, so that no long video lies in memory
    unpacked, and turned upright. MP4 and MOV, WebM and Matroska, AVI and MPEG-TS are read, told by their content.

    Attributes:
        every_s: seconds between two pictures; 0: every one.
        limit: how many at most; None: to the end.
    """

    name = "frames"
    task = "video -> many (pixels, seconds)"

    every_s: float = 1.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if not (self.every_s >= 0 and math.isfinite(self.every_s)):
            raise ValueError(f"every_s is a number of seconds, not {self.every_s!r}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")

    def open(self, place: Place) -> Callable[..., Any]:
        """A video (bytes, ``{"url": ...}`` or ``{"path": ...}``) to an iterator of (uint8 [h, w, 3], seconds).

        The function raises ``unsupported_media`` for what is no video of these kinds, and as ``Fetcher.fetch``; the
        iterator ``corrupt_image``, ``too_many_pixels``, and ``expired`` once its request has no time left.

        Raises:
            ExtraMissing: PyAV is not installed.
        """
        try:
            import av  # noqa: F401, PLC0415  (50 MB that most never need)
        except ImportError:
            from clipfleet.models.errors import ExtraMissing  # noqa: PLC0415

            raise ExtraMissing('PyAV is not installed: pip install "clipfleet[video]"') from None
        services, threads = place.services, place.threads

        def frames(video: Any) -> Iterator[tuple[NDArray[np.uint8], float]]:
            item = current_item()
            data = bytes(services.fetcher.fetch(video, timeout_s=item.left_s))
            reading = Reading(
                self.every_s, self.limit, services.limits.max_pixels, threads=threads, deadline=item.deadline
            )
            return frames_of(io.BytesIO(data), video_kind(data), reading)

        return frames


@dataclass(frozen=True, slots=True)
class Reading:
    """How a video is read.

    Attributes:
        every_s: seconds between two pictures; 0: every one.
        limit: how many at most; None: to the end.
        max_pixels: of one picture.
        threads: that decode.
        deadline: after which nothing is decoded, by the monotonic clock.
    """

    every_s: float
    limit: int | None
    max_pixels: int
    threads: int = 1
    deadline: float = math.inf


def frames_of(file: IO[bytes], kind: str, reading: Reading) -> Iterator[tuple[NDArray[np.uint8], float]]:
    """Pictures of a video, uint8 [h, w, 3], and their seconds from the first one.

    Args:
        file: the video; seekable.
        kind: from ``video_kind``.
        reading: how.

    Raises:
        RequestFailed: ``corrupt_image``, ``too_many_pixels``, ``unsupported_media``; ``expired`` after the deadline.
        ImportError: PyAV is not installed.
    """
    import av  # noqa: PLC0415

    begin: float | None = None
    at, due, given = 0.0, 0.0, 0
    every_s, most = reading.every_s, reading.max_pixels
    try:
        # The kind is said, and no other is opened from inside of it: a playlist would make it read other files.
        options = {"format_whitelist": kind, "protocol_whitelist": "none"}
        with av.open(file, format=kind.partition(",")[0], options=options) as container:
            stream = _first_stream(container)
            stream.codec_context.thread_count = reading.threads
            _check_size(stream.codec_context, most)
            for frame in container.decode(stream):
                if time.monotonic() > reading.deadline:
                    # The rest would take a core from those who still wait.
                    raise error_for(ErrorCode.EXPIRED)
                # Again, since a stream may change its size on the way.
                _check_size(frame, most)
                if frame.time is not None:
                    # Recordings of broadcasts begin at any hour.
                    begin = frame.time if begin is None else begin
                    at = max(float(frame.time - begin), 0.0)
                if at + _ROUNDING < due:
                    continue
                # From the grid and not from this frame: else the distance would grow by what each comes late.
                due = (math.floor((at + _ROUNDING) / every_s) + 1) * every_s if every_s else 0.0
                yield _upright(frame), at
                given += 1
                if given == reading.limit:
                    return
    except RequestFailed:
        raise
    except Exception as problem:  # noqa: BLE001
        # Besides its own errors PyAV raises what hostile bytes lead it to (IndexError was seen): a verdict on them.
        raise error_for(ErrorCode.CORRUPT_IMAGE, f"video: {str(problem)[:200]}") from None
    if not given:
        raise error_for(ErrorCode.CORRUPT_IMAGE, "video: it holds no frame")


def video_kind(data: bytes) -> str:
    """The demuxer's name, by content: the first 189 bytes are enough.

    Raises:
        RequestFailed: ``empty_input``, ``unsupported_media``.
    """
    if not data:
        raise error_for(ErrorCode.EMPTY_INPUT, "the video has no bytes")
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mov,mp4,m4a,3gp,3g2,mj2"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska,webm"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    if data[:1] == data[188:189] == b"\x47":
        return "mpegts"
    raise error_for(ErrorCode.UNSUPPORTED_MEDIA, "the bytes are no video of a kind that is read")


def _first_stream(container: Any) -> Any:
    if not container.streams.video:
        raise error_for(ErrorCode.UNSUPPORTED_MEDIA, "there is no video in it")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise error_for(ErrorCode.UNSUPPORTED_MEDIA, "the video is of a coding that is not decoded")
    return stream


def _check_size(frame: Any, most: int) -> None:
    if frame.width * frame.height > most:
        raise error_for(ErrorCode.TOO_MANY_PIXELS, f"{frame.width} x {frame.height} pixels; at most {most} are decoded")


def _upright(frame: Any) -> NDArray[np.uint8]:
    pixels = np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)
    turns = round((getattr(frame, "rotation", 0) or 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels


frames = Frames
