"""Pipelines: which stages a request takes, and the built-in ones."""

from __future__ import annotations

from clipfleet.pipeline.stage import BatchStage, EachStage, Pipelines
from clipfleet.pipeline.work import Plan, Work

__all__ = ["BatchStage", "EachStage", "Pipelines", "Plan", "Work"]
