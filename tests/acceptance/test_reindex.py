"""``clipfleet index --reindex``: another model behind an alias, killed on the way; two fleets and one Milvus Lite."""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest
from PIL import Image

from clipfleet.index import Manifest
from clipfleet.producer import Client, requests
from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.keys import QueueKeys
from clipfleet.store import Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.cli import Done, clean_environment
from support.fleet import WorkerProcess
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.redis_server import RedisServer

PICTURES = 120
ROOT = Path(__file__).parents[2]
(CODE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/model-change.md").read_text(), re.DOTALL)


def png(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteServer]:
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server


@pytest.fixture
def store(lite: LiteServer) -> Iterator[Store]:
    made = Store(StoreConfig(lite.uri, consistency="Strong"))
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pics").mkdir()
    for number in range(PICTURES):
        (tmp_path / "pics" / f"{number:03}.png").write_bytes(png(number))
    return tmp_path


@pytest.fixture
def command(redis_server: RedisServer, keys: QueueKeys, lite: LiteServer, folder: Path) -> Callable[..., list[str]]:
    """The command line of an indexing run, and its environment as keywords of ``subprocess``."""

    def made(*args: str) -> list[str]:
        return [sys.executable, "-m", "clipfleet.cli", "index", *args, "--milvus-uri", lite.uri]

    return made


@pytest.fixture
def environment(redis_server: RedisServer, keys: QueueKeys) -> dict[str, str]:
    return clean_environment(CLIPFLEET_REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue)


@pytest.fixture
def index(command: Callable[..., list[str]], environment: dict[str, str], folder: Path) -> Callable[..., Done]:
    def run(*args: str) -> Done:
        done = subprocess.run(
            command(*args), cwd=folder, env=environment, capture_output=True, timeout=100, check=False, text=True
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


def told(done: Done) -> dict[str, Any]:
    found = re.search(r"(\d+) of \d+ pictures indexed into '\w+'(?:, (\d+) of them earlier,)?", done.out)
    assert found, done
    earlier = int(found[2] or 0)
    return {"indexed": int(found[1]) - earlier, "earlier": earlier, "reconciled": "; reconciled: the" in done.out}


def new_collection(done: Done) -> str:
    found = re.search(r"reindexing into '(\w+)'", done.err)
    assert found, done.err
    return found[1]


class Searching:
    """Somebody who searches all the while, as docs/howto/model-change.md says, and who answered."""

    def __init__(self, url: str, old: str, new: str) -> None:
        self.failed: list[BaseException] = []
        self.order: list[str] = []
        self._queues = (url, old, new)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.until_seen(self._queues[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def until_seen(self, queue: str) -> None:
        wait_until(lambda: queue in self.order or self.failed, 30, f"an answer by {queue}")

    def _run(self) -> None:
        url, old, new = self._queues
        page: dict[str, Any] = {}
        exec(CODE.replace('"photos_live"', '"live"'), page)
        with Client(url, queue=old, timeout=30) as fleet, Client(url, queue=new, timeout=30) as next_fleet:
            models = {fleet.embed_text("x").model: old, next_fleet.embed_text("x").model: new}

            class Noted:
                """A client, and whose hits they are."""

                def __init__(self, client: Client) -> None:
                    self._client = client

                def search(self, **query: Any) -> Any:
                    result = self._client.search(**query)
                    noted.append(models[result.model])
                    return result

            noted: list[str] = []
            while not self._stop.is_set():
                try:
                    hits = page["search"](Noted(next_fleet), Noted(fleet), image=png(7), limit=1)
                    assert [hit.id for hit in hits] == ["007.png"]
                    self.order += [queue for queue in noted[-1:] if queue not in self.order[-1:]]
                except BaseException as error:  # noqa: BLE001  the test looks at it
                    self.failed.append(error)


def refusal(client: Client) -> ErrorCode | None:
    (result,) = client.map([requests.search(image=png(7), collection="live", limit=1)])
    return None if result.error is None else result.error.code


@pytest.mark.chaos
@pytest.mark.timeout(500)
def test_given_another_model_when_reindexed_and_killed_on_the_way_then_searches_never_see_half_of_it(
    index: Callable[..., Done],
    command: Callable[..., list[str]],
    environment: dict[str, str],
    redis_server: RedisServer,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    lite: LiteServer,
    store: Store,
    folder: Path,
) -> None:
    start_worker(milvus_uri=lite.uri)
    # Given an alias that a first reindexing has made, with a typed column
    done = index("pics", "--collection", "live", "--reindex", "--into", "live_old", "--field", "shot:int")
    assert (done.code, store.describe("live").name) == (0, "live_old"), done.err  # type: ignore[union-attr]
    assert "'live' stands for 'live_old' now" in done.out
    assert "no picture has shot" in done.err
    with Client(redis_server.url, queue=keys.queue, timeout=30) as old_fleet:
        assert old_fleet.search(image=png(7), collection="live", limit=1).hits[0].id == "007.png"

        # When the next model's fleet serves a queue of its own, and the run is killed in its midst
        other = QueueKeys(f"{keys.queue}-new")
        with WorkerProcess(redis_server.url, other, model="demo", milvus_uri=lite.uri):
            again = ("pics", "--collection", "live", "--reindex", "--queue", other.queue)
            with subprocess.Popen(
                command(*again, "--json"), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as killed:
                assert killed.stdout is not None
                assert killed.stderr is not None
                for _ in range(20):
                    assert killed.stdout.readline()
                killed.send_signal(signal.SIGKILL)
                begun = new_collection(Done(0, "", killed.stderr.read().decode()))
            # Then searches are answered by the old one, as before
            assert old_fleet.search(image=png(7), collection="live", limit=1).hits[0].id == "007.png"
            assert store.describe("live").name == "live_old"  # type: ignore[union-attr]

            # And the same command goes on with the same new collection, and switches; nobody who searches notices
            with Searching(redis_server.url, keys.queue, other.queue) as searching:
                done = index(*again)
                searching.until_seen(other.queue)
            assert done.code == 0, done.err
            assert searching.failed == []
            assert searching.order == [keys.queue, other.queue]
            assert f"going on with the new collection '{begun}'" in done.err
            assert new_collection(done) == begun
            text = f"'live' stands for '{begun}' now; 'live_old' is kept (120 rows, the new one 120 rows)"
            assert text in done.out
            assert told(done)["earlier"] > 0
            info = store.describe("live")
            assert info is not None
            assert (info.name, [field.name for field in info.fields]) == (begun, ["shot"])
            assert store.count("live_old") == store.count("live") == PICTURES
            with Client(redis_server.url, queue=other.queue, timeout=30) as new_fleet:
                # At once, though its worker has heard nothing of the switch
                hit = new_fleet.search(image=png(7), collection="live", limit=1).hits[0]
                assert (hit.id, hit.score) == ("007.png", pytest.approx(1, abs=1e-4))

            # An ordinary run into the alias knows all that; nothing is sent once more
            done = index("pics", "--collection", "live", "--queue", other.queue)
            assert (done.code, told(done)["indexed"], told(done)["earlier"]) == (0, 0, PICTURES)
            assert told(done)["reconciled"] is True

            # The next reindexing is one of its own, and drops the old one when asked
            done = index(*again, "--drop-old")
            assert done.code == 0, done.err
            assert (told(done)["indexed"], new_collection(done) != begun) == (PICTURES, True)
            assert f"'{begun}' was dropped" in done.out
            assert store.describe(begun) is None
            assert store.count("live") == PICTURES

        # The old fleet is told that it has been left behind, once what it remembered is read again
        wait_until(lambda: refusal(old_fleet) is ErrorCode.MODEL_MISMATCH, 20, "the alias read again")


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_given_what_stands_against_it_when_reindexed_then_nothing_is_switched_and_it_says_what_to_do(
    index: Callable[..., Done], start_worker: Callable[..., WorkerProcess], lite: LiteServer, store: Store, folder: Path
) -> None:
    # Given a collection of its own, and one alias that is as it is
    for name in ("real", "first"):
        store.ensure_collection(name, fingerprint="any", dimension=4)
    store.upsert("first", [Row("a", np.ones(4, np.float32))])
    store.switch("alias", "first")
    # Without a fleet, or with words that cannot be
    for args, code, text in (
        (("--reindex", "--collection", "alias"), 4, "unavailable"),
        (("--into", "x"), 2, "go with --reindex"),
        (("--reindex", "--sync"), 2, "goes with none of"),
        (("--reindex", "--shard", "1/2"), 2, "goes with none of"),
        (("--reindex", "--max-failed", "2"), 2, "a part of all"),
        (("--reindex", "--max-failed", "some%"), 2, "a part of all"),
        (("--reindex", "--into", "no name"), 2, "--into"),
        (("--reindex", "--into", "alias", "--collection", "alias"), 2, "a name of its own"),
    ):
        done = index("pics", *args)
        assert (done.code, text in done.err) == (code, True), (args, done.err)
    start_worker(milvus_uri=lite.uri)
    # A name that is a collection's: with the commands that do it
    done = index("pics", "--reindex", "--collection", "real")
    assert (done.code, "'real' is a collection itself" in done.err) == (2, True), done.err
    assert "--reindex --collection real_live" in done.err
    # A new collection that is there already, or is an alias
    for into in ("real", "first"):
        done = index("pics", "--reindex", "--collection", "alias", "--into", into)
        assert (done.code, "there is such a collection or alias already" in done.err) == (2, True), done.err
    # Too many that failed
    (folder / "pics" / "000.png").write_bytes(b"no picture")
    (folder / "pics" / "001.png").write_bytes(b"no picture")
    again = ("pics", "--reindex", "--collection", "alias")
    done = index(*again, "--into", "second")
    assert (done.code, store.describe("alias").name) == (1, "first"), done.err  # type: ignore[union-attr]
    assert "NOT switched: 'alias' is as it was, since 2 of 120 failed, which is more than 1.00%" in done.out
    assert "--max-failed" in done.out
    # Another name for what was begun
    done = index(*again, "--into", "third")
    assert (done.code, "has begun 'second'" in done.err) == (2, True), done.err
    # One that a store has lost is sent once more, and not missing
    assert store.delete("second", ids=["050.png"]) == 1
    # Mended: the same command goes on, sends what is left, and switches; some failed, so it says 3
    (folder / "pics" / "000.png").write_bytes(png(0))
    done = index(*again)
    assert (done.code, store.describe("alias").name) == (3, "second"), done.err  # type: ignore[union-attr]
    assert store.count("second") == PICTURES - 1
    # A folder that gave nothing may be a disk that is not mounted: the old collection may have its pictures
    (folder / "unmounted").mkdir()
    beside = ("pics", "unmounted", "--reindex", "--collection", "alias", "--drop-old")
    done = index(*beside)
    assert (done.code, "unmounted: gave nothing at all, and nobody knows" in done.out) == (1, True), done.out
    assert store.describe("alias").name == "second"  # type: ignore[union-attr]
    # A shard that is cut hides nobody knows how many
    shutil.rmtree(folder / "pics")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for number in range(20):
            info = tarfile.TarInfo(f"{number}.png")
            info.size = len(png(number))
            archive.addfile(info, io.BytesIO(png(number)))
    (folder / "s.tar").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    cut = ("s.tar", "--reindex", "--collection", "alias", "--max-failed", "50%")
    done = index(*cut)
    assert (done.code, "1 source is incomplete" in done.out) == (1, True), done.out
    assert store.describe("alias").name == "second"  # type: ignore[union-attr]
    done = index(*cut[:-1], "100%")
    assert (done.code, "'second' is kept" in done.out) == (3, True), done.out
    # A manifest that somebody named is of what it is of
    done = index("s.tar", "--manifest", "m.sqlite", "--collection", "plain")
    assert done.code == 3, done.err
    done = index(*cut, "--manifest", "m.sqlite")
    assert (done.code, "is the manifest of collection plain" in done.err) == (2, True), done.err
    done = index(*cut[:-1], "1", "--manifest", "n.sqlite", "--into", "fourth")
    assert (done.code, "stands for 'fourth' now" in done.out) == (3, True), done.err
    with Manifest(folder / "n.sqlite") as manifest:
        assert (manifest.told("where"), manifest.told("into")) == ("collection alias", "")
    done = index("s.tar", "--manifest", "n.sqlite", "--collection", "alias")
    assert (done.code, told(done)["indexed"]) == (3, 0), done.err
