"""What the operators of one process share: models by name and device, the store, and the fetching of pictures."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from clipfleet.operators.cores import usable_cores
from clipfleet.operators.fetch import Fetcher
from clipfleet.operators.limits import ImageLimits
from clipfleet.operators.operator import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.store import Store

__all__ = ["ProcessServices"]


class ProcessServices:
    """See ``clipfleet.operators.operator.Services``; safe to ask from any thread.

    Args:
        model: what operators mean that name none; None: there is none.
        threads: threads that one model call may use on a CPU; None: as many as there are cores, as a worker does.
        milvus_uri: the store; None: there is none.
        milvus_token: for it.
        milvus_ca_file: PEM file of the authorities that may sign its certificate; empty: those that gRPC knows.
        fetcher: for ``{url}`` and ``{path}``; None: bytes alone.
        limits: of pictures.
    """

    def __init__(
        self,
        *,
        model: str | None = "demo",
        threads: int | None = None,
        milvus_uri: str | None = None,
        milvus_token: str = "",
        milvus_ca_file: str = "",
        fetcher: Fetcher | None = None,
        limits: ImageLimits | None = None,
    ) -> None:
        from clipfleet.operators.image import silence_pillow  # noqa: PLC0415

        silence_pillow()
        self.fetcher = fetcher or Fetcher()
        self.limits = limits or ImageLimits()
        self._model = model
        self._threads = threads or usable_cores()
        self._milvus = (milvus_uri, milvus_token, milvus_ca_file)
        self._lock = threading.RLock()
        self._models: dict[tuple[str, str, tuple[str, ...]], LoadedModel] = {}
        self._store: Store | None = None
        self._tried: dict[str, Sequence[tuple[str, str]]] = {}

    def model(self, name: str | None, device: str, providers: Sequence[str]) -> LoadedModel:
        """The model of that name on that device, loaded once; None: the default.

        Raises:
            ModelError: it, or the device, cannot be had, or there is no default.
        """
        from clipfleet.models import ModelNotFound, Tokenize, open_runtime, resolve_model  # noqa: PLC0415

        name = name or self._model
        if name is None:
            raise ModelNotFound("this process was given no model, and the operator names none")
        key = (name, device, tuple(providers))
        with self._lock:
            if key not in self._models:
                bundle = resolve_model(name)
                runtime = open_runtime(bundle, device=device, providers=providers, threads=self._threads)
                self._models[key] = LoadedModel(runtime, Tokenize(bundle.config.text, bundle.tokenizer_file))
                self.tried(name, [(one.provider, one.reason) for one in runtime.tried])
            return self._models[key]

    def open_wide(self, threads: int) -> None:
        """Let calls of models that run by themselves have so many threads. Raises as ``Runtime.open_wide``."""
        for one in self.loaded:
            one.runtime.open_wide(threads)

    def store(self) -> Store:
        """Milvus, connected once.

        Raises:
            ValueError: this process was given none.
        """
        from clipfleet.store import Store, StoreConfig  # noqa: PLC0415  (pymilvus is a second of import)

        uri, token, ca_file = self._milvus
        if uri is None:
            raise ValueError("there is no store here: give MILVUS_URI, or --milvus-uri to the worker")
        with self._lock:
            if self._store is None:
                self._store = Store(StoreConfig(uri, token, ca_file))
            return self._store

    def tried(self, operator: str, attempts: Sequence[tuple[str, str]]) -> None:
        """Keep what became of each provider."""
        with self._lock:
            self._tried[operator] = list(attempts)

    @property
    def attempts(self) -> dict[str, Sequence[tuple[str, str]]]:
        """By operator or model: the providers that were tried, and why each was passed over."""
        with self._lock:
            return dict(self._tried)

    @property
    def loaded(self) -> list[LoadedModel]:
        """The models that were asked for."""
        with self._lock:
            return list(self._models.values())

    @property
    def fingerprint(self) -> str:
        """Of all models that were loaded: two workers of one queue must agree on it; empty without any."""
        found = sorted({one.runtime.bundle.config.fingerprint for one in self.loaded})
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest() if found else ""

    def close(self) -> None:
        """Free the models and the connection."""
        with self._lock:
            for one in self._models.values():
                one.runtime.close()
            self._models.clear()
            if self._store is not None:
                self._store.close()
                self._store = None
