"""``detect``: objects in a picture, by any ONNX detector of the YOLO family or with an adapter for another one."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from clipfleet.operators._values import Box, as_pixels, whole_edges, whole_size
from clipfleet.operators.operator import BatchOperator, Opened, Place
from clipfleet.operators.yolo import (
    BoxFormat,
    Candidates,
    Layout,
    Letterboxed,
    class_count,
    letterbox,
    read_output,
    suppress,
)
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clipfleet.models import OnnxSession

__all__ = ["Detect"]

Adapter = Callable[[Sequence["NDArray[Any]"]], Candidates]
Found = tuple[Box, float, str]
_SIDE = 640


@dataclass(frozen=True)
class Detect(BatchOperator):
    """Find objects: a picture to its (box, score, label), best first; for ``flat_map``.

    ::

        .flat_map("pixels", ("box", "score", "label"), detect("yolo11n.onnx"), max_batch_size=8)

    The file takes one input of pictures, [n, 3, H, W] or [n, H, W, 3], RGB; 0 to 1 where it takes floats, 0 to 255
    where it takes uint8. A fixed n is served in pieces of that size.

    Attributes:
        model_file: the ONNX file.
        layout: what it gives: ``yolo`` (told by its shape), ``v8``, ``v5`` or ``end-to-end``, see
            ``clipfleet.operators.yolo``; or an adapter, a function of all outputs for one picture (without the axis of
            the batch) to ``Candidates``.
        boxes: ``xywh`` (centre and size) or ``xyxy``, in pixels of the detector's input.
        size: side of the input or (height, width); None: as the file says, and 640 where it says nothing.
        score: what scores less is dropped.
        iou: a box that overlaps a better one of its class by more is dropped; 1 where the file does that itself.
        labels: names of the classes in order, or a text file with one a line; None: as the file says (``names`` in
            its metadata, as Ultralytics write it), else their numbers.
        most: boxes of one picture.
    """

    name = "detect"
    task = "pixels -> many (box, score, label)"

    model_file: str | os.PathLike[str]
    layout: Layout | Adapter = "yolo"
    boxes: BoxFormat = "xywh"
    size: int | tuple[int, int] | None = None
    score: float = 0.25
    iou: float = 0.45
    labels: tuple[str, ...] | str | os.PathLike[str] | None = None
    most: int = 300

    def __post_init__(self) -> None:
        for what, given, known in (("layout", self.layout, Layout), ("boxes", self.boxes, BoxFormat)):
            if not callable(given) and given not in get_args(known):
                raise ValueError(f"{what} is one of {', '.join(get_args(known))}, not {given!r}")
        for what, value in (("score", self.score), ("iou", self.iou)):
            if not 0 <= value <= 1:
                raise ValueError(f"{what} is from 0 to 1, not {value!r}")
        if self.most < 1:
            raise ValueError("most must be at least 1")
        if self.size is not None:
            object.__setattr__(self, "size", whole_size(self.size, "size"))
        object.__setattr__(self, "model_file", os.fspath(self.model_file))
        if isinstance(self.labels, Sequence) and not isinstance(self.labels, str):
            object.__setattr__(self, "labels", tuple(self.labels))

    def open(self, place: Place) -> Opened:
        """Load the file; see ``Operator.open``.

        Raises:
            ModelError: the file, or the device, cannot be had.
            ValueError: it is no such detector, or of another size or number of classes than was said.
        """
        from clipfleet.models import open_session  # noqa: PLC0415  (a runtime is loaded where it runs)

        free = max(whole_size(self.size or _SIDE, "size"))
        session = open_session(
            os.fspath(self.model_file), device=place.device, providers=place.providers, threads=place.threads, free=free
        )
        place.services.tried(self.name, [(each.provider, each.reason) for each in session.tried])
        detector = _Detector(session, self)
        return Opened(run=detector.run, prepare=detector.prepare, close=session.close)


class _Detector:
    """An opened file, and what is known of it."""

    def __init__(self, session: OnnxSession, options: Detect) -> None:
        self._session = session
        self._options = options
        if len(session.inputs) != 1 or len(session.inputs[0].shape) != 4:
            raise ValueError(
                f"{options.model_file} takes {counted(len(session.inputs), 'input')}; a detector takes one of pictures"
            )
        port = session.inputs[0]
        self._channels_first = port.shape[1] == 3 or (port.shape[1] is None and port.shape[3] != 3)
        if not self._channels_first and port.shape[3] != 3:
            raise ValueError(f"{options.model_file} takes {list(port.shape)}, which is no picture of 3 channels")
        self._batch = port.shape[0]
        self.height, self.width = _input_size(port.shape[2:] if self._channels_first else port.shape[1:3], options.size)
        self._labels = _labels(options.labels, session.metadata)
        self._read = self._reader()

    def prepare(self, pixels: NDArray[np.uint8]) -> Letterboxed:
        """One picture, as the file takes it but for its dtype: bytes are a quarter of the floats to keep."""
        return letterbox(as_pixels(pixels), self.height, self.width)

    def run(self, pictures: Sequence[Letterboxed]) -> list[list[Found] | RequestFailed]:
        """What is in each."""
        outputs = self._infer([each.pixels for each in pictures])
        return [self._found(each, [output[n] for output in outputs]) for n, each in enumerate(pictures)]

    def _infer(self, pictures: Sequence[NDArray[np.uint8]]) -> list[NDArray[Any]]:
        """All outputs of a batch, in pieces where the file wants a fixed number."""
        step = self._batch or len(pictures)
        parts = []
        for start in range(0, len(pictures), step):
            part = list(pictures[start : start + step])
            missing = step - len(part)
            outputs = self._session.run(self._array(part + part[:1] * missing))
            for output in outputs:
                if output.ndim < 1 or len(output) != step:
                    raise error_for(
                        ErrorCode.MODEL_FAILED, f"the detector gave {list(output.shape)} for {counted(step, 'picture')}"
                    )
            parts.append([output[: step - missing] for output in outputs])
        return parts[0] if len(parts) == 1 else [np.concatenate(same) for same in zip(*parts, strict=True)]

    def _array(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[Any]:
        pixels = np.stack(pictures)
        if self._channels_first:
            pixels = pixels.transpose(0, 3, 1, 2)
        dtype = self._session.inputs[0].dtype
        if dtype.kind == "f":
            return np.divide(pixels, 255, dtype=dtype, order="C")
        return np.ascontiguousarray(pixels, dtype=dtype)

    def _found(self, picture: Letterboxed, outputs: Sequence[NDArray[Any]]) -> list[Found] | RequestFailed:
        candidates = self._read(outputs) if all(np.isfinite(output).all() for output in outputs) else None
        # An adapter may compute others from them.
        if candidates is None or not all(np.isfinite(each).all() for each in (candidates.boxes, candidates.scores)):
            return error_for(ErrorCode.MODEL_FAILED, "the detector gave numbers that are not finite")
        found = []
        for which in suppress(candidates, self._options.iou, self._options.most):
            box = picture.back(candidates.boxes[which])
            left, top, right, bottom = whole_edges(box, picture.height, picture.width)
            # A sliver at the border or beside it: crop would fail on it, and with it the whole picture.
            if left < right and top < bottom:
                found.append((box, float(candidates.scores[which]), self._name(int(candidates.classes[which]))))
        return found

    def _reader(self) -> Callable[[Sequence[NDArray[Any]]], Candidates]:
        """Look at one run on a grey picture: a wrong file or option is known before the first request."""
        grey = np.full((self.height, self.width, 3), 114, dtype=np.uint8)
        outputs = self._infer([grey])
        options = self._options
        if not isinstance(options.layout, str):
            options.layout([output[0] for output in outputs])
            return options.layout
        layout, classes = class_count(outputs[0].shape[1:], options.layout, len(self._labels) or None)
        if classes is not None and self._labels and len(self._labels) != classes:
            raise ValueError(
                f"{options.model_file} knows {classes} classes, and of labels there are {len(self._labels)}"
            )
        read = read_output(layout, options.boxes, options.score)
        return lambda outputs: read(outputs[0])

    def _name(self, number: int) -> str:
        return self._labels[number] if 0 <= number < len(self._labels) else str(number)


def _input_size(fixed: Sequence[int | None], asked: int | tuple[int, int] | None) -> tuple[int, int]:
    height, width = whole_size(asked, "size") if asked is not None else (fixed[0] or _SIDE, fixed[1] or _SIDE)
    for own, wanted in zip(fixed, (height, width), strict=True):
        if own is not None and own != wanted:
            raise ValueError(f"the detector takes {fixed[0]} x {fixed[1]} pixels, not {height} x {width}")
    return height, width


def _labels(given: object, metadata: Any) -> tuple[str, ...]:
    if isinstance(given, tuple):
        return given
    if isinstance(given, str | os.PathLike):
        try:
            lines = Path(given).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ValueError(f"the labels of {given} cannot be read: {error.strerror}") from None
        return tuple(line.strip() for line in lines if line.strip())
    try:
        names = ast.literal_eval(metadata.get("names", "{}"))
        pairs = sorted(names.items()) if isinstance(names, dict) else enumerate(names)
        numbered = [(int(number), str(name)) for number, name in pairs]
    except (ValueError, TypeError, OverflowError, SyntaxError, MemoryError, RecursionError):
        return ()
    # A gap would shift all names after it.
    return tuple(name for _, name in numbered) if [number for number, _ in numbered] == [*range(len(numbered))] else ()


detect = Detect
