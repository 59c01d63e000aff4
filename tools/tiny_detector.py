"""Write the tiny detectors of the tests and examples. Needs `onnx` (it comes with `clipfleet[torch]`).

    python tools/tiny_detector.py

They are no networks: the graph marks the pixels of each class, lets every marked pixel learn the extent of the blob
that it belongs to, and emits that as an anchor of YOLO would. So the boxes are exact to the pixel (at the scale of the
input), and many anchors give the same box, which is what non-maximum suppression is for.

===================================  =============================================================================
``examples/data/things.onnx``        one class, ``thing``: whatever stands out from a white page
``tests/unit/data/blobs-v8.onnx``    ``red``, ``green``, ``blue``; output [n, 4 + classes, anchors] as of YOLOv8
``tests/unit/data/blobs-v5.onnx``    the same as [n, anchors, 5 + classes] as of YOLOv5
===================================  =============================================================================

Each takes ``images``, float32 [n, 3, 128, 128], 0 to 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, STRIDE = 128, 8
NEAR = 0.25  # of a pure colour, in each channel
WHITE, GREY = 0.9, 114 / 255  # the page, and what detectors pad with
ROOT = Path(__file__).parents[1]


class Graph:
    """Nodes and constants as they are added; each call gives the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, op: str, *inputs: str, out: str = "", **attributes: object) -> str:
        out = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out


def colours_near(graph: Graph, colours: list[tuple[float, float, float]]) -> str:
    """float [n, classes, H, W]: 1 where a pixel is near that colour."""
    far = graph.add("Abs", graph.add("Sub", five_axes(graph), graph.constant(np.reshape(colours, (1, -1, 3, 1, 1)))))
    farthest = graph.add("ReduceMax", far, graph.constant([2], np.int64), keepdims=0)
    return graph.add("Cast", graph.add("Less", farthest, graph.constant(NEAR)), to=TensorProto.FLOAT)


def off_the_page(graph: Graph) -> str:
    """float [n, 1, H, W]: 1 where a pixel is neither near white nor the grey of the padding."""
    pixels = five_axes(graph)
    darkest = graph.add("ReduceMin", pixels, graph.constant([2], np.int64), keepdims=0)
    from_grey = graph.add("Abs", graph.add("Sub", pixels, graph.constant(GREY)))
    from_grey = graph.add("ReduceMax", from_grey, graph.constant([2], np.int64), keepdims=0)
    marked = graph.add(
        "And",
        graph.add("Less", darkest, graph.constant(WHITE)),
        graph.add("Greater", from_grey, graph.constant(0.02)),
    )
    return graph.add("Cast", marked, to=TensorProto.FLOAT)


def five_axes(graph: Graph) -> str:
    return graph.add("Unsqueeze", "images", graph.constant([1], np.int64))


def extents(graph: Graph, mask: str, classes: int) -> str:
    """float [n, classes, 4, H, W]: for each marked pixel x1, -x0, y1 and -y0 of its blob, in pixels, plus SIDE.

    A loop that lets neighbours agree on the highest number among them, until nothing changes: in as many rounds as the
    longest way through a blob has pixels, whatever else is in the batch.
    """
    places = np.arange(SIDE, dtype=np.float32)
    starts = np.stack([places + 1 + SIDE, SIDE - places])
    both = graph.add("Unsqueeze", mask, graph.constant([2], np.int64))
    along = [graph.add("Mul", both, graph.constant(starts.reshape(shape))) for shape in ((2, 1, SIDE), (2, SIDE, 1))]
    own = graph.add("Concat", *along, axis=2)
    flat = graph.constant([0, 4 * classes, SIDE, SIDE], np.int64)
    deep = graph.constant([0, classes, 4, SIDE, SIDE], np.int64)
    first = graph.add("Reshape", own, flat)
    marked = graph.add("Reshape", graph.add("Expand", both, graph.constant([1, 1, 4, 1, 1], np.int64)), flat)
    body = helper.make_graph(
        [
            helper.make_node("MaxPool", ["before"], ["spread"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Mul", ["spread", marked], ["after"]),
            helper.make_node("Sub", ["after", "before"], ["change"]),
            helper.make_node("ReduceMax", ["change"], ["most"], keepdims=0),
            helper.make_node("Greater", ["most", "nothing"], ["again"]),
        ],
        "round",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, None),
        ],
        initializer=[numpy_helper.from_array(np.float32(0), "nothing")],
    )
    spread = graph.add("Loop", "", graph.constant(True, np.bool_), first, body=body)
    return graph.add("Reshape", spread, deep)


