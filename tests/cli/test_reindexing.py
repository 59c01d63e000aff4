"""The end of a reindexing: the switch, a run that was killed right after it, and what becomes of the manifest."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
import redis

from clipfleet.cli.dry_run import dry_run
from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.index_manifest import open_manifest
from clipfleet.cli.indexing import Plan
from clipfleet.cli.reconciling import Verdict
from clipfleet.cli.reindexing import Reindex, begin, switch_run
from clipfleet.cli.run import Run
from clipfleet.cli.settings import Flags, load
from clipfleet.index import Manifest, Report, Sending, open_sources
from clipfleet.schemas.errors import ErrorCode
from clipfleet.store import Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer

if TYPE_CHECKING:
    from collections.abc import Iterator

EXACT = Verdict(True, "reconciled")


@pytest.fixture(scope="module")
def lite(tmp_path_factory) -> Iterator[LiteServer]:
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server


@pytest.fixture
def store(lite) -> Iterator[Store]:
    """``old`` behind the alias ``live``, and ``new``, with a row each."""
    made = Store(StoreConfig(lite.uri, consistency="Strong"))
    for name in ("old", "new"):
        made.ensure_collection(name, fingerprint="f", dimension=2)
        made.upsert(name, [Row("a", np.ones(2, np.float32))])
    made.switch("live", "old")
    yield made
    made._connection.call("drop_alias", "live")
    for name in ("old", "new"):
        made.drop(name)
    made.close()


@pytest.fixture
def manifest(tmp_path) -> Iterator[Manifest]:
    with Manifest(tmp_path / "m") as made:
        yield made


def switched(lite, manifest, report=None, found=EXACT, unseen="", **options):
    settings = load(Flags(milvus_uri=lite.uri), {})
    plan = Plan(Sending("new"))
    report = report or Report(indexed=1)
    return switch_run(settings, plan, Reindex("live", **options), manifest, report, found, unseen)


def test_given_a_run_killed_right_after_its_switch_when_run_again_then_it_knows_the_old_one(lite, store, manifest):
    assert switched(lite, manifest).text == "'live' stands for 'new' now; 'old' is kept (1 row, the new one 1 row)"
    again = switched(lite, manifest, drop_old=True)
    assert (again.agrees, again.text) == (True, "'live' stands for 'new' now; 'old' was dropped")
    assert store.describe("old") is None
    # and once more, after a kill in the middle of that
    assert switched(lite, manifest, drop_old=True).agrees is True
    assert switched(lite, manifest).text.endswith("'old' is kept (gone, the new one 1 row)")
    assert store.count("live") == 1


@pytest.mark.parametrize(
    "by", ["a run that began later", "somebody who wants the old one back"], ids=["a later run", "the way back"]
)
def test_given_an_alias_switched_by_others_when_a_killed_run_goes_on_then_it_leaves_that_alone(
    lite, store, manifest, by, redis_server, keys
):
    # Given a run that was killed, before its switch or after it
    run = Run("index", Flags(milvus_uri=lite.uri, redis_url=redis_server.url, queue=keys.queue))
    begin(run, load(run.flags, {}), Plan(), Reindex("live", "begun"), manifest)
    if by == "somebody who wants the old one back":
        assert switched(lite, manifest).agrees is True
        theirs = "old"
    else:
        theirs = "newer"
        store.ensure_collection(theirs, fingerprint="f", dimension=2)
    store.switch("live", theirs)

    verdict = switched(lite, manifest, drop_old=True)

    said = f"NOT switched: somebody has let 'live' stand for '{theirs}' since this run began"
    assert (verdict.agrees, verdict.text.startswith(said)) == (False, True), verdict.text
    assert store.describe("live").name == theirs
    assert store.count("old") == 1
    store.switch("live", "old")
    store.drop("newer")


@pytest.fixture
def started(lite, redis_server, keys, tmp_path):
    """Begins a reindexing: of which manifest, into what."""
    run = Run("index", Flags(milvus_uri=lite.uri, redis_url=redis_server.url, queue=keys.queue))
    settings = load(run.flags, {})

    def begun(name, into="fresh", *, fresh=False):
        plan = Plan(manifest=tmp_path / name, fresh=fresh, reindex=Reindex("live", into))
        with ExitStack() as stack:
            manifest = open_manifest(run, plan, stack)
            return begin(run, settings, plan, plan.reindex, manifest).sending.collection, manifest.told("into")

    return begun


def test_given_two_corpora_for_one_new_collection_at_once_when_begun_then_the_second_is_refused(
    started, store, redis_server, keys
):
    """Milvus has no row of it, and so no such collection, when either of them looks."""
    assert started("mine") == ("fresh", "fresh")
    for _ in range(2):
        with pytest.raises(
            CliError, match=r"--into fresh: the run with the manifest \S+/mine on \S+ has begun it already"
        ):
            started("theirs")
    # The second may take another name, and the first goes on, and begins anew, as often as it is killed
    assert started("theirs", "fresher") == ("fresher", "fresher")
    assert started("mine") == ("fresh", "fresh")
    assert started("mine", fresh=True) == ("fresh", "fresh")
    # What is refused for another reason keeps nobody out
    with pytest.raises(CliError, match="there is such a collection or alias already"):
        started("others", "new")
    with redis.Redis.from_url(redis_server.url) as client:
        left = {key.decode(): client.ttl(key) for key in client.scan_iter(f"{keys.base}index:*")}
    assert sorted(left) == [f"{keys.base}index:into:fresh", f"{keys.base}index:into:fresher"]
    assert all(0 < ttl <= 86_400 for ttl in left.values())


def test_given_a_claim_of_a_killed_run_that_has_ended_when_somebody_else_has_it_then_the_first_is_refused(
    started, redis_server, keys
):
    assert started("mine") == ("fresh", "fresh")
    with redis.Redis.from_url(redis_server.url) as client:
        client.delete(f"{keys.base}index:into:fresh")  # as after a day
    assert started("theirs") == ("fresh", "fresh")
    with pytest.raises(CliError, match=r"/theirs on .* has begun 'fresh' as well, since this one was stopped"):
        started("mine")


def test_when_switched_then_the_claim_has_ended_and_it_is_the_collection_that_is_there(
    started, lite, store, redis_server, keys, tmp_path
):
    assert started("mine") == ("fresh", "fresh")
    store.ensure_collection("fresh", fingerprint="f", dimension=2)
    store.upsert("fresh", [Row("a", np.ones(2, np.float32))])
    settings = load(Flags(milvus_uri=lite.uri, redis_url=redis_server.url, queue=keys.queue), {})
    with Manifest(tmp_path / "mine") as manifest:
        plan, report = Plan(Sending("fresh")), Report(indexed=1)
        assert switch_run(settings, plan, Reindex("live", "fresh"), manifest, report, EXACT).agrees is True
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.keys(f"{keys.base}index:*") == []
    with pytest.raises(CliError, match="there is such a collection or alias already"):
        started("theirs")
    store.switch("live", "old")
    store.drop("fresh")


def test_given_a_manifest_whose_name_is_no_unicode_when_begun_then_others_are_told_of_it_and_of_a_way_out(
    started, redis_server, keys
):
    assert started(os.fsdecode(b"\xff\x1b[31m")) == ("fresh", "fresh")
    with pytest.raises(CliError) as refused:
        started("theirs")
    assert r"/\udcff\x1b[31m on" in str(refused.value)
    (key,) = re.findall(r"deletes the key (\S+) from Redis", refused.value.hint)
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.delete(key) == 1
    assert started("theirs") == ("fresh", "fresh")


def test_given_a_run_that_is_given_up_for_another_collection_then_its_first_one_is_free(started):
    assert started("mine") == ("fresh", "fresh")
    assert started("mine", "fresher", fresh=True) == ("fresher", "fresher")
    assert started("theirs") == ("fresh", "fresh")
    with pytest.raises(CliError, match=r"--into fresher: the run with the manifest \S+/mine on"):
        started("others", "fresher")


def failed(count):
    return Counter({ErrorCode.CORRUPT_IMAGE: count})


@pytest.mark.parametrize(
    ("report", "found", "options", "why"),
    [
        (Report(), EXACT, {}, "nothing is indexed"),
        (Report(indexed=1, stopped="nobody is there"), EXACT, {}, "ended early: nobody is there"),
        (Report(indexed=98, failed=failed(2)), EXACT, {}, "2 of 100 failed, which is more than 1.00%"),
        (Report(indexed=99, failed=failed(1)), EXACT, {"max_failed": 0.0}, "1 of 100 failed"),
        (Report(indexed=9, incomplete=["s.tar"]), EXACT, {"max_failed": 0.99}, "1 source is incomplete"),
        (
            Report(earlier=999, failed=Counter({ErrorCode.MODEL_MISMATCH: 1})),
            EXACT,
            {"max_failed": 1.0},
            "1 came from workers of another model",
        ),
        (Report(indexed=9), None, {}, "does not hold all"),
        (Report(indexed=9), Verdict(False, "NOT reconciled"), {}, "does not hold all"),
        (Report(indexed=9), Verdict(None, "not reconciled"), {"max_failed": 1.0}, "does not hold all"),
    ],
)
def test_given_what_stands_against_it_then_the_alias_is_left_alone(lite, store, manifest, report, found, options, why):
    verdict = switched(lite, manifest, report, found, **options)
    assert (verdict.agrees, why in verdict.text) == (False, True), verdict.text
    assert store.describe("live").name == "old"


@pytest.mark.parametrize(
    ("report", "options"),
    [
        (Report(indexed=99, failed=failed(1)), {}),
        (Report(earlier=9, failed=failed(1)), {"max_failed": 0.1}),
        (Report(indexed=1, failed=failed(9), incomplete=["s.tar"]), {"max_failed": 1.0}),
    ],
)
def test_given_as_many_failures_as_may_be_then_it_is_switched(lite, store, manifest, report, options):
    assert switched(lite, manifest, report, **options).agrees is True
    assert store.describe("live").name == "new"


def test_given_what_nobody_could_see_then_the_alias_is_left_alone_unless_all_may_fail(lite, store, manifest):
    report = Report(indexed=99, failed=failed(1))
    verdict = switched(lite, manifest, report, unseen="photos/2025: Permission denied", max_failed=0.5, drop_old=True)
    assert (verdict.agrees, "of photos/2025: Permission denied, and nobody knows" in verdict.text) == (False, True)
    assert (store.describe("live").name, store.count("old")) == ("old", 1)
    assert switched(lite, manifest, report, unseen="photos/2025: Permission denied", max_failed=1.0).agrees is True


def test_given_another_alias_of_the_old_one_when_it_is_to_be_dropped_then_it_is_kept_and_that_said(
    lite, store, manifest
):
    store.switch("others", "old")
    try:
        verdict = switched(lite, manifest, drop_old=True)
        assert (verdict.agrees, verdict.text) == (
            True,
            "'live' stands for 'new' now; 'old' is kept: collection old is not dropped: others stands for it",
        )
        assert (store.describe("live").name, store.count("others")) == ("new", 1)
    finally:
        store._connection.call("drop_alias", "others")


@pytest.mark.parametrize(
    ("plan", "code", "why"),
    [
        (Plan(reindex=Reindex("old")), Exit.USAGE, "'old' is a collection itself"),
        (Plan(reindex=Reindex("live", "new")), Exit.USAGE, "there is such a collection or alias already"),
        (Plan(Sending("new"), fields={"year": "int"}), Exit.FAILED, "collection new declares no fields, not year:int"),
        (Plan(Sending("live"), fields={"id": "int"}), Exit.USAGE, "cannot declare the field 'id'"),
    ],
)
def test_given_what_the_run_would_be_refused_with_when_run_dry_then_it_is_said(lite, store, plan, code, why):
    with pytest.raises(CliError, match=why) as refused:
        dry_run(Run("index", Flags(milvus_uri=lite.uri)), [], plan)
    assert refused.value.exit is code


def test_given_a_collection_of_these_columns_or_none_when_run_dry_then_nothing_is_said_against_it(lite, store, capsys):
    run = Run("index", Flags(milvus_uri=lite.uri))
    for plan in (Plan(reindex=Reindex("live", "newer")), Plan(Sending("newer"), fields={"year": "int"})):
        assert dry_run(run, [], plan) == Exit.FAILED  # there is no picture
    assert capsys.readouterr().err == ""
    away = Run("index", Flags(milvus_uri="http://127.0.0.1:1"))
    assert dry_run(away, [], plan) == Exit.FAILED
    assert "Milvus could not be asked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("collection", "uri", "said"),
    [
        ("new", "", "; 1 that has left would be taken out"),  # of three that the manifest knows one has a row
        ("live", "", "; 1 that has left would be taken out"),
        ("newer", "", "; 0 that have left would be taken out"),
        ("new", "http://127.0.0.1:1", "; 3 that have left would be taken out"),
    ],
)
def test_given_what_has_left_when_synced_dry_then_milvus_tells_how_many_rows_go(
    lite, store, tmp_path, capsys, collection, uri, said
):
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "x.png").write_bytes(b"x")
    with Manifest(tmp_path / "m") as manifest:
        for known in ("a", "b", "c", "x.png"):
            manifest.answered(known, b"")
        manifest.duplicate("d", b"", b"same")
    plan = Plan(Sending(collection), manifest=tmp_path / "m", sync=True)
    flags = Flags(milvus_uri=uri or lite.uri, redis_url="redis://127.0.0.1:1")
    assert dry_run(Run("index", flags), open_sources([tmp_path / "pics"]), plan) == Exit.OK
    told = capsys.readouterr()
    assert said in told.out
    assert ("all of them are counted" in told.err) == bool(uri)
    assert store.count("new") == 1


@pytest.mark.parametrize(
    ("begun", "into", "named"), [("", None, "a new collection"), ("", "newer", "'newer'"), ("half", None, "'half'")]
)
def test_given_a_reindexing_when_run_dry_then_it_names_the_collection_that_it_would_go_on_with(
    tmp_path, capsys, begun, into, named
):
    with Manifest(tmp_path / "m") as manifest:
        manifest.tell("into", begun)
    dry_run(
        Run("index", Flags(redis_url="redis://127.0.0.1:1")),
        [],
        Plan(manifest=tmp_path / "m", reindex=Reindex("live", into)),
    )
    assert f"would be sent to {named} for the alias 'live'" in capsys.readouterr().out


def test_given_milvus_away_at_the_end_then_the_run_is_not_finished_and_says_so(manifest, monkeypatch):
    monkeypatch.setattr("clipfleet.cli.reindexing._PATIENCE_S", 0.2)
    settings = load(Flags(milvus_uri="http://127.0.0.1:1"), {})
    verdict = switch_run(settings, Plan(Sending("new")), Reindex("live"), manifest, Report(indexed=1), EXACT)
    assert (verdict.agrees, verdict.text.startswith("NOT finished: store_failed")) == (False, True), verdict.text
    assert verdict.text.endswith("run it again")
