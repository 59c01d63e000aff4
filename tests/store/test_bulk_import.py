"""Part files into a real Milvus by its import jobs, as the command does it: from a folder, and from its own bucket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clipfleet.index.bulk import StagingError, Watch, import_parts, open_staging
from clipfleet.index.sinks import SinkError, SinkRow, open_sink
from clipfleet.schemas.errors import RequestFailed
from clipfleet.store import BulkImport, Field, Row, Store, StoreConfig
from store.milvus_server import MilvusServer
from support.cli import Done, clean_environment, start
from support.object_store import S3
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.milvus_server, pytest.mark.timeout(300)]
DIMENSION = 8


def vector(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=DIMENSION).astype(np.float32)


def rows(begin: int, end: int, said: str = "") -> list[SinkRow]:
    return [SinkRow(f"a/größe {n}.jpg", vector(n), {"n": n, "said": said}) for n in range(begin, end)]


def parts(folder: Path, given: list[SinkRow], model: str = "model-a", **options) -> Path:
    with open_sink("parquet", folder, rows_per_part=100, **options) as sink:
        sink.write(given, model=model)
    return folder


class Told(Watch):
    """What an import says of its way: the rows there will be, as a negative number, and how many it has reached."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def begins(self, rows: int) -> None:
        self.seen.append(-rows)

    def reached(self, rows: int) -> None:
        self.seen.append(rows)


@pytest.fixture
def milvus(milvus_server: MilvusServer) -> Iterator[BulkImport]:
    with BulkImport(StoreConfig(milvus_server.uri)) as made:
        yield made


@pytest.fixture
def uri(milvus_server: MilvusServer) -> str:
    return milvus_server.uri


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    made = tmp_path / "staging"
    made.mkdir()
    return made


def run(uri: str, cwd: Path, *args: str) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "clipfleet.cli", "import", *args, "--milvus-uri", uri],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        timeout=200,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_given_the_parts_of_two_hosts_when_imported_then_the_last_row_of_each_id_is_there_once(
    store: Store, uri: str, name: str, tmp_path: Path, staging: Path
) -> None:
    parts(tmp_path / "host1", rows(0, 250) + rows(0, 10, "again"))
    parts(tmp_path / "host2", rows(240, 400, "second host"), dtype="float16")

    done = run(uri, tmp_path, "host1", "host2", "--collection", name, "--staging", "staging", "--json")

    assert done.code == 0, done.err
    assert done.lines == [
        {"input": name, "ok": True, "rows": 400, "replaced": 20, "failed": 0, "files": 1, "stored": 400}
    ]
    found = [row for page in store.scan(name) for row in page]
    assert sorted(int(row.metadata["n"]) for row in found) == list(range(400))
    said = {row.id: row.metadata["said"] for row in found}
    assert [said[f"a/größe {n}.jpg"] for n in (5, 100, 245, 399)] == ["again", "", "second host", "second host"]
    whole = next(row for row in found if row.metadata["n"] == 100)
    assert np.array_equal(whole.vector, vector(100))
    assert [path.name for path in staging.iterdir()] == ["clipfleet-import.json"]
    (hit, *_) = store.search(name, vector(7)[None], fingerprint="model-a", limit=3)[0]
    assert (hit.id, round(hit.score, 5)) == ("a/größe 7.jpg", 1.0)

    again = run(uri, tmp_path, "host1", "host2", "--collection", name, "--staging", "staging")
    assert (again.code, store.count(name)) == (0, 400)
    assert "400 rows imported into" in again.out


def test_given_an_import_killed_on_its_way_when_run_again_then_no_row_is_missing_or_doubled(
    store: Store, uri: str, name: str, tmp_path: Path, staging: Path
) -> None:
    parts(tmp_path / "host1", rows(0, 600))
    script = (
        "import sys; from pathlib import Path; from clipfleet.index.bulk import import_parts, open_staging;"
        "from clipfleet.store import BulkImport, StoreConfig;"
        f"import_parts([Path('host1')], {name!r}, BulkImport(StoreConfig({uri!r})), open_staging('staging'),"
        " file_bytes=8_000)"
    )

    def journal() -> dict:
        try:
            return json.loads((staging / "clipfleet-import.json").read_text())
        except FileNotFoundError:
            return {"files": []}

    def begun(child: subprocess.Popen[bytes], jobs: int) -> bool:
        assert child.poll() is None
        return sum(file["job"] is not None for file in journal()["files"]) >= jobs

    for jobs in (1, 3):
        child = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=clean_environment())
        wait_until(partial(begun, child, jobs), 60, f"{jobs} jobs")
        child.send_signal(signal.SIGKILL)
        child.wait()
        # As if the number of the last job had not been written down any more.
        told = journal()
        told["files"][-1]["job"] = None
        (staging / "clipfleet-import.json").write_text(json.dumps(told))

    done = run(uri, tmp_path, "host1", "--collection", name, "--staging", "staging", "--json")

    assert done.code == 0, done.err
    assert (done.lines[-1]["rows"], done.lines[-1]["stored"]) == (600, 600)
    ids = [row.id for page in store.scan(name) for row in page]
    assert sorted(ids) == sorted(row.id for row in rows(0, 600))


