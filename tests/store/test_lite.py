"""Milvus Lite as clipfleet runs it: its life, its lock, and no row lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store import Row, Store, StoreConfig, StoreUnavailable, retrying
from clipfleet.store.lite import LITE_ROW_LIMIT, UNFLUSHED_BYTES, LiteError, LiteServer, check_lite_version, lite_advice
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DIMENSION = 16


@pytest.fixture
def server(lite_dir: Path) -> Iterator[LiteServer]:
    with LiteServer(lite_dir) as running:
        yield running


def open_store(server: LiteServer, **options: object) -> Store:
    return Store(StoreConfig(server.uri, **{"timeout_s": 5.0, "consistency": "Strong", **options}))


def some_rows(start: int, count: int, generation: int = 0, dimension: int = DIMENSION) -> list[Row]:
    vectors = np.random.default_rng(start + generation).standard_normal((count, dimension)).astype(np.float32)
    return [Row(f"r{start + i}", vectors[i], {"n": start + i, "generation": generation}) for i in range(count)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def test_given_a_folder_when_started_then_it_answers_on_127_0_0_1_alone(server: LiteServer) -> None:
    assert server.probe()
    port = int(server.uri.rpartition(":")[2])
    with socket.socket() as elsewhere, pytest.raises(ConnectionRefusedError):
        elsewhere.connect(("127.0.0.2", port))


def test_given_a_folder_in_use_when_another_starts_then_it_says_who_and_where(
    server: LiteServer, lite_dir: Path
) -> None:
    with pytest.raises(LiteError, match=rf"in use by process {os.getpid()}.*{server.uri}"):
        LiteServer(lite_dir).start()
    assert server.probe()


def test_given_a_taken_port_when_started_then_it_says_so(lite_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LiteError, match="is taken"):
            LiteServer(lite_dir, port=taken.getsockname()[1]).start()
    assert not LiteServer(lite_dir).start().stop()  # the folder was released


def test_given_data_that_cannot_be_opened_when_started_then_the_log_is_shown(lite_dir: Path) -> None:
    lite_dir.mkdir()
    (lite_dir / "milvus").write_text("not a folder")
    with pytest.raises(LiteError, match=r"(?s)did not start.*(Error|exists)"):
        LiteServer(lite_dir).start()


def test_given_a_dead_server_when_looked_after_then_it_is_back_on_its_port_with_its_rows(server: LiteServer) -> None:
    store = open_store(server)
    store.ensure_collection("c", fingerprint="f", dimension=DIMENSION)
    store.upsert("c", some_rows(0, 100))
    uri, first = server.uri, server.pid
    assert first is not None
    assert server.ensure_alive() is False

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.pid is None, description="the kill")
    with pytest.raises(StoreUnavailable):
        store.count("c")

    assert server.ensure_alive() is True
    assert (server.uri, server.restarts) == (uri, 1)
    assert retrying(lambda: store.count("c"), deadline=monotonic() + 20, stop=Event()) == 100
    vector = some_rows(0, 1)[0].vector[None]
    (found,) = store.search("c", vector, fingerprint="f", limit=1)
    assert not isinstance(found, RequestFailed)
    assert found[0].id == "r0"
    store.close()


def test_given_a_store_that_comes_back_when_retried_then_nothing_is_lost(server: LiteServer) -> None:
    store = open_store(server)
    store.ensure_collection("c", fingerprint="f", dimension=DIMENSION)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.pid is None, description="the kill")
    failed = Event()

    def write() -> list[RequestFailed | None]:
        try:
            return store.upsert("c", some_rows(0, 10))
        except StoreUnavailable:
            failed.set()
            raise

    results: list[object] = []
    writer = Thread(target=lambda: results.append(retrying(write, deadline=monotonic() + 30, stop=Event())))
    writer.start()
    assert failed.wait(10)
    server.ensure_alive()
    writer.join()

    assert results == [[None] * 10]
    assert store.count("c") == 10
    store.close()


def test_given_a_hung_store_when_called_then_it_gives_up_in_time(server: LiteServer) -> None:
    store = open_store(server, timeout_s=0.5)
    store.ensure_collection("c", fingerprint="f", dimension=DIMENSION)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        began = monotonic()
        with pytest.raises(RequestFailed) as error:
            retrying(lambda: store.upsert("c", some_rows(0, 1)), deadline=monotonic() + 1.0, stop=Event())
        assert error.value.code is ErrorCode.STORE_FAILED
        assert monotonic() - began < 10
        assert server.ensure_alive() is False  # busy is not dead
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert retrying(lambda: store.count("c"), deadline=monotonic() + 20, stop=Event()) <= 1
    store.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_given_an_owner_that_dies_when_another_starts_then_the_folder_is_free(
    lite_dir: Path, how: signal.Signals
) -> None:
    script = (
        "import sys, threading; from clipfleet.store.lite import LiteServer\n"
        "server = LiteServer(sys.argv[1])\n"
        # Started by a thread that ends: the kernel's own parent-death signal would take the server with it.
        "thread = threading.Thread(target=server.start); thread.start(); thread.join()\n"
        "assert server.probe(); print(server.pid, flush=True); threading.Event().wait()"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(lite_dir)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())

    owner.send_signal(how)
    owner.wait()
    owner.stdout.close()

    with LiteServer(lite_dir) as heir:
        assert heir.probe()
        assert not is_running(child)


def test_given_kill_9_in_mid_write_when_restarted_then_every_acknowledged_row_is_there(server: LiteServer) -> None:
    store = open_store(server)
    store.ensure_collection("c", fingerprint="f", dimension=512)
    acknowledged: dict[str, int] = {}
    enough = Event()

    def write() -> None:
        generation = 0
        while True:
            for start in range(0, 1024, 128):
                batch = some_rows(start, 128, generation, dimension=512)
                try:
                    assert not any(store.upsert("c", batch))
                except StoreUnavailable:
                    return
                acknowledged.update({row.id: generation for row in batch})
                if len(acknowledged) == 1024 and generation >= 2:
                    enough.set()
            generation += 1

    writer = Thread(target=write)
    writer.start()
    assert enough.wait(60)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    writer.join()
    wait_until(lambda: server.pid is None, description="the kill")
    server.ensure_alive()

    def read() -> list[Row | None]:
        return store.get("c", list(acknowledged))

    found = retrying(read, deadline=monotonic() + 30, stop=Event())
    # The write that was cut off may be there or not; what was acknowledged is, in that generation or the next.
    stored = {row.id: row.metadata["generation"] for row in found if row is not None}
    assert stored.keys() == acknowledged.keys()
    assert all(stored[row_id] in {generation, generation + 1} for row_id, generation in acknowledged.items())
    store.close()


def write_and_read(server: LiteServer, writers: int, batches: int, readers: int) -> tuple[int, int]:
    """Rows acknowledged, and those of them that are missing afterwards."""
    acknowledged: list[str] = []
    done = Event()
    # Wide enough for several flushes: rows were lost while the server moved them to its files.
    dimension = 512

    def write(number: int) -> None:
        mine = open_store(server, timeout_s=60.0)
        mine.ensure_collection("c", fingerprint="f", dimension=dimension)
        for batch in range(batches):
            rows = some_rows((number * batches + batch) * 256, 256, dimension=dimension)
            outcomes = retrying(lambda: mine.upsert("c", rows), deadline=monotonic() + 60, stop=Event())  # noqa: B023
            acknowledged.extend(row.id for row, problem in zip(rows, outcomes, strict=True) if problem is None)
        mine.close()

    def read() -> None:
        mine = open_store(server, timeout_s=60.0)
        vectors = np.stack([row.vector for row in some_rows(0, 8, dimension=dimension)])
        while not done.wait(0.02):
            mine.search("c", vectors, fingerprint="f", limit=10, filter="n >= 0")
        mine.close()

    store = open_store(server, timeout_s=60.0)
    store.ensure_collection("c", fingerprint="f", dimension=dimension)
    threads = [Thread(target=write, args=(number,)) for number in range(writers)]
    watching = [Thread(target=read) for _ in range(readers)]
    for thread in threads + watching:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    for thread in watching:
        thread.join()
    found = {row.id for row in store.get("c", acknowledged) if row is not None}
    assert store.count("c") == len(set(acknowledged))
    store.close()
    return len(acknowledged), len(set(acknowledged) - found)


def test_given_writers_and_readers_at_once_when_all_is_written_then_no_row_is_missing(server: LiteServer) -> None:
    assert write_and_read(server, writers=3, batches=4, readers=1) == (3072, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_given_20000_rows_from_many_when_all_is_written_then_no_row_is_missing(server: LiteServer) -> None:
    assert write_and_read(server, writers=4, batches=20, readers=2) == (20_480, 0)


def test_given_a_steady_writer_then_few_rows_are_left_to_be_searched_one_by_one(
    server: LiteServer, lite_dir: Path
) -> None:
    store = open_store(server)
    store.ensure_collection("c", fingerprint="f", dimension=512)

    def unflushed_after(start: int, count: int) -> int:
        """Bytes in Lite's log, which is begun anew with each flush."""
        store.upsert("c", some_rows(start, count, dimension=512))
        return sum(log.stat().st_size for log in lite_dir.glob("milvus/**/wal_data_*"))

    # Given a limit that is reached with the eighth write: 16 rows of 2 KB each
    few = [unflushed_after(start, 16) for start in range(0, 256, 16)]
    # Then the write that reaches it is acknowledged when its rows are in Lite's files
    assert UNFLUSHED_BYTES / 2 < max(few) < UNFLUSHED_BYTES
    assert [number for number, size in enumerate(few) if not size] == [7, 15]
    # and one that is larger by itself leaves nothing behind
    assert unflushed_after(256, 256) == 0
    assert store.count("c") == 512
    store.close()


