"""Which devices a worker can use, found out without importing torch and without touching CUDA in this process.

CUDA that was initialised in a parent does not work in its forked children, so a child asks the driver.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from typing import NamedTuple

from clipfleet.models.errors import DeviceUnavailable

__all__ = ["DeviceChoice", "choose_devices", "list_devices", "visible_gpus"]

# CUDA driver API: cuInit(0) and cuDeviceGetCount obey CUDA_VISIBLE_DEVICES and need neither runtime nor toolkit.
_ASK_DRIVER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(0)
sys.exit("cuInit failed") if cuda.cuInit(0) else None
sys.exit("cuDeviceGetCount failed") if cuda.cuDeviceGetCount(ctypes.byref(count)) else None
print(count.value)
"""
_ASK_TIMEOUT_S = 60.0


class DeviceChoice(NamedTuple):
    """Devices, and in one line why these."""

    devices: list[str]
    why: str


def list_devices(spec: str = "auto") -> list[str]:
    """The devices that a worker was told to use.

    Args:
        spec: ``auto`` (every visible GPU, else the CPU), ``cpu``, ``cuda`` (every visible GPU), or names parted by
            commas, such as ``cuda:0,cuda:1``.

    Returns:
        ``["cpu"]`` or ``["cuda:0", ...]``, without repetition, in the order given.

    Raises:
        DeviceUnavailable: a device named is not there, or the name is none.
    """
    return choose_devices(spec).devices


def choose_devices(spec: str = "auto") -> DeviceChoice:
    """As ``list_devices``, with the reason, for the one line that a worker logs at its start."""
    if spec == "auto":
        return _automatic()
    if spec == "cpu":
        return DeviceChoice(["cpu"], "the CPU, as asked")
    names = list(dict.fromkeys(part.strip() for part in spec.split(",")))
    for name in names:
        if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
            raise DeviceUnavailable(f"{name!r} is no device: write auto, cpu, cuda or cuda:N, parted by commas")
    present, problem = visible_gpus()
    devices: list[str] = []
    for name in names:
        found = present if name == "cuda" else [name] if name in {"cpu", *present} else []
        if not found:
            raise DeviceUnavailable(f"{name} is not on this machine: {problem or 'visible are ' + ', '.join(present)}")
        devices += [device for device in found if device not in devices]
    return DeviceChoice(devices, f"{', '.join(devices)}, as asked")


def visible_gpus() -> tuple[list[str], str]:
    """The visible GPUs as ``cuda:N``, or an empty list and the reason."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK_DRIVER],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [], f"the NVIDIA driver did not answer within {_ASK_TIMEOUT_S:.0f} s"
    if answer.returncode:
        reason = answer.stderr.strip().rpartition("\n")[2]
        return [], f"the NVIDIA driver is not usable ({reason})"
    count = int(answer.stdout)
    return [f"cuda:{index}" for index in range(count)], "" if count else "the NVIDIA driver shows no GPU"


def _automatic() -> DeviceChoice:
    present, problem = visible_gpus()
    if not present:
        return DeviceChoice(["cpu"], f"the CPU: {problem}")
    if not _gpu_runtime():
        # Not silent: the line says what would make use of the GPU. Named, the same GPU is an error.
        return DeviceChoice(
            ["cpu"],
            f"the CPU: {', '.join(present)} visible, but nothing installed can drive it "
            '(pip uninstall -y onnxruntime && pip install "clipfleet[gpu]")',
        )
    return DeviceChoice(present, f"every visible GPU: {', '.join(present)}")


def _gpu_runtime() -> bool:
    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return ""

    torch = version("torch")
    return bool(version("onnxruntime-gpu")) or bool(torch and not torch.endswith("+cpu"))
