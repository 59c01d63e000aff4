"""What ``clipfleet.reindex`` asks of Milvus before a run and at its end; a real Redis, a real Milvus Lite."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from celery.exceptions import Ignore

from clipfleet.cli.claims import claim
from clipfleet.cli.settings import Flags, load
from clipfleet.index import Failure, Item
from clipfleet.schemas.errors import RequestFailed
from clipfleet.store import Field, Row, Store, StoreConfig
from clipfleet.store.lite import LiteServer
from clipfleet.tasks import corpus
from clipfleet.tasks.milvus import declare_columns, switched
from clipfleet.tasks.plan import Plan, Unit
from clipfleet.tasks.runs import Runs
from clipfleet.tasks.state import FINISHED

DONE = {"indexed": 1, "failed": {}, "incomplete": 0}
WENT_WELL = (DONE, [])


class Task:
    """A bound task, which keeps what it sends."""

    def __init__(self, task_id):
        self.sent = []
        self.request = SimpleNamespace(id=task_id, retries=0)
        self.app = self.backend = self

    def send_task(self, _name, args, **_options):
        self.sent.append(args)

    def store_result(self, *_args):
        pass


@pytest.fixture(scope="module")
def lite(tmp_path_factory):
    with LiteServer(tmp_path_factory.mktemp("lite")) as server:
        yield server


@pytest.fixture
def store(lite):
    """``old`` with a typed column behind the alias ``live``, and a collection ``other``."""
    made = Store(StoreConfig(lite.uri, consistency="Strong"))
    made.ensure_collection("old", fingerprint="f", dimension=2, fields=[Field("year", "int")])
    made.ensure_collection("other", fingerprint="f", dimension=2)
    made.upsert("old", [Row("a", np.ones(2, np.float32), {"year": 1999})])
    made.switch("live", "old")
    yield made
    made._connection.call("drop_alias", "live")
    for each in made.list_collections():
        made.drop(each.name)
    made.close()


@pytest.fixture
def runs(store, lite, redis_client, redis_server, keys, tmp_path, monkeypatch):
    """The runs of a queue whose workers have told their model; a table is their source."""
    redis_client.hset(keys.fleet, mapping={"fingerprint": "f", "dimension": 2})
    fleet = load(Flags(redis_url=redis_server.url, milvus_uri=lite.uri, queue=keys.queue), {})
    known = SimpleNamespace(fleet=fleet, sources_root=tmp_path, sources_addresses=())
    monkeypatch.setattr("clipfleet.tasks.milvus.settings", lambda: known)
    monkeypatch.setattr(corpus, "settings", lambda: known)
    made = Runs(redis_client, keys)
    monkeypatch.setattr(corpus, "runs", lambda: made)
    (tmp_path / "t.csv").write_text("path,year,price\na.png,2020,1.50\nb.png,soon,2\n", encoding="utf-8")
    return made


def asked(runs, task, alias="live", **options):
    """Ask for a reindexing; the plan of its run."""
    bound = task if isinstance(task, Task) else Task(task)
    with pytest.raises(Ignore):
        corpus.reindex(bound, ["t.csv"], alias, shards=1, **options)
    (run,) = {args[0] for args in bound.sent} or {runs.unfinished()[-1]}
    return run, Plan.of(runs.get(run).plan)


def test_given_typed_columns_of_the_old_one_when_reindexed_then_the_new_one_has_them_and_text_is_read_as_them(
    runs, store, tmp_path
):
    _, plan = asked(runs, "task", collection="new", fields={"price": "float"})
    assert (plan.fields, plan.before) == ({"year": "int", "price": "float"}, "old")
    for _twice in range(2):
        declare_columns(plan)
    assert store.describe("new").fields == (Field("year", "int"), Field("price", "float"))
    read, not_read = plan.events(Unit(("t.csv",)), 0, tmp_path)
    assert isinstance(read, Item)
    assert read.metadata == {"path": "a.png", "year": 2020, "price": 1.5}
    assert isinstance(not_read, Failure)
    assert "year is declared int" in not_read.error.message


@pytest.mark.parametrize(
    ("alias", "options", "why"),
    [
        ("live", {"collection": "other"}, "there is a collection or alias 'other' already"),
        ("live", {"collection": "old"}, "there is a collection or alias 'old' already"),
        ("new", {"collection": "live"}, "there is a collection or alias 'live' already"),
        ("other", {}, "'other' is a collection itself"),
        ("live", {"fields": {"id": "int"}}, "cannot declare the field 'id'"),
        ("live", {"fields": {"year": "date"}}, "fields is a map of names to types"),
        ("live", {"fields": ["year"]}, "fields is a map of names to types"),
    ],
)
def test_given_what_would_mix_when_asked_to_reindex_then_it_is_refused_before_a_picture_is_sent(
    runs, alias, options, why
):
    with pytest.raises(ValueError, match=why):
        corpus.reindex(Task("task"), ["t.csv"], alias, **options)
    assert runs.unfinished() == []


def test_given_two_runs_for_one_new_collection_when_neither_has_made_it_then_the_second_is_refused(runs):
    run, _ = asked(runs, "one", collection="new")
    with pytest.raises(ValueError, match="another run indexes into 'new'"):
        corpus.reindex(Task("two"), ["t.csv"], "live", collection="new", columns={"path": "path"}, shards=1)
    assert runs.unfinished() == [run]


def test_given_the_command_line_at_a_new_collection_when_asked_to_reindex_then_whoever_came_first_has_it(
    runs, redis_client, keys
):
    assert claim(redis_client, keys, "taken", by="a", about="the command") == ""
    with pytest.raises(ValueError, match="another run indexes into 'taken'"):
        corpus.reindex(Task("one"), ["t.csv"], "live", collection="taken", shards=1)
    assert runs.unfinished() == []
    # And the other way round, until the run has ended
    run, _ = asked(runs, "two", collection="new")
    assert claim(redis_client, keys, "new", by="a", about="the command") == f"the Celery run {run}"
    runs.end(run, FINISHED)
    assert claim(redis_client, keys, "new", by="a", about="the command") == ""


def test_given_a_message_that_comes_again_when_its_collection_is_there_then_it_is_its_own_run(runs, store):
    run, plan = asked(runs, "first")
    declare_columns(plan)
    assert asked(runs, "first") == (run, plan)
    runs.end(run, FINISHED, switched(plan.to_json(), *WENT_WELL))
    newer, after = asked(runs, "second")
    assert (newer != run, after.before) == (True, plan.collection)
    declare_columns(after)
    runs.end(newer, FINISHED, switched(after.to_json(), *WENT_WELL))
    late = Task("first")
    with pytest.raises(Ignore):
        corpus.reindex(late, ["t.csv"], "live", shards=1)
    assert (late.sent, runs.unfinished(), store.describe("live").name) == ([], [], after.collection)


def test_given_the_end_when_switched_then_once_and_not_back_behind_what_others_have_switched_to(runs, store):
    plans = [asked(runs, task, columns=columns)[1] for task, columns in (("one", {"path": "path"}), ("two", None))]
    for plan in plans:
        declare_columns(plan)
    slow, quick = (plan.to_json() for plan in plans)
    for _killed_before_it_said_so in range(2):
        assert switched(quick, *WENT_WELL) == {"alias": "live", "switched": True, "before": "old"}
    said = switched(slow, *WENT_WELL)
    assert (said["switched"], f"stands for {quick['collection']!r} by now" in said["why"]) == (False, True)
    assert store.describe("live").name == quick["collection"]


def test_given_a_collection_without_the_columns_when_they_are_asked_for_then_nothing_begins(runs, store):
    with pytest.raises(ValueError, match="fields are declared when a collection is made"):
        corpus.index_corpus(Task("task"), ["t.csv"], "other", fields={"year": "int"})
    with pytest.raises(Ignore):
        corpus.index_corpus(Task("task"), ["t.csv"], "made", fields={"year": "int"})
    assert store.describe("made").fields == (Field("year", "int"),)
    with pytest.raises(RequestFailed, match="declares year:int, not year:str"):
        declare_columns(Plan((), "made", 1, {}, 1.0, 1.0, fields={"year": "str"}))
