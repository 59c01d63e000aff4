"""Sockets and clock around the core."""

from __future__ import annotations

from clipfleet.producer.connection.address import Address, parse_url
from clipfleet.producer.connection.engine import Engine

__all__ = ["Address", "Engine", "parse_url"]
