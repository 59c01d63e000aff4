"""Run a bundle: uint8 pixels or token ids in, unit vectors out.

``providers`` is an order of preference. The first one that loads on the asked device *and* agrees with the bundle's
golden vectors is taken; what was tried and why it was passed over is kept in ``Runtime.tried``. A GPU that was
asked for is never replaced by the CPU: a queue served twenty times slower than planned is an outage, not a
fallback.
"""

from __future__ import annotations

import importlib
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

import numpy as np

from clipfleet.models.errors import BadBundle, DeviceUnavailable, ModelError, OutOfMemory
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from clipfleet.models.bundle import Bundle, Golden

__all__ = [
    "PROVIDERS",
    "Attempt",
    "Engine",
    "Provider",
    "Runtime",
    "device_kind",
    "is_out_of_memory",
    "known_providers",
    "lowest_cosine",
    "open_runtime",
]

Provider = Literal["tensorrt", "cuda", "cpu", "torch", "torch-bf16"]
# Preferred when nobody says otherwise. ``torch-bf16`` rounds the weights: it is taken only where it is named.
PROVIDERS: tuple[Provider, ...] = ("tensorrt", "cuda", "cpu", "torch")

# Cosine to the source model's own vectors. fp32 on a CPU differs by rounding alone; GPUs multiply in TF32 or fp16, and
# converted weights have eight bits.
_AGREES = {"cpu": 0.9999, "cuda": 0.999}
_AGREES_ROUNDED = 0.999
# Kernels are chosen per shape on a GPU: few lengths, each used often, beat many exact ones.
_LENGTH_STEP = {"cpu": 1, "cuda": 8}
_OUT_OF_MEMORY = re.compile(
    r"out of memory|failed to allocate|bad allocation|bad_alloc|can't allocate memory|alloc_failed"
    r"|available memory of .* is smaller than requested",
    re.IGNORECASE,
)


class Engine(Protocol):
    """One provider's loaded towers: what ``Runtime`` needs of ONNX Runtime or torch."""

    def images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 [n, H, W, 3] to float32 [n, d]."""
        ...

    def texts(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """int64 [n, L] to float32 [n, d]."""
        ...

    def close(self) -> None:
        """Free the device's memory."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """A provider that was tried, and why it was passed over (empty for the one taken)."""

    provider: str
    reason: str = ""