def anchors(graph: Graph, mask: str, spread: str, classes: int) -> tuple[str, str]:
    """The boxes [n, 4, anchors] as centre and size, and the scores [n, classes, anchors], on a grid of STRIDE."""
    count = (SIDE // STRIDE) ** 2
    begin, step = STRIDE // 2, STRIDE
    scores = graph.add("Slice", mask, *axes(graph, begin, step, (2, 3)))
    scores = graph.add("Reshape", scores, graph.constant([0, classes, count], np.int64))
    edges = graph.add("Slice", spread, *axes(graph, begin, step, (3, 4)))
    edges = graph.add("Reshape", edges, graph.constant([0, classes, 4, count], np.int64))
    # Classes exclude one another, so at most one of them holds anything else than zeros.
    edges = graph.add("ReduceMax", edges, graph.constant([1], np.int64), keepdims=0)
    x1, x0, y1, y0 = (graph.add("Gather", edges, graph.constant([n], np.int64), axis=1) for n in range(4))
    offset = graph.constant(float(SIDE))
    x0, y0 = (graph.add("Sub", offset, edge) for edge in (x0, y0))
    x1, y1 = (graph.add("Sub", edge, offset) for edge in (x1, y1))
    half = graph.constant(0.5)
    x, y = (graph.add("Mul", graph.add("Add", a, b), half) for a, b in ((x0, x1), (y0, y1)))
    wide, high = graph.add("Sub", x1, x0), graph.add("Sub", y1, y0)
    grid = np.arange(begin, SIDE, step, dtype=np.float32) + 0.5
    gx, gy = (each.reshape(1, 1, count) for each in np.meshgrid(grid, grid))
    off = [
        graph.add("Div", graph.add("Abs", graph.add("Sub", graph.constant(at), centre)), size)
        for at, centre, size in ((gx, x, wide), (gy, y, high))
    ]
    # As in a trained detector the anchor in the middle is the surest: 0.95 there, 0.65 in a corner.
    sure = graph.add("Mul", graph.add("Add", *off), graph.constant(0.3))
    sure = graph.add("Sub", graph.constant(0.95), sure)
    return graph.add("Concat", x, y, wide, high, axis=1), graph.add("Mul", scores, sure)


def axes(graph: Graph, begin: int, step: int, which: tuple[int, int]) -> list[str]:
    values = ([begin] * 2, [SIDE] * 2, list(which), [step] * 2)
    return [graph.constant(value, np.int64) for value in values]


def build(path: Path, names: list[str], *, v5: bool = False, colours: list[tuple[float, float, float]] | None) -> None:
    """Write one detector."""
    graph = Graph()
    mask = colours_near(graph, colours) if colours else off_the_page(graph)
    boxes, scores = anchors(graph, mask, extents(graph, mask, len(names)), len(names))
    count = (SIDE // STRIDE) ** 2
    shape = ["n", 4 + len(names), count]
    if v5:
        surest = graph.add("ReduceMax", scores, graph.constant([1], np.int64), keepdims=1)
        certain = graph.add("Cast", graph.add("Greater", scores, graph.constant(0.0)), to=TensorProto.FLOAT)
        both = graph.add("Concat", boxes, surest, certain, axis=1)
        graph.add("Transpose", both, out="found", perm=[0, 2, 1])
        shape = ["n", count, 5 + len(names)]
    else:
        graph.add("Concat", boxes, scores, out="found", axis=1)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            path.stem,
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
            [helper.make_tensor_value_info("found", TensorProto.FLOAT, shape)],
            initializer=graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        producer_name="tools/tiny_detector.py",
        ir_version=9,
    )
    helper.set_model_props(model, {"names": repr(dict(enumerate(names)))})
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    build(ROOT / "examples/data/things.onnx", ["thing"], colours=None)
    pure = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
    for version in ("v8", "v5"):
        target = ROOT / f"tests/unit/data/blobs-{version}.onnx"
        build(target, ["red", "green", "blue"], colours=pure, v5=version == "v5")
