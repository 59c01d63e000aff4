"""Devices: every GPU or the CPU by itself, exactly those named otherwise."""

from __future__ import annotations

import pytest

from clipfleet.models import DeviceUnavailable, choose_devices, list_devices
from clipfleet.models import devices as devices_module


def visible(monkeypatch, *gpus, problem="the NVIDIA driver shows no GPU"):
    monkeypatch.setattr(devices_module, "visible_gpus", lambda: (list(gpus), "" if gpus else problem))


def test_given_no_gpu_when_auto_then_the_cpu_and_the_reason(monkeypatch) -> None:
    visible(monkeypatch)

    assert choose_devices("auto") == (["cpu"], "the CPU: the NVIDIA driver shows no GPU")


def test_given_gpus_and_a_runtime_for_them_when_auto_then_every_one(monkeypatch) -> None:
    visible(monkeypatch, "cuda:0", "cuda:1")
    monkeypatch.setattr(devices_module.metadata, "version", lambda _: "1.32.0")

    assert list_devices() == ["cuda:0", "cuda:1"]


def test_given_gpus_and_nothing_that_drives_them_when_auto_then_the_cpu_says_what_to_install(monkeypatch) -> None:
    def version(name):
        if name == "torch":
            return "2.13.0+cpu"
        raise devices_module.metadata.PackageNotFoundError

    visible(monkeypatch, "cuda:0")
    monkeypatch.setattr(devices_module.metadata, "version", version)
    choice = choose_devices()

    assert choice.devices == ["cpu"]
    assert "clipfleet[gpu]" in choice.why


def test_given_devices_by_name_then_those_in_their_order_without_repetition(monkeypatch) -> None:
    visible(monkeypatch, "cuda:0", "cuda:1")

    assert list_devices("cpu") == ["cpu"]
    assert list_devices("cuda:1, cuda:0,cuda:1") == ["cuda:1", "cuda:0"]
    assert list_devices("cuda:1,cuda") == ["cuda:1", "cuda:0"]


@pytest.mark.parametrize("spec", ["cuda:2", "cuda:0,cuda:2", "gpu", "", "cuda:x", "auto,cpu"])
def test_given_a_device_that_is_not_there_then_refused(monkeypatch, spec) -> None:
    visible(monkeypatch, "cuda:0", "cuda:1")

    with pytest.raises(DeviceUnavailable):
        list_devices(spec)


def test_given_cuda_by_name_and_no_gpu_then_the_driver_s_reason(monkeypatch) -> None:
    visible(monkeypatch, problem="the NVIDIA driver is not usable (libcuda.so.1: cannot open)")

    with pytest.raises(DeviceUnavailable, match=r"cuda:0 is not on this machine.*libcuda"):
        list_devices("cuda:0")


def test_given_this_machine_when_the_driver_is_asked_then_gpus_or_a_reason() -> None:
    gpus, problem = devices_module.visible_gpus()

    assert bool(gpus) != bool(problem)