class Runtime:
    """A model on a device. Made by ``open_runtime``; calls may come from any thread, on a CPU several at once.

    Attributes:
        bundle: the model.
        device: ``cpu`` or ``cuda:N``.
        provider: how it is executed.
        tried: every provider considered, in order, the taken one last.
    """

    def __init__(self, bundle: Bundle, engine: Engine, device: str, tried: tuple[Attempt, ...]) -> None:
        self.bundle = bundle
        self.device = device
        self.provider = tried[-1].provider
        self.tried = tried
        self._engine: Engine | None = engine
        self._wide: Engine | None = None
        self._running = 0
        self._lock = threading.Lock()
        self._step = _LENGTH_STEP[device_kind(device)]

    def open_wide(self, threads: int) -> None:
        """Let a call that runs by itself have so many threads from now on: it is answered sooner.

        Calls that run beside others keep what they have, since together they do more with it. The weights are then
        held twice. Torch has one number of threads for all calls, and a GPU needs none: there nothing changes.

        Raises:
            BadBundle: it gave other vectors than the golden ones.
            ModelError: it cannot be loaded once more.
        """
        if self.device != "cpu" or self.provider.startswith("torch"):
            return
        provider = cast("Provider", self.provider)
        wide = _load(provider, self.bundle, self.device, threads)
        _check_golden(Runtime(self.bundle, wide, self.device, self.tried), self.bundle.golden(), _AGREES["cpu"])
        self._wide = wide

    def encode_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Embed prepared pictures.

        Args:
            pixels: uint8 of shape [n, H, W, 3], H and W as in ``bundle.config.image.size``.

        Returns:
            float32 of shape [n, d], each row of unit length. A row does not depend on its neighbours.

        Raises:
            BadInput: ``bad_shape``, the array is not of that shape and type.
            OutOfMemory: no room for this batch; half of it may pass.
            ModelFailed: the graph gave something else than n vectors.
        """
        expected = (*self.bundle.config.image.size, 3)
        if pixels.dtype != np.uint8 or pixels.shape[1:] != expected or pixels.ndim != 4:
            raise error_for(
                ErrorCode.BAD_SHAPE,
                f"pixels must be uint8 [n, {expected[0]}, {expected[1]}, 3], not {pixels.dtype} {pixels.shape}",
            )
        return self._run(lambda engine: engine.images(np.ascontiguousarray(pixels)), len(pixels))

    def encode_texts(self, ids: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Embed tokenized texts, padded here to the batch's longest where the model allows it.

        Args:
            ids: one int64 array of shape [L] for each text, 1 <= L <= ``context_length``, not padded.

        Returns:
            float32 of shape [n, d], each row of unit length. A row does not depend on its neighbours.

        Raises:
            BadInput: ``bad_shape``, an array is empty, too long or not of that shape.
            OutOfMemory: no room for this batch; half of it may pass.
            ModelFailed: the graph gave something else than n vectors.
        """
        return self._run(lambda engine: engine.texts(self._padded(ids)), len(ids))

    def close(self) -> None:
        """Free the device's memory; further calls raise. Closing twice is harmless."""
        engines = [one for one in (self._engine, self._wide) if one is not None]
        self._engine = self._wide = None
        for engine in engines:
            engine.close()

    def _padded(self, ids: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        text = self.bundle.config.text
        for row in ids:
            if row.ndim != 1 or not 0 < len(row) <= text.context_length:
                raise error_for(
                    ErrorCode.BAD_SHAPE,
                    f"a text's ids must be [L] with 1 <= L <= {text.context_length}, not {row.shape}",
                )
        length = text.context_length
        if text.dynamic_length:
            longest = max(map(len, ids))
            length = min(-(-longest // self._step) * self._step, length)
        batch = np.full((len(ids), length), text.pad_id, dtype=np.int64)
        for filled, row in zip(batch, ids, strict=True):
            filled[: len(row)] = row
        return batch

    @contextmanager
    def _free_engine(self) -> Iterator[Engine]:
        with self._lock:
            engine = self._engine if self._running or self._wide is None else self._wide
            if engine is None:
                raise ModelError(f"the runtime of {self.bundle.config.name} is closed")
            self._running += 1
        try:
            yield engine
        finally:
            with self._lock:
                self._running -= 1

    def _run(self, call: Callable[[Engine], NDArray[np.float32]], count: int) -> NDArray[np.float32]:
        dimension = self.bundle.config.dimension
        try:
            with self._free_engine() as engine:
                if not count:
                    return np.empty((0, dimension), dtype=np.float32)
                vectors = call(engine)
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(f"{self.device} had no room for a batch of {count}") from error
            raise
        if vectors.shape != (count, dimension):
            raise error_for(
                ErrorCode.MODEL_FAILED,
                f"the model gave {vectors.shape} for {counted(count, 'input')} of {dimension} numbers",
            )
        return vectors


def open_runtime(
    bundle: Bundle, *, device: str = "cpu", providers: Sequence[str] = PROVIDERS, threads: int = 1
) -> Runtime:
    """Load a bundle onto a device with the first provider that loads and agrees with the golden vectors.

    Args:
        bundle: the model.
        device: ``cpu`` or ``cuda:N``, N among the visible GPUs.
        providers: order of preference; those that cannot serve the device are passed over.
        threads: threads of one call on the CPU. Spinning is off: on shared cores it halves the speed.

    Raises:
        DeviceUnavailable: no provider loads there; names what is missing for each.
        BadBundle: one loaded, but gave other vectors than the golden ones.
        ModelError: a provider's or device's name is unknown.
    """
    kind = device_kind(device)
    tried: list[Attempt] = []
    disagreed = False
    golden = bundle.golden()
    for name in known_providers(providers):
        engine = None
        try:
            engine = _load(name, bundle, device, threads)
            runtime = Runtime(bundle, engine, device, (*tried, Attempt(name)))
            _check_golden(runtime, golden, _AGREES_ROUNDED if name == "torch-bf16" else _AGREES[kind])
        except (ModelError, ImportError) as error:
            disagreed |= engine is not None
            if engine is not None:
                engine.close()
            tried.append(Attempt(name, str(error)))
        else:
            return runtime
    reasons = "; ".join(f"{attempt.provider}: {attempt.reason}" for attempt in tried)
    failure = BadBundle if disagreed else DeviceUnavailable
    raise failure(f"{bundle.config.name} cannot run on {device}. {reasons or 'No provider was named.'}")


def _load(provider: Provider, bundle: Bundle, device: str, threads: int) -> Engine:
    kind = device_kind(device)
    needed = {"tensorrt": "cuda", "cuda": "cuda", "cpu": "cpu"}.get(provider, kind)
    if needed != kind:
        raise DeviceUnavailable(f"it does not run on {device}")
    module = "torch_runtime" if provider.startswith("torch") else "onnx_runtime"
    # Found by name so that neither runtime is imported, or needed, unless its turn comes.
    opened = importlib.import_module(f"clipfleet.models.{module}")
    return cast("Engine", opened.open_engine(bundle, provider=provider, device=device, threads=threads))


def device_kind(device: str) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        ModelError: it is no device's name.
    """
    if re.fullmatch(r"cpu|cuda:\d+", device) is None:
        raise ModelError(f"a device is cpu or cuda:N, not {device!r}")
    return device.partition(":")[0]


def known_providers(providers: Sequence[str]) -> Sequence[Provider]:
    """The names as they are.

    Raises:
        ModelError: one of them is none of ``Provider``.
    """
    known = get_args(Provider)
    for name in providers:
        if name not in known:
            raise ModelError(f"unknown provider {name!r}; there are {', '.join(known)}")
    return cast("Sequence[Provider]", providers)


def _check_golden(runtime: Runtime, golden: Golden, at_least: float) -> None:
    texts = list(golden.ids)
    if runtime.bundle.config.text.dynamic_length:
        texts = [_trimmed(row, runtime.bundle) for row in texts]
    # Alone as well: a graph that is quantised over the whole batch agrees in company only.
    for what, images, words in (("a batch", golden.pixels, texts), ("one alone", golden.pixels[:1], texts[:1])):
        try:
            found = runtime.encode_images(images), runtime.encode_texts(words)
        except Exception as error:
            raise BadBundle(f"{what} of the golden inputs failed: {error}") from error
        lowest = min(
            lowest_cosine(found[0], golden.image_vectors[: len(images)]),
            lowest_cosine(found[1], golden.text_vectors[: len(words)]),
        )
        # Written so that NaN fails.
        if not lowest >= at_least:
            raise BadBundle(
                f"{what} of the golden inputs gave other vectors than the source model: "
                f"cosine {lowest:.6f}, and {at_least} is the least"
            )


def _trimmed(row: NDArray[np.int64], bundle: Bundle) -> NDArray[np.int64]:
    text = bundle.config.text
    length = int(np.max(np.nonzero(row != text.pad_id)[0], initial=0)) + 1
    # Some tokenizers pad with the end-of-text id: the first one is content.
    return row[: length + (text.pad_id == text.eot_id)]


def lowest_cosine(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The lowest cosine of any row of [n, d] with the same row of another; NaN where a row is zero or not finite."""
    left, right = found.astype(np.float64), expected.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.min(np.sum(left * right, axis=1) / norms))


def is_out_of_memory(error: Exception) -> bool:
    """Whether a runtime's error says that a batch found no room."""
    return isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)) is not None
