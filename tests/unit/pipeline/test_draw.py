from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent
from typing import ClassVar
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.operators.operator import BatchOperator
from clipfleet.pipeline.definition import input_flow
from clipfleet.pipeline.draw import draw_svg, draw_text
from clipfleet.pipeline.layout import lay_out
from clipfleet.pipeline.pipeline import Choice, Pipeline
from clipfleet.pipeline.steps import describe, steps_of

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Detect(BatchOperator):
    name: ClassVar[str] = "detect"


@dataclass(frozen=True)
class Embed(BatchOperator):
    name: ClassVar[str] = "clip_image"
    max_batch_size: ClassVar[int | None] = 64


def decode(data): ...
def crop(pixels, box): ...
def best(one, other): ...
def mean(values): ...
def longer(so_far, one): ...


def objects() -> Pipeline:
    return (
        input_flow("image")
        .map("image", "pixels", decode)
        .flat_map("pixels", ("box", "label"), Detect(), max_batch_size=8)
        .map(("pixels", "box"), "crop", crop)
        .map("crop", "vector", Embed(), device="cuda:0", max_delay=0.005)
        .output("label", "vector")
    )


def branches() -> Pipeline:
    pixels = input_flow("image", "query").map("image", "pixels", decode)
    thumbs = pixels.map("pixels", "thumb", decode)
    tiles = (
        pixels.flat_map("pixels", "tile", Detect())
        .map("tile", "vector", Embed())
        .filter("vector", bool)
        .window("vector", "three", 3, 1, mean)
        .window_all("three", "all", mean)
    )
    queries = pixels.map("query", "asked", decode, instances=2, timeout=5.0)
    joined = thumbs.concat(tiles, queries).map(("thumb", "all"), "found", best)
    return joined.sink("found", print).output("found", "asked")


def text(drawing: str) -> str:
    return dedent(drawing).lstrip("\n")


def test_given_a_chain_when_drawn_then_a_line_a_step_and_rows_below_further_right():
    assert draw_text(objects()) == text("""
        ○ input                   → image
        ○ decode        map       image → pixels
        ○ detect        flat_map  pixels → box, label  1:n · batch ≤ 8
        ○   crop        map       pixels, box → crop
        ○   clip_image  map       crop → vector        batch ≤ 64 · delay ≤ 5 ms · cuda:0
        ◉   output                label, vector
    """)


def test_given_branches_when_drawn_then_lanes_part_and_meet():
    assert draw_text(branches()) == text("""
        ○     input                     → image, query
        ○     decode        map         image → pixels
        ├─╮
        │ ○   decode        map         pixels → thumb
        ├─│─╮
        │ │ ○ detect        flat_map    pixels → tile       1:n · batched
        ○ │ │ decode        map         query → asked       2 instances · timeout 5 s
        │ │ ○   clip_image  map         tile → vector       batch ≤ 64
        │ │ ○   bool        filter      vector
        │ │ ○   mean        window      vector → three      n:m
        │ │ ○   mean        window_all  three → all         n:1
        ├─┴─╯
        ○     concat
        ○     best          map         thumb, all → found
        ○     print         sink        found
        ◉     output                    found, asked
    """)


def test_given_windows_and_folds_when_drawn_then_each_is_the_one_step_that_was_written():
    drawn = (
        input_flow("x")
        .flat_map("x", ("t", "y"), decode)
        .time_window("y", "z", "t", 1.0, 0.5, mean)
        .reduce("z", "w", longer, "")
        .output("w")
    )
    assert [(step.label, step.rows, step.depth, step.reads, step.writes) for step in steps_of(drawn)[1:]] == [
        ("flat_map", "1:n", 0, ("x",), ("t", "y")),
        ("time_window", "n:m", 1, ("t", "y"), ("z",)),
        ("reduce", "n:1", 1, ("z",), ("w",)),
        ("output", "", 0, ("w",), ()),
    ]


