"""Pictures by URL, without letting anyone use the worker to reach what only the worker can reach.

A name is resolved once, every address of it is checked, and the connection goes to the very address that was
checked (a second look-up may give another: DNS rebinding). Redirects start all over. Time and bytes are counted
over the whole of it, unpacked bytes too. No proxy from the environment, no cookies, no credentials.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from clipfleet.operators._timed import TimedSocket, left
from clipfleet.operators.addresses import is_public
from clipfleet.operators.paths import PathRoots
from clipfleet.operators.urls import Target, read_url
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Address, IPv6Address

__all__ = ["FetchLimits", "Fetcher", "PathRoots", "UrlFetcher"]

_CHUNK = 64 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({408, 425, 429})
_PACKINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_HEADERS = {
    "Accept": "image/*, */*;q=0.1",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": "clipfleet",
}


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What one fetch may cost.

    Attributes:
        total_s: seconds for all of it: look-up, connection, redirects, body.
        max_bytes: of the body, packed or unpacked.
        max_redirects: how many are followed.
        max_addresses: how many addresses of one name are tried.
        max_lookups: names being looked up at once in a process (a look-up cannot be interrupted).
        ports: that are connected to.
    """

    total_s: float = 10.0
    max_bytes: int = 64 * 1024 * 1024
    max_redirects: int = 5
    max_addresses: int = 3
    max_lookups: int = 64
    ports: frozenset[int] = frozenset({80, 443})


