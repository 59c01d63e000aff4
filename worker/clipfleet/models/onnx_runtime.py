"""Run a bundle by ONNX Runtime: providers ``cpu``, ``cuda`` and ``tensorrt``."""

from __future__ import annotations

import os
import re
import sys
from contextlib import redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.models.errors import DeviceUnavailable, ExtraMissing, ModelError
from clipfleet.models.library import cache_directory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clipfleet.models.bundle import Bundle
    from clipfleet.models.runtime import Provider

__all__ = ["engine_directory", "installed_runtimes", "open_engine", "open_graph"]

_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_DRIVER = Path("/proc/driver/nvidia/version")
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")


def installed_runtimes() -> dict[str, str]:
    """The ONNX Runtime distributions installed, with their versions.

    Two at once are a fault: they hold the same package, the later install wins file by file, and where the CPU
    build wins there is no CUDA and no error.
    """
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class OnnxEngine:
    """Two sessions, one for each tower."""

    def __init__(self, image: Any, text: Any) -> None:
        self._image = image
        self._text = text

    def images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 [n, H, W, 3] to float32 [n, d]."""
        return _only(self._image.run(["vector"], {"pixels": pixels}))

    def texts(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """int64 [n, L] to float32 [n, d]."""
        return _only(self._text.run(["vector"], {"ids": ids}))

    def close(self) -> None:
        """Drop both sessions; ONNX Runtime frees their arenas with them."""
        self._image = self._text = None


def open_engine(bundle: Bundle, *, provider: Provider, device: str, threads: int) -> OnnxEngine:
    """Load both towers. Raises as ``open_graph``."""
    image, text = (
        open_graph(graph, bundle.config.fingerprint, provider=provider, device=device, threads=threads)
        for graph in (bundle.image_graph, bundle.text_graph)
    )
    return OnnxEngine(image, text)


def open_graph(graph: Path, fingerprint: str, *, provider: Provider, device: str, threads: int) -> Any:
    """ONNX Runtime's session of one file.

    Args:
        graph: the file.
        fingerprint: what TensorRT's engines are kept under.
        provider: how it is run.
        device: ``cpu`` or ``cuda:N``.
        threads: of one call on a CPU.

    Raises:
        ExtraMissing: ONNX Runtime is not installed.
        DeviceUnavailable: the provider or its device is not there; never answered by another provider.
        ModelError: ONNX Runtime cannot read the graph.
    """
    try:
        # From 1.29 its wheels report sessions to their maker unless told not to; what a fleet embeds is its own matter.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime as ort  # noqa: PLC0415  as late as possible: torch users need none
    except ImportError as error:
        extra = "cpu" if device == "cpu" else "gpu"
        raise ExtraMissing(f'ONNX Runtime is not installed: pip install "clipfleet[{extra}]"') from error
    if provider != "cpu":
        _require_gpu_build(ort, provider)
    return _session(ort, graph, _providers(fingerprint, provider, device), threads)


def _require_gpu_build(ort: Any, provider: Provider) -> None:
    installed = installed_runtimes()
    if len(installed) > 1:
        both = " and ".join(f"{name} {version}" for name, version in installed.items())
        raise DeviceUnavailable(
            f"{both} are installed over each other: pip uninstall -y onnxruntime onnxruntime-gpu && "
            'pip install "clipfleet[gpu]"'
        )
    if _NAMES[provider] not in ort.get_available_providers():
        has = ", ".join(f"{name} {version}" for name, version in installed.items()) or "this build"
        raise DeviceUnavailable(
            f'{has} has no {_NAMES[provider]}: pip uninstall -y onnxruntime && pip install "clipfleet[gpu]"'
        )
    if hasattr(ort, "preload_dlls"):
        # CUDA and cuDNN from their wheels are on no library path; a failure shows when the session is made. It
        # prints, and standard output belongs to `--json`.
        with redirect_stdout(sys.stderr):
            ort.preload_dlls()


def _providers(fingerprint: str, provider: Provider, device: str) -> list[Any]:
    if provider == "cpu":
        return [_NAMES["cpu"]]
    index = device.partition(":")[2]
    # HEURISTIC: the default times every convolution anew for each batch size it has not seen.
    cuda = (
        _NAMES["cuda"],
        {
            "device_id": index,
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
        },
    )
    if provider == "cuda":
        return [cuda]
    engines = engine_directory(fingerprint)
    engines.mkdir(parents=True, exist_ok=True)
    tensorrt = (
        _NAMES["tensorrt"],
        {
            "device_id": index,
            "trt_fp16_enable": True,
            "trt_engine_cache_enable": True,
            "trt_engine_cache_path": str(engines),
            "trt_timing_cache_enable": True,
        },
    )
    return [tensorrt, cuda]


def engine_directory(fingerprint: str, version_file: Path = _DRIVER) -> Path:
    """Where TensorRT's engines of a model are kept: an engine is good for one model and one driver."""
    try:
        found = re.search(r"Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", version_file.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return cache_directory() / "tensorrt" / fingerprint[:16] / f"driver-{found[1] if found else 'unknown'}"


def _session(ort: Any, graph: Path, providers: list[Any], threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads on shared cores halve the speed (measured).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # Patterns are kept for each shape ever seen: with free batch sizes and lengths they only grow.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    try:
        # Without enable_fallback=0 it answers a provider that fails, at the start or in a later run, by a session
        # on the CPU and a line on standard output.
        session = ort.InferenceSession(str(graph), options, providers=providers, enable_fallback=0)
    except Exception as error:  # pybind registers its exceptions below Exception
        raise ModelError(f"ONNX Runtime cannot load {graph.name}: {error}") from error
    _require_taken(session, providers[0])
    return session


def _require_taken(session: Any, asked: Any) -> None:
    wanted = asked if isinstance(asked, str) else asked[0]
    taken = session.get_providers()
    if wanted not in taken:
        raise DeviceUnavailable(
            f"ONNX Runtime could not start {wanted} and took {', '.join(taken)}: the driver, CUDA, cuDNN or TensorRT "
            "is missing or of another version (its log says which library)"
        )


def _only(outputs: list[Any]) -> NDArray[np.float32]:
    return np.asarray(outputs[0], dtype=np.float32)
