"""``http_call``: ask another service, one request for each item.

The address is the definition's: whoever wrote the pipeline chose it, so that private ones are allowed here, which a
picture's ``{"url": ...}`` may not have. No proxy from the environment, no redirects, no cookies; a connection for each
call.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from clipfleet.operators._timed import TimedSocket, left
from clipfleet.operators.operator import Operator, Place, current_item
from clipfleet.operators.urls import Target, read_url
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HttpCall"]

Answer = Literal["json", "bytes"]
# Statuses of a service, or of what stands before it, that is not there yet or is busy.
_COME_BACK = frozenset({429, 502, 503})
_CODES = {413: ErrorCode.TOO_LARGE, 415: ErrorCode.UNSUPPORTED_MEDIA}
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_CHUNK = 64 * 1024
# RFC 9110, section 5; http.client writes them as Latin-1.
_HEADER, _HEADER_VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class _ComeBack(Exception):
    """The service is not there, or busy: nothing of this call has been done yet."""

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


@dataclass(frozen=True)
class HttpCall(Operator):
    """POST a value to a service; its answer is the output.

    Bytes are sent as they are, everything else as JSON (arrays as lists). The statuses 429, 502 and 503 and a refused
    connection are tried again for as long as there is time; other failures are not, since the service may have acted.
    Looking up the host's name is left to the system, which may take longer than that.

    Attributes:
        url: http or https, without a user name.
        answer: ``json``, or ``bytes`` as they come.
        timeout: seconds for one item, all tries together; less where its request has less left.
        headers: that are sent along (a token, say; they are not shown anywhere).
        max_bytes: the longest answer.
    """

    name = "http_call"
    task = "value -> value"

    url: str
    answer: Answer = "json"
    timeout: float = 30.0
    headers: Mapping[str, str] | tuple[tuple[str, str], ...] = field(default=(), repr=False)
    max_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        try:
            read_url(self.url)
        except RequestFailed as failure:
            raise ValueError(f"url: {failure.message}") from None
        if self.answer not in get_args(Answer):
            raise ValueError(f"answer is one of {', '.join(get_args(Answer))}, not {self.answer!r}")
        if not self.timeout > 0 or self.max_bytes < 1:
            raise ValueError("timeout and max_bytes must be above 0")
        pairs = self.headers.items() if isinstance(self.headers, Mapping) else self.headers
        headers = tuple((str(name), str(value)) for name, value in pairs)
        for name, value in headers:
            # Said here, and without the value, which http.client would put into its error for every item.
            if not _HEADER.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"headers: {name!r} cannot be sent")
        object.__setattr__(self, "headers", headers)

    def open(self, place: Place) -> Callable[..., Any]:  # noqa: ARG002  it needs nothing of it
        """A value to the service's answer.

        The function raises ``bad_request``, ``too_large`` or ``unsupported_media`` for what the service refuses (4xx)
        or no JSON can hold, ``expired`` where the request has no time left, and else ``fetch_failed``, retryable unless
        another try would end in the same way.
        """
        service = _Service(self, read_url(self.url))
        return service.call


class _Service:
    def __init__(self, options: HttpCall, target: Target) -> None:
        self._options = options
        self._target = target
        self._tls = ssl.create_default_context() if target.secure else None
        self._headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "clipfleet"}
        self._headers |= dict(options.headers)

    def call(self, value: Any) -> Any:
        body, kind = _body(value)
        seconds = min(self._options.timeout, current_item().left_s)
        if seconds <= 0:
            raise error_for(ErrorCode.EXPIRED)
        deadline = time.monotonic() + seconds
        wait = _FIRST_WAIT_S
        while True:
            try:
                return self._once(body, kind, deadline)
            except _ComeBack as busy:
                # Spread out, so that those who were refused together do not come back together.
                pause = max(busy.wait_s, wait * random.uniform(0.5, 1.0))  # noqa: S311  no secret
                if time.monotonic() + pause >= deadline:
                    raise self._failed(str(busy)) from None
                wait = min(2 * wait, _LONGEST_WAIT_S)
            time.sleep(pause)

    def _once(self, body: bytes, kind: str, deadline: float) -> Any:
        target = self._target
        try:
            with self._connect(deadline) as raw:
                # The class for http also for https: the socket is secured already.
                connection = http.client.HTTPConnection(target.host, target.port)
                connection.default_port = 443 if target.secure else 80
                connection.sock = TimedSocket(raw, deadline)
                connection.request("POST", target.path, body, {"Content-Type": kind, **self._headers})
                with connection.getresponse() as response:
                    return self._read(response, deadline)
        except TimeoutError:
            raise self._failed("it did not answer in time") from None
        except ssl.SSLCertVerificationError as problem:
            raise self._failed(f"certificate: {problem.verify_message}", retryable=False) from None
        except (OSError, http.client.HTTPException) as problem:
            raise self._failed(type(problem).__name__) from problem

    def _connect(self, deadline: float) -> socket.socket:
        try:
            raw = socket.create_connection((self._target.host, self._target.port), timeout=left(deadline))
        except ConnectionRefusedError:
            raise _ComeBack("nobody listens there") from None
        if self._tls is None:
            return raw
        try:
            raw.settimeout(left(deadline))
            return self._tls.wrap_socket(raw, server_hostname=self._target.host)
        except BaseException:
            raw.close()
            raise

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> Any:
        status = response.status
        if status in _COME_BACK:
            raise _ComeBack(f"HTTP status {status}", _retry_after(response))
        if not 200 <= status < 300:
            raise self._refused(status, response.read(300))
        body = bytearray()
        while chunk := response.read(_CHUNK):
            left(deadline)
            body += chunk
            if len(body) > self._options.max_bytes:
                raise self._failed(f"its answer has more than {self._options.max_bytes} bytes", retryable=False)
        if response.length:
            raise self._failed("the connection ended in the middle of the answer")
        if self._options.answer == "bytes":
            return bytes(body)
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self._failed("its answer is no JSON", retryable=False) from None

    def _refused(self, status: int, text: bytes) -> RequestFailed:
        if not 400 <= status < 500 or status in (401, 403, 404, 405, 408):
            # Not this item's fault; and what asks for another address or a right will do so again.
            return self._failed(f"HTTP status {status}", retryable=status >= 500 or status == 408)
        said = " ".join(text.decode("utf-8", "replace").split())
        said = "".join(each if each.isprintable() else "?" for each in said)
        return error_for(
            _CODES.get(status, ErrorCode.BAD_REQUEST), f"{self._target.host} refused it with {status}: {said}"
        )

    def _failed(self, why: str, *, retryable: bool = True) -> RequestFailed:
        # The host alone: a path may hold a token.
        return error_for(
            ErrorCode.FETCH_FAILED, f"the service at {self._target.host} failed: {why}", retryable=retryable
        )


def _body(value: Any) -> tuple[bytes, str]:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), "application/octet-stream"
    try:
        return json.dumps(value, default=_plain, allow_nan=False).encode(), "application/json"
    except (TypeError, ValueError, RecursionError) as problem:
        raise error_for(ErrorCode.BAD_REQUEST, f"it cannot be sent as JSON: {problem}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _retry_after(response: http.client.HTTPResponse) -> float:
    text = response.getheader("Retry-After") or ""
    # It may also be a date, which nobody sends for seconds.
    return float(text) if text.isascii() and text.isdigit() else 0.0


http_call = HttpCall
