"""The examples, and those of the README, run as they stand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clipfleet.schemas.keys import QueueKeys
from clipfleet.store.lite import LiteServer
from support.fleet import TESTS, WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from support.redis_server import RedisServer

EXAMPLES = TESTS.parent / "examples"
README = (TESTS.parent / "README.md").read_text(encoding="utf-8")
OF_THE_README = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run(*command: str, cwd: Path | None = None) -> str:
    ran = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_batching_in_process() -> None:
    assert run(str(EXAMPLES / "batched_in_process.py")).startswith("one run for 3 callers")


def test_a_producer_and_the_readmes(redis_server: RedisServer, redis_client: redis.Redis, tmp_path: Path) -> None:
    with (
        LiteServer(tmp_path / "milvus") as milvus,
        WorkerProcess(redis_server.url, QueueKeys("clip"), model="demo", milvus_uri=milvus.uri),
    ):
        said = run(str(EXAMPLES / "producer.py"), redis_server.url)
        readme = tmp_path / "of_the_readme.py"
        # As it stands, but for the address and the number of things.
        code = (
            OF_THE_README[0].replace("redis://localhost:6379", redis_server.url).replace("range(1_000)", "range(300)")
        )
        readme.write_text(code, encoding="utf-8")
        shutil.copy(next((EXAMPLES / "pictures").rglob("*.png")), tmp_path / "heart.png")
        found = run(str(readme), cwd=tmp_path)
    first, *hits = said.splitlines()
    assert first == "a vector of 256 numbers"
    assert len(hits) == 3
    assert redis_server.url in code
    assert "range(300)" in code
    assert "  heart  {'year': 2026}" in found


def test_the_readmes_batching_in_process(tmp_path: Path) -> None:
    readme = tmp_path / "of_the_readme.py"
    readme.write_text(OF_THE_README[1], encoding="utf-8")
    assert run(str(readme)).splitlines() == [str([2 * x for x in range(20)]), "42"]


def test_the_readmes_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTS.parent)
    given: dict[str, Any] = {}
    exec(compile(OF_THE_README[2], "README.md", "exec"), given)
    with given["objects"] as objects:
        found = objects((EXAMPLES / "pictures" / "red-heart.png").read_bytes())
    assert found.columns == ("label", "vector")
    assert len(OF_THE_README) == 3


def test_features_as_a_service(redis_server: RedisServer, redis_client: redis.Redis) -> None:
    said = run(str(EXAMPLES / "features.py"), redis_server.url)
    assert "docker build -t features:v1 build/features-v1" in said
    assert (EXAMPLES / "build/features-v1/app/features.py").is_file()
    shutil.rmtree(EXAMPLES / "build")
    answers = [line for line in said.splitlines() if line.startswith("red-")]
    assert "red-heart: 256 numbers" in answers
    assert len(answers) == len(list((EXAMPLES / "pictures").glob("red-*.png")))


def test_pictures_found_by_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MILVUS_URI", raising=False)
    for picture in sorted((EXAMPLES / "pictures").glob("[ab]*.png")):
        shutil.copy(picture, tmp_path)
    shutil.copy(EXAMPLES / "pictures" / "red-heart.png", tmp_path)
    said = run(str(EXAMPLES / "retrieval.py"), str(tmp_path)).splitlines()
    count = len(list(tmp_path.iterdir()))
    assert said[0] == f"{count} pictures indexed, 0 failed"
    assert said[1].startswith("a red heart: red-heart ")
    found = re.fullmatch(rf"(\d+) of {count} are among the first five by their own name", said[-1])
    assert found is not None
    # The demo model's card tells 0.63 at once; five hits of an eighth of the pictures are easier.
    assert int(found[1]) > 0.8 * count


def test_objects_found_in_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILVUS_URI", raising=False)
    said = run(str(EXAMPLES / "objects.py")).splitlines()
    indexed = {line.split()[1].partition("@")[0]: len(line.split()) - 1 for line in said if line.startswith("indexed")}
    assert indexed == {"desk": 3, "garden": 3, "street": 3, "party": 3}
    # Each object of the drawn scene, by where it stands, is found where the scenes were drawn with it.
    lines = [re.fullmatch(r"object at \[(\d+), (\d+), \d+, \d+\]: (\w+)@(\d+),(\d+) \((\S+)\)", line) for line in said]
    found = {nearest(int(one[1]), int(one[2])): (one[3], nearest(int(one[4]), int(one[5]))) for one in lines if one}
    # guitar, sunflower, ambulance, red apple, in the order of the four places
    assert found == {0: ("party", 2), 1: ("garden", 0), 2: ("street", 0), 3: ("desk", 2)}
    assert all(float(one[6]) > 0.9 for one in lines if one)
    words = dict(line.split(": ") for line in said[-3:])
    assert {text: where.partition("@")[0] for text, where in words.items()} == {
        "a guitar": "party",
        "a flower": "garden",
        "a cake": "party",
    }


def nearest(x: int, y: int) -> int:
    """The number of the place in examples/objects.py that a box's corner belongs to."""
    places = ((20, 24), (148, 12), (24, 150), (140, 140))
    return min(range(4), key=lambda n: abs(places[n][0] - x) + abs(places[n][1] - y))


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_run_by_a_test(example: Path) -> None:
    tests = (TESTS / "acceptance" / "test_examples.py", TESTS / "tasks" / "test_celery_fleet.py")
    assert any(example.name in test.read_text(encoding="utf-8") for test in tests)