def test_given_rows_that_no_collection_holds_when_imported_then_they_are_named_and_the_rest_is_there(
    store: Store, uri: str, name: str, tmp_path: Path, staging: Path
) -> None:
    bad = [
        SinkRow("x" * 1025, vector(1)),
        SinkRow("zero", np.zeros(DIMENSION, np.float32)),
        SinkRow("nan", np.full(DIMENSION, np.nan, np.float32)),
        SinkRow("wide", vector(2), {"text": "x" * 70_000}),
    ]
    parts(tmp_path / "host1", [*rows(0, 5), *bad, *rows(5, 10)])

    done = run(uri, tmp_path, "host1", "--collection", name, "--staging", "staging", "--failures", "failed.jsonl")

    assert (done.code, "4 rows cannot be stored" in done.out) == (3, True), done.err
    failed = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert [(line["id"][:4], line["error"]["code"]) for line in failed] == [
        ("xxxx", "bad_request"),
        ("zero", "bad_request"),
        ("nan", "bad_request"),
        ("wide", "too_large"),
    ]
    assert store.count(name) == 10


def test_given_a_collection_with_declared_fields_when_imported_then_filters_on_them_find_the_rows(
    store: Store, milvus: BulkImport, name: str, tmp_path: Path, staging: Path
) -> None:
    kinds = [Field("n", "int"), Field("said", "str"), Field("part", "float"), Field("even", "bool")]
    store.ensure_collection(name, fingerprint="model-a", dimension=DIMENSION, fields=kinds)
    given = [
        SinkRow(f"r{n}", vector(n), {"n": n, "said": str(n)} | ({"part": n / 2, "even": n % 2 == 0} if n > 3 else {}))
        for n in range(20)
    ]
    parts(tmp_path / "host1", given)

    told = Told()

    done = import_parts([tmp_path / "host1"], name, milvus, open_staging(str(staging)), watch=told)

    assert (done.rows, done.agrees) == (20, True)
    assert (told.seen[0], told.seen[-1]) == (-20, 20)
    assert told.seen[1:] == sorted(told.seen[1:])
    for asked, wanted in (
        ("n >= 18", {"r18", "r19"}),
        ("part > 9 and even == false", {"r19"}),
        ("said == '4'", {"r4"}),
    ):
        hits = store.search(name, vector(0)[None], fingerprint="model-a", limit=20, filter=asked)[0]
        assert {hit.id for hit in hits} == wanted, asked


def test_given_what_would_double_or_mix_rows_when_imported_then_nothing_is_written(
    store: Store, milvus: BulkImport, name: str, tmp_path: Path, staging: Path
) -> None:
    one = parts(tmp_path / "host1", rows(0, 10))
    other = parts(tmp_path / "host2", rows(0, 10), model="model-b")
    place = open_staging(str(staging))
    with pytest.raises(SinkError, match=r"host2 holds vectors of model model-b .* never share"):
        import_parts([one, other], name, milvus, place)
    assert import_parts([one], name, milvus, place).agrees
    with pytest.raises(StagingError, match=r"holds another import \(model"):
        import_parts([other], name, milvus, place)
    with pytest.raises(RequestFailed, match="never mix"):
        import_parts([other], name, milvus, place, fresh=True)
    with pytest.raises(SinkError, match="has 10 rows, and an import replaces none"):
        import_parts([one], name, milvus, place, fresh=True)
    assert store.count(name) == 10

    milvus._connection.call("drop_collection", name)
    milvus._catalog.forget(name)
    assert import_parts([one], name, milvus, place, fresh=True).agrees
    milvus._connection.call("drop_collection", name)
    milvus._catalog.forget(name)
    with pytest.raises(SinkError, match="was dropped since"):
        import_parts([one], name, milvus, place)


