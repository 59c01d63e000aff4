from __future__ import annotations

import gc
import os
import signal
import tempfile
from typing import TYPE_CHECKING

import pytest

from support import warm

if TYPE_CHECKING:
    from collections.abc import Iterator

# A run in the background of a shell starts with SIGINT ignored, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: looking through them for cycles again and again costs minutes."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests, and all that they start, put into the system's folder for temporary files is gone at the end."""
    folder = tmp_path_factory.mktemp("system")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        warm.ENVIRONMENT.update(os.environ)
        yield
    # torch keeps what it has compiled on purpose.
    left = sorted(each.name for each in folder.iterdir() if not each.name.startswith("torchinductor_"))
    assert not left, f"left in {folder}: {left}"