def test_given_a_choice_when_drawn_then_each_of_its_pipelines():
    one = input_flow("text").map("text", "vector", decode).output("vector")
    other = input_flow("image").map("image", "vector", decode).output("vector")
    assert draw_text(Choice({"text": one, "image": other})) == text("""
        given text:
        ○ input        → text
        ○ decode  map  text → vector
        ◉ output       vector

        given image:
        ○ input        → image
        ○ decode  map  image → vector
        ◉ output       vector
    """)
    assert len(list(ET.fromstring(draw_svg(Choice({"text": one, "image": other}))).iter(f"{SVG}g"))) == 6


def test_given_branches_when_drawn_as_svg_then_every_step_and_column_is_in_a_document_of_its_own():
    root = ET.fromstring(draw_svg(branches()))
    words = {each.text for each in root.iter(f"{SVG}text")}
    assert {"detect", "concat", "thumb, all", "2 instances · timeout 5 s", "window_all n:1 → all"} <= words
    assert len(list(root.iter(f"{SVG}g"))) == len(steps_of(branches()))
    edges = [each for each in root.iter(f"{SVG}path") if each.get("class") == "cf-edge"]
    assert len(edges) == sum(len(step.parents) for step in steps_of(branches()))
    assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text
    assert "http" not in draw_svg(branches()).replace("http://www.w3.org/2000/svg", "")


def test_given_names_that_are_markup_when_drawn_as_svg_then_they_are_text():
    evil = '</text><script>"&'
    drawn = input_flow("x").map("x", evil, decode, name=evil).output(evil)
    root = ET.fromstring(draw_svg(drawn))
    assert not list(root.iter(f"{SVG}script"))
    assert evil in {each.text for each in root.iter(f"{SVG}text")}
    assert "\\x1b" in draw_text(input_flow("x").map("x", "y", decode, name="\x1b[2J").output("y"))


def test_given_a_pipeline_when_described_then_plain_data():
    described = describe(objects())
    assert (described["inputs"], described["outputs"]) == (["image"], ["label", "vector"])
    assert described["steps"][4] == {
        "name": "clip_image",
        "method": "map",
        "parents": [3],
        "reads": ["crop"],
        "writes": ["vector"],
        "depth": 1,
        "options": {"max_batch_size": 64, "device": "cuda:0", "max_delay": 0.005},
    }


@pytest.mark.parametrize("draw", [draw_text, draw_svg])
def test_given_the_same_pipeline_when_drawn_twice_then_the_same(draw):
    pipeline = branches()
    assert draw(pipeline) == draw(pipeline)


graphs = st.integers(1, 14).flatmap(
    lambda count: st.tuples(
        st.lists(st.tuples(st.floats(10, 200), st.floats(10, 60)), min_size=count, max_size=count),
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda edge: edge[0] < edge[1])),
    )
)


@given(graphs)
def test_whatever_the_graph_boxes_do_not_overlap_and_edges_go_down(graph):
    sizes, edges = graph[0], sorted(graph[1])
    layout = lay_out(sizes, edges)
    for number, box in enumerate(layout.boxes):
        assert -1e-6 <= box.x - box.width / 2 <= box.x + box.width / 2 <= layout.width + 1e-6
        assert 0 <= box.y <= box.y + box.height <= layout.height + 1e-6
        for other in layout.boxes[:number]:
            beside = abs(box.x - other.x) >= (box.width + other.width) / 2 - 1e-6
            assert beside or box.y >= other.y + other.height or other.y >= box.y + box.height
    for (above, below), path in zip(edges, layout.edges, strict=True):
        assert (path[0], path[-1]) == (layout.boxes[above], layout.boxes[below])
        assert all(upper.layer + 1 == lower.layer for upper, lower in pairwise(path))
        assert all(upper.y + upper.height < lower.y for upper, lower in pairwise(path))
