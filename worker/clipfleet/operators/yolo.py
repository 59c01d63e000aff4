"""What YOLO-style detectors take and give: letterboxed pictures in, a row of numbers per anchor out.

=============== ========================= =========================================================================
layout          output                    made by
=============== ========================= =========================================================================
``v8``          [n, 4 + classes, anchors] YOLOv8, v9, 11, 12, YOLO-World: box, then one probability per class
``v5``          [n, anchors, 5 + classes] YOLOv5, v7: box, that there is anything at all, then which class
``end-to-end``  [n, most, 6]              YOLOv10, YOLO26, exports with NMS: x0, y0, x1, y1, score, class
``yolo``        the one of the first two that the shape tells
=============== ========================= =========================================================================

Sources: the export formats of github.com/ultralytics (yolov5, ultralytics) and THU-MIG/yolov10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from clipfleet.operators._values import Box

__all__ = ["BoxFormat", "Candidates", "Layout", "Letterboxed", "class_count", "letterbox", "read_output", "suppress"]

Layout = Literal["yolo", "v8", "v5", "end-to-end"]
BoxFormat = Literal["xywh", "xyxy"]

_GREY = (114, 114, 114)
# Suppression compares each kept box with all others: beyond this many, the unlikely ones are left out first.
_MOST_CANDIDATES = 4096


class Candidates(NamedTuple):
    """What a detector says of one picture, before suppression.

    Attributes:
        boxes: float32 [m, 4] as x0, y0, x1, y1 in pixels of the detector's input.
        scores: float32 [m].
        classes: int64 [m].
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Letterboxed:
    """A picture scaled into a detector's input, its proportions kept and the rest grey.

    Attributes:
        pixels: uint8 [height, width, 3] of the input's size.
        left: columns of grey before it.
        top: rows of grey above it.
        scale_x: input's pixels per pixel of the picture, across.
        scale_y: and down; not quite the same, since sides are whole.
        width: of the picture.
        height: of the picture.
    """

    pixels: NDArray[np.uint8]
    left: int
    top: int
    scale_x: float
    scale_y: float
    width: int
    height: int

    def back(self, box: NDArray[np.float32]) -> Box:
        """A box of the input, in the picture's own pixels and within it."""
        x0, y0, x1, y1 = (float(edge) for edge in box)
        across = [min(max((edge - self.left) / self.scale_x, 0.0), float(self.width)) for edge in (x0, x1)]
        down = [min(max((edge - self.top) / self.scale_y, 0.0), float(self.height)) for edge in (y0, y1)]
        return across[0], down[0], across[1], down[1]


def letterbox(pixels: NDArray[np.uint8], height: int, width: int) -> Letterboxed:
    """Scale uint8 [h, w, 3] into ``height`` x ``width``, centred on grey."""
    high, wide = pixels.shape[:2]
    ratio = min(height / high, width / wide)
    new_high, new_wide = max(1, round(high * ratio)), max(1, round(wide * ratio))
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    if (new_wide, new_high) != (wide, high):
        picture = picture.resize((new_wide, new_high), Image.Resampling.BILINEAR)
    left, top = (width - new_wide) // 2, (height - new_high) // 2
    if (new_wide, new_high) != (width, height):
        canvas = Image.new("RGB", (width, height), _GREY)
        canvas.paste(picture, (left, top))
        picture = canvas
    return Letterboxed(np.asarray(picture), left, top, new_wide / wide, new_high / high, wide, high)


def class_count(shape: Sequence[int], layout: Layout, labels: int | None) -> tuple[Layout, int | None]:
    """Which layout an output of one picture has, and how many classes it speaks of.

    Args:
        shape: of the output without its first axis.
        layout: as it was configured.
        labels: how many classes there are, where that is known.

    Returns:
        The layout, never ``yolo``; and the classes, None where the output does not tell.

    Raises:
        ValueError: it cannot be an output of that layout.
    """
    if len(shape) != 2:
        raise ValueError(f"a detector's output has three axes, and this one has {[None, *shape]}")
    if layout == "yolo":
        # There are more anchors than classes; where that misleads (a tiny input, many classes), the labels know better.
        layout = "v8" if shape[0] < shape[1] else "v5"
        if labels is not None:
            fitting: list[Layout] = []
            fitting += ["v8"] if shape[0] == 4 + labels else []
            fitting += ["v5"] if shape[1] == 5 + labels else []
            layout = fitting[0] if len(fitting) == 1 else layout
    if layout == "end-to-end":
        if shape[1] != 6:
            raise ValueError(f"an end-to-end output is [n, most, 6], and this one is {[None, *shape]}")
        return layout, None
    classes = shape[0] - 4 if layout == "v8" else shape[1] - 5
    if classes < 1:
        raise ValueError(f"an output of {[None, *shape]} has no room for classes in layout {layout}")
    return layout, classes


def read_output(layout: Layout, boxes: BoxFormat, least: float) -> Callable[[NDArray[Any]], Candidates]:
    """How the output of one picture (without the axis of the batch) becomes candidates scored at least ``least``."""

    def read(output: NDArray[Any]) -> Candidates:
        if layout == "end-to-end":
            classes, scores, found = output[:, 5], output[:, 4], output[:, :4]
        else:
            table = output.T if layout == "v8" else output
            rest = table[:, 4:] if layout == "v8" else table[:, 5:]
            classes, scores, found = rest.argmax(axis=1), rest.max(axis=1), table[:, :4]
            if layout == "v5":
                scores = scores * table[:, 4]
        kept = np.flatnonzero(scores >= least)
        if len(kept) > _MOST_CANDIDATES:
            kept = kept[np.argsort(-scores[kept], kind="stable")[:_MOST_CANDIDATES]]
        corners = np.asarray(found[kept], dtype=np.float32)
        if boxes == "xywh" and layout != "end-to-end":
            half = corners[:, 2:] / 2
            corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], axis=1)
        return Candidates(corners, scores[kept].astype(np.float32), classes[kept].astype(np.int64))

    return read


def suppress(candidates: Candidates, iou: float, most: int) -> list[int]:
    """Greedy non-maximum suppression, class by class.

    Args:
        candidates: of one picture.
        iou: a box that overlaps a better one of its class by more than this (intersection over union) is dropped.
        most: how many are kept at most.

    Returns:
        Which are kept, best first; equals in order.
    """
    order = np.argsort(-candidates.scores, kind="stable")
    classes = candidates.classes[order]
    x0, y0, x1, y1 = np.ascontiguousarray(candidates.boxes[order].T)
    areas = np.maximum(x1 - x0, 0) * np.maximum(y1 - y0, 0)
    left = np.ones(len(order), dtype=bool)
    kept: list[int] = []
    for best, which in enumerate(order):
        if not left[best]:
            continue
        kept.append(int(which))
        if len(kept) == most:
            break
        # With all that follow and not only those that are left: picking these out takes longer than computing all.
        rest = slice(best + 1, None)
        wide = np.minimum(x1[rest], x1[best]) - np.maximum(x0[rest], x0[best])
        high = np.minimum(y1[rest], y1[best]) - np.maximum(y0[rest], y0[best])
        shared = np.maximum(wide, 0) * np.maximum(high, 0)
        # Multiplied out: two boxes without area overlap by nothing, and not by 0 / 0.
        same = shared > iou * (areas[rest] + areas[best] - shared)
        left[rest] &= ~(same & (classes[rest] == classes[best]))
    return kept
