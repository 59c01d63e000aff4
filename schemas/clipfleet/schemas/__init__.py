"""The wire format of clipfleet: requests, results, errors, keys and scripts.

Imports nothing else of clipfleet; needs msgpack alone. docs/protocol.md is its description for other languages.
"""

from __future__ import annotations

from clipfleet.schemas.errors import (
    BadInput,
    Cancelled,
    ClipfleetError,
    ErrorCode,
    Expired,
    ModelFailed,
    ProtocolError,
    QueueFull,
    RequestFailed,
    StoreFailed,
    Unavailable,
    error_for,
)
from clipfleet.schemas.keys import Lane, QueueKeys
from clipfleet.schemas.request import Envelope, InvalidRequest, Request, decode_request, new_id
from clipfleet.schemas.result import Hit, Result, Vector, decode_result, encode_failure, encode_success

__all__ = [
    "BadInput",
    "Cancelled",
    "ClipfleetError",
    "Envelope",
    "ErrorCode",
    "Expired",
    "Hit",
    "InvalidRequest",
    "Lane",
    "ModelFailed",
    "ProtocolError",
    "QueueFull",
    "QueueKeys",
    "Request",
    "RequestFailed",
    "Result",
    "StoreFailed",
    "Unavailable",
    "Vector",
    "decode_request",
    "decode_result",
    "encode_failure",
    "encode_success",
    "error_for",
    "new_id",
]
