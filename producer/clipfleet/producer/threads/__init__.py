"""The face for threads."""

from __future__ import annotations

from clipfleet.producer.threads.client import Client
from clipfleet.producer.threads.job import Job

__all__ = ["Client", "Job"]