def test_given_other_vectors_of_the_same_ids_when_imported_again_then_it_is_not_said_that_they_are_there(
    milvus: BulkImport, name: str, tmp_path: Path, staging: Path
) -> None:
    one = parts(tmp_path / "host1", rows(0, 10))
    again = parts(tmp_path / "again", [SinkRow(row.id, -row.vector, row.metadata) for row in rows(0, 10)])
    place = open_staging(str(staging))
    assert import_parts([one], name, milvus, place).agrees
    assert import_parts([one], name, milvus, place).agrees
    with pytest.raises(StagingError, match=r"holds another import \(parts differ"):
        import_parts([again], name, milvus, place)


def test_given_an_alias_that_was_switched_when_the_import_goes_on_then_no_row_goes_elsewhere(
    store: Store, milvus: BulkImport, name: str, tmp_path: Path, staging: Path
) -> None:
    one = parts(tmp_path / "host1", rows(0, 10))
    place = open_staging(str(staging))
    alias, live = f"{name}_alias", f"{name}_live"
    for each in (name, live):
        store.ensure_collection(each, fingerprint="model-a", dimension=DIMENSION)
    store.switch(alias, name)
    try:
        assert import_parts([one], alias, milvus, place).agrees
        store.upsert(live, [Row("a", vector(0))])
        store.switch(alias, live)
        with pytest.raises(StagingError, match=r"holds another import \(collection differs"):
            import_parts([one], alias, milvus, place)
        assert (store.count(name), store.count(live)) == (10, 1)
    finally:
        store._connection.call("drop_alias", alias)
        store.drop(live)


def test_given_a_file_that_milvus_cannot_see_when_imported_then_its_reason_is_told_and_a_later_run_mends_it(
    store: Store, uri: str, milvus: BulkImport, name: str, tmp_path: Path, staging: Path
) -> None:
    parts(tmp_path / "host1", rows(0, 10))
    args = ("host1", "--collection", name, "--staging", "staging")

    unseen = run(uri, tmp_path, *args, "--staging-seen-as", "/nowhere/at all")

    assert (unseen.code, "no such file" in unseen.err, "/nowhere/at all/clipfleet-" in unseen.err) == (1, True, True)
    mended = run(uri, tmp_path, *args)
    assert (mended.code, store.count(name)) == (0, 10), mended.err
    assert unseen.err.count("starting it again") == 2
    with pytest.raises(RequestFailed, match="knows nothing of its import job 12345 any more"):
        milvus.look(12345)


def test_given_ctrl_c_when_importing_then_it_ends_at_once_and_the_same_command_goes_on(
    store: Store, uri: str, name: str, tmp_path: Path, staging: Path
) -> None:
    parts(tmp_path / "host1", rows(0, 300))
    args = ("import", "host1", "--collection", name, "--staging", "staging", "--milvus-uri", uri)
    child = start(*args, cwd=tmp_path)
    wait_until(lambda: (staging / "clipfleet-import.json").exists() or child.poll() is not None, 60, "a file")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert (child.returncode, "Traceback" in said) in {(130, False), (0, False)}, said
    done = run(uri, tmp_path, *args[1:-2])
    assert (done.code, store.count(name)) == (0, 300), done.err


def test_given_a_milvus_that_keeps_its_data_in_a_bucket_when_imported_from_it_then_the_rows_are_there(
    tmp_path: Path, milvus_server: MilvusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the other tests makes room: one runs on a host at a time."""
    parts(tmp_path / "host1", rows(0, 100))
    milvus_server.kill()
    with S3(monkeypatch) as s3:
        s3.files().mkdir("a-bucket")
        server = MilvusServer(tmp_path / "bucketed", instead_of=milvus_server)
        try:
            server.start(
                COMMON_STORAGETYPE="remote",
                MINIO_ADDRESS="127.0.0.1",
                MINIO_PORT=str(s3.port),
                MINIO_BUCKETNAME="a-bucket",
                MINIO_ACCESSKEYID=os.environ["AWS_ACCESS_KEY_ID"],
                MINIO_SECRETACCESSKEY=os.environ["AWS_SECRET_ACCESS_KEY"],
            )
            done = run(server.uri, tmp_path, "host1", "--staging", "s3://a-bucket/staging/one", "--json")
            assert done.code == 0, done.err
            assert (done.lines[-1]["rows"], done.lines[-1]["stored"]) == (100, 100)
            assert s3.files().find("a-bucket/staging") == ["a-bucket/staging/one/clipfleet-import.json"]
        finally:
            server.kill()
            milvus_server.start()