def test_given_a_quiet_collection_when_flushed_then_its_rows_stay(server: LiteServer) -> None:
    now = [0.0]
    store = Store(StoreConfig(server.uri, consistency="Strong"), clock=lambda: now[0])
    store.ensure_collection("c", fingerprint="f", dimension=DIMENSION)
    store.upsert("c", some_rows(0, 300))

    assert store.flush_quiet(2.0) == []
    now[0] = 2.5
    assert store.flush_quiet(2.0) == ["c"]
    assert store.flush_quiet(2.0) == []
    assert store.count("c") == 300
    store.close()


def test_given_an_unknown_lite_when_checked_then_it_is_refused(monkeypatch: pytest.MonkeyPatch, lite_dir: Path) -> None:
    assert check_lite_version().startswith("3.2.")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.5.1")
    with pytest.raises(LiteError, match=r"2\.5\.1 was not tried"):
        LiteServer(lite_dir).start()


def test_given_more_rows_than_lite_is_good_for_then_a_server_is_advised() -> None:
    assert lite_advice(LITE_ROW_LIMIT) is None
    assert "Milvus server" in (lite_advice(LITE_ROW_LIMIT + 1) or "")


def test_given_a_stopped_server_when_used_then_it_says_so(lite_dir: Path) -> None:
    server = LiteServer(lite_dir).start()
    server.stop()
    server.stop()
    assert server.pid is None
    with pytest.raises(LiteError, match="not started"):
        server.ensure_alive()
