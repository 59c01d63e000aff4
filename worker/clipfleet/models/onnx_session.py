"""Any ONNX file, run by ONNX Runtime: detectors and whatever else a pipeline brings along.

A file has no golden vectors as a bundle has. So where a provider of a GPU is taken, it must agree with ONNX Runtime on
the CPU, on inputs made here; and as for bundles, a GPU that was asked for is never replaced by the CPU.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.models.errors import BadBundle, DeviceUnavailable, ModelError, ModelNotFound, OutOfMemory
from clipfleet.models.runtime import PROVIDERS, Attempt, Provider, device_kind, is_out_of_memory, known_providers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["OnnxSession", "Port", "open_session"]

# Cosine of all outputs to the CPU's. Looser than a bundle's: a detector's outputs mix pixels with probabilities, and
# TensorRT computes in fp16.
_AGREES = 0.99
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph.

    Attributes:
        name: as the graph calls it.
        shape: None where an axis is free.
        dtype: of its numbers.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


class OnnxSession:
    """A graph on a device. Made by ``open_session``; calls may come from any thread.

    Attributes:
        inputs: what it takes, in order.
        outputs: what it gives, in order.
        metadata: what its maker wrote into the file.
        fingerprint: SHA-256 of the file.
        device: ``cpu`` or ``cuda:N``.
        provider: how it is run.
        tried: every provider considered, in order, the taken one last.
    """

    def __init__(self, session: Any, fingerprint: str, device: str, tried: tuple[Attempt, ...]) -> None:
        self.inputs = tuple(_port(each) for each in session.get_inputs())
        self.outputs = tuple(_port(each) for each in session.get_outputs())
        self.metadata: Mapping[str, str] = dict(session.get_modelmeta().custom_metadata_map)
        self.fingerprint = fingerprint
        self.device = device
        self.provider = tried[-1].provider
        self.tried = tried
        self._session: Any = session

    def run(self, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
        """All outputs for one array per input.

        Raises:
            OutOfMemory: no room for this batch; half of it may pass.
            ModelError: the session is closed.
        """
        session = self._session
        if session is None:
            raise ModelError("the session is closed")
        named = {port.name: array for port, array in zip(self.inputs, arrays, strict=True)}
        try:
            found: list[NDArray[Any]] = session.run(None, named)
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(f"{self.device} had no room for a batch of {len(arrays[0])}") from error
            raise
        return found

    def close(self) -> None:
        """Free the device's memory; further calls raise. Closing twice is harmless."""
        self._session = None


def open_session(
    file: Path | str, *, device: str = "cpu", providers: Sequence[str] = PROVIDERS, threads: int = 1, free: int = 1
) -> OnnxSession:
    """Load an ONNX file onto a device with the first provider that loads, and agrees with the CPU.

    Args:
        file: the graph; tensors in further files beside it are found.
        device: ``cpu`` or ``cuda:N``.
        providers: order of preference; those that cannot serve the device are passed over.
        threads: threads of one call on the CPU.
        free: the size of free axes, the first aside, in the inputs that providers are compared on.

    Raises:
        ModelNotFound: there is no such file.
        DeviceUnavailable: no provider loads it there; names what is missing for each.
        BadBundle: one loaded, but gave something else than the CPU.
        ModelError: a provider's or device's name is unknown.
    """
    path, kind = Path(file), device_kind(device)
    fingerprint = _digest(path)
    tried: list[Attempt] = []
    disagreed = False
    for name in known_providers(providers):
        try:
            _check_serves(name, kind)
            session = _load(path, fingerprint, name, device, threads, (*tried, Attempt(name)))
            if kind != "cpu":
                _check_agrees(session, _load(path, fingerprint, "cpu", "cpu", threads, (Attempt("cpu"),)), free)
        except ModelError as error:
            disagreed |= isinstance(error, BadBundle)
            tried.append(Attempt(name, str(error)))
        else:
            return session
    reasons = "; ".join(f"{attempt.provider}: {attempt.reason}" for attempt in tried)
    failure = BadBundle if disagreed else DeviceUnavailable
    raise failure(f"{path.name} cannot run on {device}. {reasons or 'No provider was named.'}")


def _load(
    path: Path, fingerprint: str, provider: Provider, device: str, threads: int, tried: tuple[Attempt, ...]
) -> OnnxSession:
    from clipfleet.models.onnx_runtime import open_graph  # noqa: PLC0415  one way to open a graph, in one place

    session = open_graph(path, fingerprint, provider=provider, device=device, threads=threads)
    return OnnxSession(session, fingerprint, device, tried)


def _check_serves(provider: Provider, kind: str) -> None:
    if provider.startswith("torch"):
        raise DeviceUnavailable("it runs no ONNX files")
    if {"tensorrt": "cuda"}.get(provider, provider) != kind:
        raise DeviceUnavailable(f"it does not run on {kind}")


def _check_agrees(session: OnnxSession, reference: OnnxSession, free: int) -> None:
    inputs = [_made_up(port, free) for port in session.inputs]
    try:
        found, expected = session.run(*inputs), reference.run(*inputs)
    except Exception as error:
        raise BadBundle(f"a made-up input failed: {error}") from error
    for port, one, other in zip(session.outputs, found, expected, strict=True):
        agreement = _cosine(one, other) if one.shape == other.shape else -1.0
        if not agreement >= _AGREES:
            raise BadBundle(
                f"output {port.name} differs from the CPU's: cosine {agreement:.4f}, and {_AGREES} is the least"
            )


def _made_up(port: Port, free: int) -> NDArray[Any]:
    shape = [size or (1 if axis == 0 else free) for axis, size in enumerate(port.shape)]
    # Ordinary pixels: noise of a fixed seed, 0 to 1, or 0 to 255 where they are whole numbers.
    noise = np.random.default_rng(0).random(shape)
    return (noise if port.dtype.kind == "f" else noise * 255).astype(port.dtype)


def _cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    left, right = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    if np.array_equal(left, right):
        return 1.0
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / lengths if lengths > 0 else math.nan


def _port(value: Any) -> Port:
    dtype = _DTYPES.get(value.type)
    if dtype is None:
        raise ModelError(f"{value.name} is {value.type}, and tensors of {', '.join(sorted(_DTYPES))} are run")
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in value.shape)
    return Port(value.name, shape, np.dtype(dtype))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
