"""The detector: boxes exact to the pixel on generated scenes, whatever the layout, the size and the company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from clipfleet.models import DeviceUnavailable, ModelError
from clipfleet.models.onnx_session import Port
from clipfleet.operators import BatchOperator, Opened, Place, crop, detect
from clipfleet.operators.detection import Detect, _Detector
from clipfleet.operators.here import local_services
from clipfleet.operators.yolo import Candidates, class_count, letterbox, read_output, suppress
from clipfleet.schemas.errors import ErrorCode, RequestFailed

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
V8, V5 = DATA / "blobs-v8.onnx", DATA / "blobs-v5.onnx"
THINGS = ROOT / "examples" / "data" / "things.onnx"
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
# In each quarter of a page at most one object, well apart from those of the other quarters.
QUARTERS = [(x, y) for y in (0, 1) for x in (0, 1)]


def scene(objects, size=128):
    """A white page of ``size`` with (label, (x0, y0, x1, y1)) on it."""
    page = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(page)
    for label, (x0, y0, x1, y1) in objects:
        draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill=COLOURS[label])
    return np.asarray(page)


@st.composite
def scenes(draw):
    objects = []
    for x, y in QUARTERS:
        if draw(st.booleans()):
            left, top = x * 64 + draw(st.integers(2, 20)), y * 64 + draw(st.integers(2, 20))
            wide, high = draw(st.integers(9, 38)), draw(st.integers(9, 38))
            objects.append((draw(st.sampled_from(sorted(COLOURS))), (left, top, left + wide, top + high)))
    return objects


def found(operator, pixels):
    return sorted((label, tuple(round(edge) for edge in box)) for box, _, label in operator(pixels))


def opened(operator: BatchOperator) -> Opened:
    return operator.open(Place(local_services()))


@pytest.mark.parametrize("file", [V8, V5], ids=["v8", "v5"])
@settings(max_examples=25, deadline=None)
@given(scenes())
def test_given_any_scene_then_each_object_is_found_once_with_its_box_and_label(file, objects):
    assert found(detect(file), scene(objects)) == sorted(objects)


def test_given_a_larger_oblong_picture_then_boxes_are_in_its_own_pixels():
    objects = [("red", (40, 60, 200, 180)), ("blue", (300, 220, 380, 380))]
    page = scene(objects, 400)[:, :390]
    wide = np.concatenate([page, np.full((400, 110, 3), 255, np.uint8)], axis=1)
    assert wide.shape == (400, 500, 3)
    # The input is 128 pixels wide: a pixel of it is four of the picture's.
    for box, score, label in detect(V8)(wide):
        expected = dict(objects)[label]
        assert np.abs(np.subtract(box, expected)).max() <= 4.0
        assert 0.6 < score < 0.96
        assert all(isinstance(edge, float) for edge in box)
    assert len(detect(V8)(wide)) == 2


def test_given_pictures_of_different_sizes_then_a_batch_gives_what_each_gives_alone():
    pages = [scene([("red", (10, 10, 60, 50))]), scene([]), scene([("green", (100, 20, 250, 90))], 300)]
    running = opened(detect(V8))
    together = running.run([running.prepare(page) for page in pages])
    assert together == [running.run([running.prepare(page)])[0] for page in pages]
    assert [len(each) for each in together] == [1, 0, 1]
    running.close()
    with pytest.raises(ModelError, match="closed"):
        running.run([running.prepare(pages[0])])


def test_given_pictures_on_a_page_then_each_is_one_thing():
    page = Image.new("RGB", (256, 256), "white")
    for name, place in (("red-apple", (10, 20)), ("sailboat", (140, 130))):
        drawing = Image.open(ROOT / "examples" / "pictures" / f"{name}.png").convert("RGBA")
        page.paste(drawing, place, drawing)
    things = detect(THINGS)(np.asarray(page))
    assert {label for _, _, label in things} == {"thing"}
    assert len(things) == 2
    assert all(
        any(np.abs(np.subtract(box[:2], place)).max() < 20 for box, _, _ in things) for place in ((10, 20), (140, 130))
    )


def test_given_a_score_or_a_number_then_less_is_kept():
    page = scene([("red", (10, 10, 50, 50)), ("blue", (80, 80, 90, 120))])
    assert len(detect(V8, most=1)(page)) == 1
    assert detect(V8, score=0.97)(page) == []
    # Without suppression each anchor in the blob speaks: 5 x 5 of them.
    assert len(detect(V8, iou=1.0)(scene([("red", (8, 8, 48, 48))]))) == 25


def test_given_other_names_then_they_are_used_and_a_wrong_number_is_refused(tmp_path):
    page = scene([("green", (10, 10, 50, 50))])
    assert found(detect(V8, labels=["a", "b", "c"]), page)[0][0] == "b"
    (tmp_path / "names.txt").write_text("x\n y \n\nz\n")
    assert found(detect(V8, labels=tmp_path / "names.txt"), page)[0][0] == "y"
    with pytest.raises(ValueError, match="3 classes, and of labels there are 2"):
        detect(V8, labels=("a", "b"))(page)
    with pytest.raises(ValueError, match="cannot be read"):
        detect(V8, labels=tmp_path / "none.txt")(page)


def test_given_an_adapter_then_it_reads_the_outputs_of_one_picture():
    shapes = set()

    def adapter(outputs):
        shapes.add(tuple(output.shape for output in outputs))
        return Candidates(np.array([[1, 2, 3, 4]], np.float32), np.array([0.5], np.float32), np.array([2]))

    assert detect(V8, layout=adapter)(scene([])) == [((1.0, 2.0, 3.0, 4.0), 0.5, "blue")]
    assert shapes == {((7, 256),)}


@pytest.mark.parametrize(
    "options", [{"layout": "yolo99"}, {"boxes": "ltrb"}, {"score": 2}, {"iou": -1}, {"most": 0}, {"size": 0}], ids=str
)
def test_given_an_option_that_cannot_be_then_it_is_refused_when_it_is_written(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        detect(V8, **options)


def test_given_a_file_that_is_no_detector_then_opening_says_so():
    with pytest.raises(ModelError, match=r"none\.onnx cannot be read"):
        opened(detect(DATA / "none.onnx"))
    with pytest.raises(DeviceUnavailable, match="cannot load test_operators_detect"):
        opened(detect(__file__))
    with pytest.raises(ValueError, match="takes 1 input; a detector takes one of pictures"):
        opened(detect(DATA / "tiny-bundle" / "text.onnx"))
    with pytest.raises(ValueError, match="three axes"):
        opened(detect(DATA / "tiny-bundle" / "image.onnx"))
    with pytest.raises(ValueError, match="takes 128 x 128 pixels, not 64 x 64"):
        opened(detect(V8, size=64))
    with pytest.raises(ValueError, match=r"end-to-end output is \[n, most, 6\]"):
        opened(detect(V8, layout="end-to-end"))


def test_given_a_device_that_is_not_here_then_opening_fails_and_never_takes_the_cpu():
    with pytest.raises(DeviceUnavailable, match="cannot run on cuda:0"):
        detect(V8).open(Place(local_services(), device="cuda:0"))


def test_given_a_file_when_opened_then_what_was_tried_is_reported():
    reported = []

    class Services:
        def tried(self, operator, attempts):
            reported.append((operator, [provider for provider, _ in attempts]))

    detect(V8).open(Place(Services(), providers=("cuda", "cpu", "torch")))
    assert reported == [("detect", ["cuda", "cpu"])]


def test_given_numbers_that_are_not_finite_then_that_picture_alone_fails(monkeypatch):
    from clipfleet.models import OnnxSession

    running = opened(detect(V8))
    ordinary = OnnxSession.run

    def spoiled(session, *arrays):
        outputs = ordinary(session, *arrays)
        outputs[0][1, 4, 7] = np.nan
        return outputs

    monkeypatch.setattr(OnnxSession, "run", spoiled)
    page = running.prepare(scene([("red", (10, 10, 60, 50))]))
    good, bad = running.run([page, page])
    assert len(good) == 1
    assert isinstance(bad, RequestFailed)
    assert bad.code is ErrorCode.MODEL_FAILED


class Recorder:
    """A file with inputs of any shape and dtype, which finds as many objects as the first pixel of a picture says."""

    def __init__(self, shape, dtype):
        self.inputs = (Port("pictures", shape, np.dtype(dtype)),)
        self.metadata = {"names": "['thing']"}
        self.given = []

    def run(self, batch):
        self.given.append(batch)
        found = np.zeros((len(batch), 5, 8), np.float32)
        for picture, output in zip(batch, found, strict=True):
            many = round(float(picture.ravel()[0]) * (255 if picture.dtype.kind == "f" else 1)) % 114
            output[:, :many] = np.array([[10 * n + 5, 5, 4, 4, 0.9] for n in range(many)]).reshape(many, 5).T
        return [found]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 3, 80, 80), np.float32),
        ((2, 3, 80, 80), np.float16),
        ((2, 80, 80, 3), np.uint8),
        ((None, None, 80, 80), np.float32),
    ],
    ids=str,
)
def test_given_any_kind_of_input_then_pictures_are_brought_into_it_and_in_pieces_where_n_is_fixed(shape, dtype):
    session = Recorder(shape, dtype)
    detector = _Detector(session, Detect("any.onnx"))
    session.given.clear()
    pages = [np.full((80, 80, 3), many, np.uint8) for many in (1, 0, 3)]
    found = detector.run([detector.prepare(page) for page in pages])
    assert [len(each) for each in found] == [1, 0, 3]
    assert found[0] == [((3.0, 3.0, 7.0, 7.0), pytest.approx(0.9), "thing")]
    assert [len(each) for each in session.given] == ([2, 2] if shape[0] else [3])
    for batch in session.given:
        assert batch.dtype == dtype
        assert batch.flags.c_contiguous
        assert batch.shape[1:] == ((80, 80, 3) if shape[-1] == 3 else (3, 80, 80))


def test_given_boxes_without_a_whole_pixel_then_they_are_left_out_and_crop_takes_the_others():
    boxes = [[10.0, 10.0, 40.0, 40.0], [50.0, 5.1, 50.3, 60.0], [0.0, 79.8, 80.0, 90.0]]

    def adapter(_outputs):
        return Candidates(np.array(boxes, np.float32), np.full(3, 0.9, np.float32), np.zeros(3, np.int64))

    detector = _Detector(Recorder((None, 3, 80, 80), np.float32), Detect("any.onnx", layout=adapter))
    page = np.zeros((80, 80, 3), np.uint8)
    (found,) = detector.run([detector.prepare(page)])
    assert [crop()(page, box).shape for box, _, _ in found] == [(30, 30, 3)]
    boxes[1][2] = float("nan")
    (found,) = detector.run([detector.prepare(page)])
    assert isinstance(found, RequestFailed)
    assert found.code is ErrorCode.MODEL_FAILED


# The parts ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 300), st.tuples(*[st.floats(0, 1)] * 4))
def test_given_any_picture_when_letterboxed_then_a_box_finds_its_way_back(height, width, parts):
    boxed = letterbox(np.zeros((height, width, 3), np.uint8), 96, 64)
    assert boxed.pixels.shape == (96, 64, 3)
    x0, x1 = sorted((parts[0] * width, parts[2] * width))
    y0, y1 = sorted((parts[1] * height, parts[3] * height))
    there = np.array(
        [
            *(x0 * boxed.scale_x + boxed.left, y0 * boxed.scale_y + boxed.top),
            *(x1 * boxed.scale_x + boxed.left, y1 * boxed.scale_y + boxed.top),
        ]
    )
    assert boxed.back(there) == pytest.approx((x0, y0, x1, y1), abs=1e-3)


def plain_suppression(boxes, scores, classes, iou):
    """By the definition: one pair at a time."""
    order = sorted(range(len(scores)), key=lambda n: -scores[n])
    kept = []
    for n in order:
        for k in kept:
            wide = max(0, min(boxes[n][2], boxes[k][2]) - max(boxes[n][0], boxes[k][0]))
            high = max(0, min(boxes[n][3], boxes[k][3]) - max(boxes[n][1], boxes[k][1]))
            areas = [max(0, b[2] - b[0]) * max(0, b[3] - b[1]) for b in (boxes[n], boxes[k])]
            if classes[n] == classes[k] and wide * high > iou * (sum(areas) - wide * high):
                break
        else:
            kept.append(n)
    return kept


@given(
    st.lists(st.tuples(*[st.integers(0, 12)] * 4, st.integers(0, 20), st.integers(0, 1)), max_size=25),
    st.sampled_from([0.0, 0.25, 0.5, 0.75]),
)
def test_given_any_boxes_then_suppression_is_that_of_the_definition(rows, iou):
    table = np.array(rows, np.float32).reshape(-1, 6)
    candidates = Candidates(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))
    assert suppress(candidates, iou, 99) == plain_suppression(
        table[:, :4].tolist(), table[:, 4].tolist(), table[:, 5].tolist(), iou
    )


def test_each_layout_is_read_as_its_maker_writes_it():
    # One anchor of class 1 at centre (10, 20), 4 wide and 6 high; the other ones say nothing.
    v5 = np.zeros((9, 8), np.float32)
    v5[3] = (10, 20, 4, 6, 0.8, 0.1, 0.9, 0.2)
    v8 = np.zeros((7, 9), np.float32)
    v8[:, 3] = (10, 20, 4, 6, 0.1, 0.72, 0.2)
    end = np.zeros((9, 6), np.float32)
    end[3] = (8, 17, 12, 23, 0.72, 1)
    for layout, output in (("v5", v5), ("v8", v8), ("end-to-end", end)):
        boxes, scores, classes = read_output(layout, "xywh", 0.5)(output)
        assert boxes.tolist() == [[8, 17, 12, 23]]
        assert scores.tolist() == pytest.approx([0.72])
        assert classes.tolist() == [1]
    v8[:4, 3] = (8, 17, 12, 23)
    assert read_output("v8", "xyxy", 0.5)(v8).boxes.tolist() == [[8, 17, 12, 23]]


@pytest.mark.parametrize(
    ("shape", "labels", "expected"),
    [
        ((84, 8400), None, ("v8", 80)),
        ((25200, 85), None, ("v5", 80)),
        ((85, 20), 15, ("v5", 15)),  # more classes' numbers than anchors: only the labels can tell
        ((24, 12), 20, ("v8", 20)),
    ],
)
def test_the_layout_is_told_by_the_shape_and_where_that_misleads_by_the_labels(shape, labels, expected):
    assert class_count(shape, "yolo", labels) == expected


def test_given_no_room_for_classes_then_it_is_no_detector():
    with pytest.raises(ValueError, match="no room for classes"):
        class_count((4, 100), "v8", None)
