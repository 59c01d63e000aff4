"""``clipfleet delete`` through a real queue and worker, on a real Milvus Lite."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clipfleet.cli.dry_milvus import Milvus
from clipfleet.cli.filter_keys import kinds_of, tell_unfit
from clipfleet.cli.indexing import Plan
from clipfleet.cli.output import Output
from clipfleet.cli.settings import Flags, load
from clipfleet.index import Sending
from clipfleet.producer import Client, requests
from clipfleet.schemas.errors import BadInput
from clipfleet.store import Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.cli import Done, clean_environment
from support.waiting import wait_until
from support.warm import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clipfleet.producer import NewRequest
    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

ROWS = 1_200


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteServer]:
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server


@pytest.fixture
def store(lite: LiteServer) -> Iterator[Store]:
    """1,200 rows ``r0`` to ``r1199`` in ``images``, numbered and of ten kinds."""
    made = Store(StoreConfig(lite.uri, consistency="Strong"))
    made.drop("images")
    made.ensure_collection("images", fingerprint="any", dimension=4)
    vectors = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    made.upsert("images", [Row(f"r{n}", vectors[n], {"n": n, "kind": f"k{n % 10}"}) for n in range(ROWS)])
    yield made
    made.close()


@pytest.fixture
def environment(
    redis_server: RedisServer,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    lite: LiteServer,
    store: Store,
) -> dict[str, str]:
    start_worker(milvus_uri=lite.uri)
    return clean_environment(CLIPFLEET_REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue)


@pytest.fixture
def delete(environment: dict[str, str], tmp_path: Path) -> Callable[..., Done]:
    def run(*args: str, stdin: bytes = b"") -> Done:
        return run_command(["delete", *args], cwd=tmp_path, env=environment, stdin=stdin, timeout=100)

    return run


def codes(done: Done) -> list[Any]:
    return [line["error"]["code"] if "error" in line else (line["found"], line["deleted"]) for line in done.lines]


def test_given_ids_when_deleted_then_they_are_gone_and_those_that_were_not_there_are_said(
    delete: Callable[..., Done], store: Store
) -> None:
    done = delete("r1", "not there", "r2", "--dry-run")
    assert (done.code, done.out) == (0, "2 rows of 'images' would be deleted; 1 of the ids had none\n")
    assert store.count("images") == ROWS
    done = delete("r1", "not there", "r2")
    assert (done.code, done.out) == (0, "2 rows of 'images' deleted; 1 of the ids had none\n")
    assert "not there: there was no such row" in done.err
    assert (store.count("images"), store.present("images", ["r0", "r1", "r2"])) == (ROWS - 2, {"r0"})

    # Again, as after a kill: nothing is left to do, and that is no failure
    done = delete("r1", "r2", "--json")
    assert (done.code, codes(done)) == (0, [(False, False)] * 2)

    # One unusable id costs none of its neighbours
    done = delete("r3", "", "x" * 1_025, "r4", "--json", "--", "-", stdin=b"r5\r\n\n\xff\nr6")
    assert (done.code, codes(done)) == (
        3,
        [(True, True), "bad_request", "bad_request", (True, True), (True, True), "bad_request", (True, True)],
    )
    assert [line["input"] for line in done.lines] == ["r3", "", "x" * 1_025, "r4", "r5", "\\xff", "r6"]
    assert store.count("images") == ROWS - 6

    # More lines than a request holds
    lines = "".join(f"r{n}\n" for n in range(100, ROWS + 100))
    done = delete("-", stdin=lines.encode())
    assert (done.code, done.out) == (0, "1,100 rows of 'images' deleted; 100 of the ids had none\n")
    assert "and 90 more; --json names them all" in done.err
    assert store.count("images") == 94


def test_given_a_filter_when_deleted_then_it_is_counted_first_and_only_what_fits_goes(
    delete: Callable[..., Done], store: Store, environment: dict[str, str], tmp_path: Path
) -> None:
    # Where nobody can be asked it says how many there are, and deletes nothing without --yes
    done = delete("--filter", "n < 500")
    assert (done.code, done.out) == (2, "")
    assert "500 rows of 'images' match, and there is no terminal to ask on" in done.err
    assert "--yes" in done.err
    # A key that no row has is named: negated, it would fit everything
    done = delete("--filter", "kidn != 'k1' and n < 3", "--dry-run")
    assert (done.code, done.out) == (0, "3 rows of 'images' would be deleted\n")
    assert "no row of 'images' has the key kidn: look at how it is spelled" in done.err
    assert "the key n:" not in done.err
    # And where nobody is asked, nothing goes for it
    done = delete("--filter", "kidn != 'k1' and n < 3", "--yes")
    assert (done.code, done.out) == (2, "")
    assert "3 rows of 'images' match, though no row has kidn" in done.err
    done = delete("--filter", "n != '5' and kind == 'k1'", "--yes")
    assert (done.code, done.out) == (2, "")
    assert "120 rows of 'images' match, though no row has text under n" in done.err
    assert "numbers, true and false are compared without quotes" in done.err
    done = delete("--filter", "n < 500 and kind == 'k1'", "--dry-run", "--json")
    assert done.code == 0
    assert done.lines == [{"input": "n < 500 and kind == 'k1'", "ok": True, "matched": 50, "deleted": 0}]
    assert store.count("images") == ROWS
    done = delete("--filter", "n < 500 and kind == 'k1'", "--yes")
    assert (done.code, done.out) == (0, "50 rows of 'images' deleted\n")
    assert store.count("images") == ROWS - 50
    done = delete("--filter", "n < 500 and kind == 'k1'", "--yes")
    assert (done.code, done.out) == (0, "0 rows of 'images' deleted\n")

    # On a terminal it asks, and anything but yes is no
    for answer, code, left in ((b"\n", 1, ROWS - 50), (b"no\n", 1, ROWS - 50), (b"y\n", 0, ROWS - 100)):
        keyboard, terminal = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "clipfleet.cli", "delete", "--filter", "n >= 1150"],
            cwd=tmp_path,
            env=environment,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
        ) as asked:
            os.close(terminal)
            shown = b""
            while b"[y/N]" not in shown:
                shown += os.read(keyboard, 4_096)
            assert b"delete 50 rows of 'images'?" in shown
            os.write(keyboard, answer)
            assert asked.wait(60) == code
            os.close(keyboard)
        assert store.count("images") == left


LISTS = "its values, such as lists, are nothing that a filter can compare"


def test_given_ids_that_have_left_when_a_dry_run_asks_how_many_have_rows_then_none_has_where_no_collection_is(
    lite: LiteServer, store: Store
) -> None:
    settings = load(Flags(milvus_uri=lite.uri), {})
    for collection, rows in (("images", 2), ("nowhere", 0)):
        assert Milvus(Plan(Sending(collection)), settings).rows([["r0", "none"], ["r1"]]) == rows
    store.drop("images")
    assert Milvus(Plan(Sending("images")), settings).rows([["r0"]]) == 0
    assert Milvus(Plan(Sending("images"))).rows([["r0"]]) is None


CSV = (
    "its values are text, as all of a CSV are that index is not told of; where they read as numbers, index into a new"
    " collection with --field word:float"
)
HINTS = [
    ('tags == "a"', [f"text under tags: {LISTS}"]),
    ("box < 3", [f"a number under box: {LISTS}"]),
    ('n != "1"', ["text under n: numbers, true and false are compared without quotes"]),
    ("n == true", ["true or false under n: its values are numbers"]),
    (
        "word > 1",
        [f"a number under word: {CSV}"],
    ),
    (
        "nn > 1 or metadata['or'] == true or not exists n",
        ["the key nn: look at how it is spelled", "the key or: look at how it is spelled"],
    ),
    ('id == "none" and exists n and not exists tags', []),
    # However many there are, the last one may be the one that is mistyped
    (
        " and ".join(["n > 0", *(f"k{n} != 1" for n in range(20))]),
        [f"the key k{n}: look at how it is spelled" for n in range(20)],
    ),
]


def test_given_keys_that_no_row_has_as_asked_when_told_then_it_is_what_they_have_and_asks_for_no_more_than_it_needs(
    environment: dict[str, str], store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ({"n": 2, "tags": ["a"], "box": {"w": 1}, "word": "5"}, {"n": 7.5, "tags": [], "box": {}, "word": "x"})
    store.upsert("images", [Row(f"r{n}", np.ones(4, np.float32), each) for n, each in enumerate(rows)])
    store.discard("images", [f"r{n}" for n in range(len(rows), ROWS)])
    asked: list[str] = []

    def count(expression: str) -> NewRequest:
        asked.append(expression)
        return requests.delete(filter=expression, collection="images", dry_run=True)

    with Client(environment["CLIPFLEET_REDIS_URL"], queue=environment["CLIPFLEET_QUEUE"]) as client:

        def told(where: str) -> list[str]:
            asked.clear()
            tell_unfit(Output(), client, "images", kinds_of(where), by=count)
            return capsys.readouterr().err.splitlines()

        for where, hints in HINTS:
            assert told(where) == [f"no row of 'images' has {hint}" for hint in hints]
            assert len(asked) == len(kinds_of(where)) + (1 + 4 * len(hints) if hints else 0)
        # No key is misspelled where there is no row
        store.discard("images", ["r0", "r1"])
        assert told('nn == 1 or n == "x"') == ["'images' has no rows"]


WRONG = [
    (("--filter", "n <", "--yes"), 1, "bad_request: filter:"),
    (("--filter", "  ", "--yes"), 1, "bad_request: delete takes either ids or a filter that is not empty"),
    (("--filter", "n < 5", "--yes", "--collection", "nowhere"), 1, "bad_request: there is no collection nowhere"),
    (("r1", "--collection", "nowhere"), 1, "bad_request: there is no collection nowhere"),
    (("r1", "--filter", "n < 5"), 2, "either ids or --filter"),
    ((), 2, "either ids or --filter"),
    (("r1", "--collection", "no name"), 2, "--collection"),
]


def test_given_what_cannot_be_when_asked_for_then_it_says_why_and_nothing_is_deleted(
    delete: Callable[..., Done], store: Store
) -> None:
    for args, code, text in WRONG:
        done = delete(*args)
        assert (done.code, text in done.err) == (code, True), done.err
    assert store.count("images") == ROWS


def test_given_no_worker_when_deleted_then_it_says_so_at_once(
    redis_server: RedisServer, keys: QueueKeys, tmp_path: Path
) -> None:
    for args in (("r1",), ("--filter", "n < 5", "--yes")):
        done = subprocess.run(
            [sys.executable, "-m", "clipfleet.cli", "delete", *args],
            cwd=tmp_path,
            env=clean_environment(CLIPFLEET_REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 4, done.stderr
        assert b"unavailable" in done.stderr


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_given_a_killed_command_and_a_killed_worker_when_run_twice_at_once_then_what_fits_is_gone_and_no_more(
    redis_server: RedisServer,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    lite: LiteServer,
    store: Store,
    tmp_path: Path,
) -> None:
    # Given more rows than one page of deletions holds
    vectors = np.random.default_rng(1).normal(size=(40_000, 4)).astype(np.float32)
    store.upsert("images", [Row(f"m{n}", vectors[n], {"n": 10_000 + n}) for n in range(40_000)])
    worker = start_worker(milvus_uri=lite.uri, lease_ms=2_000)

    def command() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "clipfleet.cli", "delete", "--filter", "n >= 10000", "--yes", "--json"],
            cwd=tmp_path,
            env=clean_environment(CLIPFLEET_REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    # When the first one is killed once it has deleted something, and the worker while two go on
    with command() as killed:
        wait_until(lambda: store.count("images") < ROWS + 40_000, 60, "a deletion")
        killed.kill()
    with command() as first, command() as second:
        for each in (first, second):
            assert each.stderr is not None
            while b"match" not in (line := each.stderr.readline()):
                assert line, "it has ended"
        worker.child().kill()
        # Then both come to their end, and it is that alone which is gone
        for each in (first, second):
            out, err = each.communicate(timeout=120)
            assert each.returncode == 0, err
            assert json.loads(out)["ok"] is True
    assert store.count("images") == ROWS
    assert store.count("images", "n < 1200") == ROWS


def test_the_pipeline_answers_what_docs_protocol_says(
    redis_server: RedisServer, keys: QueueKeys, environment: dict[str, str], store: Store
) -> None:
    del environment
    with Client(redis_server.url, queue=keys.queue, timeout=30) as client:

        def outputs(**given: Any) -> dict[str, Any]:
            return json.loads(json.dumps(dict(client.delete(**given).outputs)))

        assert outputs(ids=["r1", "none"]) == {"deleted": 1}
        assert outputs(ids=["r1", "r2"], return_missing=True) == {"deleted": 1, "missing": ["r1"]}
        assert outputs(ids=["r1", "r3"], dry_run=True) == {"deleted": 0, "matched": 1}
        assert outputs(filter="n < 10", dry_run=True) == {"deleted": 0, "matched": 8}
        assert outputs(filter="n < 10", limit=5) == {"deleted": 5}
        assert outputs(filter="n < 10") == {"deleted": 3}
        for wrong in ({"ids": ["a"], "limit": 5}, {"filter": "", "dry_run": True}, {"filter": "n < 5", "limit": 0}):
            with pytest.raises(BadInput):
                outputs(**wrong)
