"""The client without its sockets: pure state machines that both faces share."""

from __future__ import annotations

from clipfleet.producer.core.core import Core
from clipfleet.producer.core.pending import Pending, Stage
from clipfleet.producer.core.window import Window

__all__ = ["Core", "Pending", "Stage", "Window"]
