"""Errors that nobody foresaw: an incident id for the caller, the traceback for the log alone."""

from __future__ import annotations

import logging
import secrets

from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

__all__ = ["incident"]

log = logging.getLogger(__name__)


def incident(error: BaseException, code: ErrorCode, request_id: str, stage: str = "") -> RequestFailed:
    """Log ``error`` with its traceback and the stage that it comes from, and return what the caller may know of it."""
    number, kind = secrets.token_hex(4), type(error).__name__
    where = f" in stage {stage!r}" if stage else ""
    log.error("incident %s: request %s ended in %s%s", number, request_id, kind, where, exc_info=error)
    failed = error_for(code, f"{code.meaning} (incident {number})", request_id=request_id)
    failed.__cause__ = error  # for a caller in this very process
    return failed
