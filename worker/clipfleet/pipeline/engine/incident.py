"""Errors that nobody foresaw: an incident id for the caller, the traceback for the log alone."""

from __future__ import annotations

import logging
import secrets

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

__all__ = ["incident"]

log = logging.getLogger(__name__)


def incident(error: BaseException, code: ErrorCode, request_id: str) -> RequestFailed:
    """Log ``error`` with its traceback, and return what the caller may know of it."""
    number = secrets.token_hex(4)
    log.error("incident %s: request %s ended in %s", number, request_id, type(error).__name__, exc_info=error)
    failed = error_for(code, f"{code.meaning} (incident {number})", request_id=request_id)
    failed.__cause__ = error  # for a caller in this very process
    return failed
