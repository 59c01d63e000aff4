"""The one place where pymilvus is called; every error leaves it translated.

pymilvus costs 1.2 to 1.7 s and 141 MB to import, so it is loaded at the first call and not before. A client must not
cross a fork: one is made per process, at its first call.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn

from clipfleet.schemas.errors import ClipfleetError, ErrorCode, error_for
from clipfleet.store.retry import Verdict, classify, unavailable

if TYPE_CHECKING:
    from clipfleet.store.types import StoreConfig

__all__ = ["Connection", "Refused"]

# By default gRPC waits ever longer, up to two minutes, before it tries a dead server again, fails every call at once in
# between, and shares that state between channels: a worker would not notice that Milvus is back.
_GRPC_OPTIONS: Final = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.use_local_subchannel_pool": 1,
    # pymilvus pings each 10 s, which Milvus Lite answers by closing the connection ("too_many_pings"); our calls have
    # timeouts, so a dead peer shows without pings.
    "grpc.keepalive_time_ms": 300_000,
    "grpc.keepalive_permit_without_calls": 0,
}

# What MilvusClient has no method of its own for, and the connection below it has (pymilvus 2.5 to 3.0). pymilvus' older
# interface reaches them too, over a second connection with settings of its own.
_BELOW: Final = frozenset({"do_bulk_insert", "get_bulk_insert_state", "list_bulk_insert_tasks"})

# No answers of Milvus: waiting for them to pass would hide them until a deadline.
_MISTAKES: Final = (ImportError, TypeError, AttributeError, LookupError, NameError, AssertionError)


class Refused(ClipfleetError):
    """Milvus answered, and the same call again would get the same answer.

    Attributes:
        verdict: why; never ``RETRY`` or ``RATE_LIMITED`` (these are ``StoreUnavailable``) nor ``DENIED``.
        error: what pymilvus raised.
    """

    def __init__(self, verdict: Verdict, error: BaseException) -> None:
        self.text = " ".join(str(getattr(error, "message", "") or error).split())[:300]
        super().__init__(self.text)
        self.verdict = verdict
        self.error = error


class Connection:
    """A lazily made client of one Milvus; calls are made with a timeout and translated errors."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._client: Any = None
        self._pid = 0

    def call(self, method: str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Call a method of ``MilvusClient``, or one of an import's, which are below it.

        Raises:
            StoreUnavailable: it is away, slow, loading, or asks for less.
            Refused: it answered no.
            RequestFailed: ``store_failed``, not retryable, when the token is refused.
            ImportError: pymilvus is not installed.
        """
        try:
            client = self._connected()
            bound = getattr(client._get_connection() if method in _BELOW else client, method)  # noqa: SLF001 - see _BELOW
            return bound(*args, timeout=timeout or self._config.timeout_s, **kwargs)
        except _MISTAKES:
            raise
        except Exception as error:  # noqa: BLE001 - two unrelated families of errors, and all of them are raised again
            self._translate(error, method)

    def schema(self, description: str) -> Any:
        """An empty schema without dynamic fields."""
        return self._connected().create_schema(auto_id=False, enable_dynamic_field=False, description=description)

    def index_params(self) -> Any:
        """Empty index parameters."""
        return self._connected().prepare_index_params()

    def close(self) -> None:
        """Close the client; a later call makes a new one."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self._pid == os.getpid():
                client.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client = self._make()
                self._pid = os.getpid()
            return self._client

    def _make(self) -> Any:
        from pymilvus import MilvusClient  # noqa: PLC0415 - see the module's docstring

        # It logs a whole traceback at ERROR for each failed call, before it raises: our callers get the error, and a
        # store that is away must not fill the disk.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        # dedicated: else pymilvus hands out one shared connection per address, a parent's after a fork too.
        return MilvusClient(
            uri=self._config.uri,
            token=self._config.token,
            timeout=self._config.timeout_s,
            dedicated=True,
            grpc_options=_GRPC_OPTIONS,
            server_pem_path=self._config.ca_file,
        )

    def _translate(self, error: Exception, method: str) -> NoReturn:
        verdict = classify(error)
        if verdict is Verdict.DENIED:
            text = "Milvus refuses this worker's token (MILVUS_TOKEN)"
            raise error_for(ErrorCode.STORE_FAILED, text, retryable=False) from error
        if verdict in {Verdict.RETRY, Verdict.RATE_LIMITED}:
            raise unavailable(error, method) from error
        raise Refused(verdict, error) from error
