"""What the package costs and what it promises by name."""

from __future__ import annotations

import inspect
import subprocess
import sys

import clipfleet.producer
from clipfleet.producer import AsyncClient, Client, testing

HEAVY = {"numpy", "torch", "PIL", "redis", "pymilvus", "onnxruntime", "pydantic", "typer", "rich"}


def test_the_import_is_light_and_quick():
    code = (
        # Processor time: a busy machine is not the package's fault.
        "import sys, time; began = time.process_time(); import clipfleet.producer; "
        "print(time.process_time() - began, *{name.split('.')[0] for name in sys.modules})"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    seconds, *modules = min((run.stdout.split() for run in runs), key=lambda words: float(words[0]))
    assert not HEAVY & set(modules)
    assert float(seconds) < 0.3


def test_public_names_are_these():
    assert sorted(clipfleet.producer.__all__) == [
        "AsyncClient", "AsyncJob", "BadInput", "Cancelled", "Client", "ClipfleetError", "ErrorCode", "Expired", "Hit",
        "Job", "ModelFailed", "NewRequest", "ProtocolError", "QueueFull", "RequestFailed", "Result", "StoreFailed",
        "Unavailable", "Url", "Vector", "WorkerPath", "requests",
    ]  # fmt: skip
    assert sorted(testing.__all__) == ["FakeAsyncClient", "FakeClient", "Handler", "InMemoryFleet"]


def test_both_clients_have_the_same_methods_with_the_same_arguments():
    def methods(kind):
        return {
            name: [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]
            for name, member in inspect.getmembers(kind, callable)
            if not name.startswith("_") or name == "__init__"
        }

    sync, async_ = methods(Client), methods(AsyncClient)
    assert sync.pop("close") == async_.pop("aclose")
    assert sync == async_
