"""The engine: threads that run the stages of compiled pipelines, in a worker and in any other process alike."""

from __future__ import annotations

from clipfleet.pipeline.engine.engine import Engine
from clipfleet.pipeline.engine.guard import start_thread
from clipfleet.pipeline.engine.hooks import Hooks
from clipfleet.pipeline.engine.host import Gate, Host
from clipfleet.pipeline.engine.incident import incident

__all__ = ["Engine", "Gate", "Hooks", "Host", "incident", "start_thread"]