class UrlFetcher:
    """Fetches pictures over http and https, if it was switched on."""

    def __init__(
        self,
        limits: FetchLimits | None = None,
        *,
        enabled: bool = False,
        resolve: Callable[[str, int], Sequence[str]] | None = None,
        allowed: Callable[[IPv4Address | IPv6Address], bool] = is_public,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Set the rules.

        Args:
            limits: time and bytes.
            enabled: off unless the operator says so (``worker --allow-urls``).
            resolve: addresses of a host and port, as text; ``getaddrinfo`` where None.
            allowed: whether an address may be connected to.
            context: TLS; the system's trust where None.
        """
        self._limits = limits or FetchLimits()
        self._enabled = enabled
        self._resolve = resolve or _getaddrinfo
        self._allowed = allowed
        self._context = context
        self._lookups = threading.BoundedSemaphore(self._limits.max_lookups)

    def read(self, url: str, *, timeout_s: float | None = None) -> bytes:
        """The body behind a URL; its content type is not believed, nor looked at.

        Args:
            url: absolute, http or https.
            timeout_s: less time than the limits give, such as what a request has left.

        Raises:
            RequestFailed: ``fetch_forbidden``, ``bad_request``, ``too_large``, or ``fetch_failed``, which is
                retryable unless the server said that it is not (404, a certificate that is not valid ...).
        """
        if not self._enabled:
            raise error_for(ErrorCode.FETCH_FORBIDDEN, "this worker fetches no urls (see --allow-urls)")
        total = self._limits.total_s if timeout_s is None else min(timeout_s, self._limits.total_s)
        deadline = time.monotonic() + total
        target = read_url(url)
        for _ in range(self._limits.max_redirects + 1):
            answer = self._visit(target, deadline)
            if isinstance(answer, bytes):
                return answer
            target = _follow(target, answer)
        raise _failed(f"more than {self._limits.max_redirects} redirects", retryable=False)

    def _visit(self, target: Target, deadline: float) -> bytes | str:
        """One request: the body, or where a redirect leads."""
        if target.port not in self._limits.ports:
            raise error_for(ErrorCode.FETCH_FORBIDDEN, f"port {target.port} is not fetched from")
        try:
            with self._connect(target, self._check(target, deadline), deadline) as raw:
                # The class for http also for https: the socket is secured already, and TLS is all they differ in.
                connection = http.client.HTTPConnection(target.host, target.port)
                connection.default_port = 443 if target.secure else 80
                connection.sock = TimedSocket(raw, deadline)
                connection.request("GET", target.path, headers=_HEADERS)
                with connection.getresponse() as response:
                    return self._read(response, deadline)
        except TimeoutError:
            raise _failed("it took too long") from None
        except ssl.SSLCertVerificationError as problem:
            raise _failed(f"certificate: {problem.verify_message}", retryable=False) from None
        except (OSError, http.client.HTTPException, zlib.error, ValueError) as problem:
            raise _failed(type(problem).__name__) from problem

    def _check(self, target: Target, deadline: float) -> list[str]:
        """The addresses of a host, all of them allowed."""
        addresses = list(dict.fromkeys(self._look_up(target, deadline)))
        # One bad address condemns the name: whoever mixes them wants us to try.
        if not all(self._allowed(ipaddress.ip_address(address)) for address in addresses):
            raise error_for(ErrorCode.FETCH_FORBIDDEN, "that host is not on the public Internet")
        if not addresses:
            raise _failed("the host has no address")
        return addresses[: self._limits.max_addresses]

    def _look_up(self, target: Target, deadline: float) -> Sequence[str]:
        # getaddrinfo has no timeout, so it gets a thread that may outlive this call, and there is a bound on those.
        if not self._lookups.acquire(timeout=left(deadline)):
            raise TimeoutError
        found: list[Sequence[str] | Exception] = []
        done = threading.Event()

        def look() -> None:
            try:
                found.append(self._resolve(target.host, target.port))
            except Exception as problem:  # noqa: BLE001 - handed to the caller, who raises it
                found.append(problem)
            finally:
                self._lookups.release()
                done.set()

        try:
            threading.Thread(target=look, name="clipfleet-lookup", daemon=True).start()
        except RuntimeError:
            self._lookups.release()
            raise OSError("no thread left") from None
        if not done.wait(left(deadline)):
            raise TimeoutError
        (answer,) = found
        if isinstance(answer, Exception):
            raise _failed("the host name was not found") from answer
        return answer

    def _connect(self, target: Target, addresses: list[str], deadline: float) -> socket.socket:
        last = OSError("no address")
        for tried, address in enumerate(addresses):
            try:
                # Not all the time for one that swallows packets: the next may answer.
                share = left(deadline) / (len(addresses) - tried)
                raw = socket.create_connection((address, target.port), timeout=share)
                break
            except OSError as problem:
                last = problem
        else:
            raise last
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.settimeout(left(deadline))
            return self._tls().wrap_socket(raw, server_hostname=target.host) if target.secure else raw
        except BaseException:
            raw.close()
            raise

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            # Reading the system's certificates takes 10 ms and more: once, and only if https is asked for.
            self._context = ssl.create_default_context()
        return self._context

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes | str:
        status = response.status
        location = response.getheader("Location")
        if status in _REDIRECTS and location:
            # Servers send raw UTF-8 here, which http.client hands over as Latin-1.
            return location.encode("latin-1").decode("utf-8", "replace")
        if status not in (200, 203):
            raise _failed(f"HTTP status {status}", retryable=status >= 500 or status in _TRANSIENT)
        declared = response.length or 0
        if declared > self._limits.max_bytes:
            raise self._too_large()
        return self._body(response, deadline)

    def _body(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        unpack = _unpacker(response.getheader("Content-Encoding"))
        body = bytearray()
        taken = 0
        while chunk := response.read(_CHUNK):
            left(deadline)
            taken += len(chunk)
            room = self._limits.max_bytes + 1 - len(body)
            body += unpack.decompress(chunk, room) if unpack is not None else chunk
            if max(taken, len(body)) > self._limits.max_bytes:
                raise self._too_large()
        if response.length or (unpack is not None and not unpack.eof and taken):
            raise _failed("the connection ended in the middle of the body")
        return bytes(body)

    def _too_large(self) -> RequestFailed:
        return error_for(ErrorCode.TOO_LARGE, f"the body has more than {self._limits.max_bytes} bytes")


class Fetcher:
    """The bytes of a picture, however a request gives it."""

    def __init__(self, roots: PathRoots | None = None, urls: UrlFetcher | None = None) -> None:
        """Take what this worker may read; nothing but sent bytes where nothing is given."""
        self._roots = roots or PathRoots()
        self._urls = urls or UrlFetcher()

    def fetch(self, picture: object, *, timeout_s: float | None = None) -> bytes | bytearray | memoryview:
        """The bytes of ``picture``: themselves, or what ``{"url": ...}`` or ``{"path": ...}`` leads to.

        Raises:
            RequestFailed: as :meth:`UrlFetcher.read` and :meth:`PathRoots.read`; ``bad_request`` for anything
                else.
        """
        if isinstance(picture, bytes | bytearray | memoryview):
            return picture
        if isinstance(picture, Mapping) and len(picture) == 1:
            match next(iter(picture.items())):
                case "url", str(url):
                    return self._urls.read(url, timeout_s=timeout_s)
                case "path", str(path):
                    return self._roots.read(path)
        raise error_for(ErrorCode.BAD_REQUEST, 'a picture is bytes, {"url": text} or {"path": text}')


def _follow(target: Target, location: str) -> Target:
    try:
        return read_url(urljoin(target.url, location))
    except RequestFailed as failure:
        if failure.code is ErrorCode.BAD_REQUEST:  # the server's mistake, not the request's
            raise _failed("it leads to no valid url", retryable=False) from None
        raise
    except ValueError:
        raise _failed("it leads to no valid url", retryable=False) from None


def _failed(why: str, *, retryable: bool = True) -> RequestFailed:
    return error_for(ErrorCode.FETCH_FAILED, f"the picture could not be fetched: {why}", retryable=retryable)


def _unpacker(encoding: str | None) -> zlib._Decompress | None:
    name = (encoding or "identity").strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _PACKINGS:
        raise _failed("the body is packed in a way that was not asked for", retryable=False)
    return zlib.decompressobj(_PACKINGS[name])


def _getaddrinfo(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
