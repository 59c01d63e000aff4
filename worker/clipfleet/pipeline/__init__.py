"""Pipelines: definitions of named columns and stages; the same object runs here and on the fleet.

from clipfleet import pipeline
from clipfleet.operators import clip_image

features = pipeline.input("image").map("image", "vector", clip_image()).output("vector")
features(data).item()                 # here, now
for result in features.batch(many):   # here, in batches
    ...
# clipfleet worker --pipeline mymodule:features      serves it; client.run("features", {"image": data})
"""

from __future__ import annotations

from clipfleet.pipeline.definition import Column, Flow, Node, PipelineError
from clipfleet.pipeline.definition import input_flow as input  # noqa: A004  (pipeline.input is what it is called)
from clipfleet.pipeline.observer import Observer
from clipfleet.pipeline.pipeline import Choice, Pipeline, choice
from clipfleet.pipeline.result import Result
from clipfleet.pipeline.table import Row, Table

__all__ = [
    "Choice",
    "Column",
    "Flow",
    "Node",
    "Observer",
    "Pipeline",
    "PipelineError",
    "Result",
    "Row",
    "Table",
    "choice",
    "input",
]
