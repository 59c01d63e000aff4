"""Coming from elsewhere: each line of those pages has an example, and the examples run as they stand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from clipfleet.store.lite import LiteServer
from support.cli import clean_environment
from support.fixtures import skip_or_fail
from support.fleet import TESTS
from support.pages import examples, links
from support.raw_worker import RawWorker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.schemas.keys import QueueKeys
    from support.pages import Block
    from support.redis_server import RedisServer

ROOT = TESTS.parent
PICTURES = ROOT / "examples" / "pictures"
PAGES = sorted((ROOT / "docs" / "howto").glob("from-*.md"))
EXAMPLES = [
    pytest.param(page, name, blocks, id=f"{page.stem}-{name}")
    for page in PAGES
    for name, blocks in examples(page).items()
]


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LiteServer(tmp_path_factory.mktemp("milvus")) as server:
        yield server.uri


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, with the files that the pages speak of; its modules can be imported."""
    shutil.copy(PICTURES / "red-heart.png", tmp_path / "heart.png")
    shutil.copy(ROOT / "examples" / "data" / "things.onnx", tmp_path)
    scene = Image.new("RGB", (256, 256), "white")
    for name, place in {"red-heart": (20, 20), "airplane": (150, 30), "accordion": (90, 150)}.items():
        thing = Image.open(PICTURES / f"{name}.png").convert("RGBA").resize((80, 80))
        scene.paste(thing, place, thing)
    scene.save(tmp_path / "scene.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_given_a_page_when_its_table_is_read_then_every_line_has_an_example(page: Path) -> None:
    there = examples(page)
    wanted = links(page)
    assert len(wanted) > 10
    for line, name in enumerate(wanted, 1):
        assert there.get(name), f"line {line} of {page.name} has no example"
    assert set(there) == set(wanted), "an example that no line of the table names"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # open("heart.png").read() is what people write
@pytest.mark.parametrize(("page", "name", "blocks"), EXAMPLES)
def test_given_an_example_when_run_then_it_does_what_it_says(
    page: Path,
    name: str,
    blocks: list[Block],
    folder: Path,
    redis_server: RedisServer,
    keys: QueueKeys,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    code = "".join(block.code for block in blocks)
    fleet = {"CLIPFLEET_REDIS_URL": redis_server.url, "CLIPFLEET_QUEUE": keys.queue}
    if "milvus_" in code:
        fleet["MILVUS_URI"] = request.getfixturevalue("milvus")
    if "clip.mp4" in code:
        make_clip(folder / "clip.mp4")
    for variable, value in fleet.items():
        monkeypatch.setenv(variable, value)
    names: dict[str, object] = {"__name__": f"example_{name}"}
    with ExitStack() as stack:
        if '"CLIPFLEET_QUEUE"' in code:
            stack.enter_context(RawWorker(redis_server.url, keys))
        for block in blocks:
            if block.file:
                Path(folder, block.file).write_text(block.code)
            if block.language == "python":
                exec(compile(block.code, str(page), "exec", dont_inherit=True), names)
            else:
                stack.enter_context(run_shell(block.code, fleet))


def make_clip(path: Path) -> None:
    """Three seconds of grey, ten frames each."""
    try:
        import av
    except ImportError:
        skip_or_fail("PyAV is not installed, the [video] extra")
    with av.open(str(path), "w") as made:
        stream = made.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(30):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 90, np.uint8), format="rgb24")
            made.mux(stream.encode(frame))
        made.mux(stream.encode())


@contextmanager
def run_shell(code: str, fleet: dict[str, str]) -> Iterator[None]:
    """Run the commands; those that end in ``&`` run on, and are ended with what follows."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = clean_environment(PATH=path, OMP_NUM_THREADS="1", **fleet)
    lines = code.strip().splitlines()
    kept = [line.removesuffix("&").split() for line in lines if line.endswith("&")]
    left = "\n".join(line for line in lines if not line.endswith("&"))
    ran = subprocess.run(["bash", "-euc", left], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    running = [subprocess.Popen([*words], env=environment) for words in kept]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)
