"""What a step's task does when things go wrong, against a real Redis, without a Celery worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import redis
from celery.exceptions import TaskRevokedError
from celery.worker import state

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.tasks import corpus, upkeep
from clipfleet.tasks.app import StepRequest, app
from clipfleet.tasks.milvus import switched
from clipfleet.tasks.plan import make_plan
from clipfleet.tasks.results import show
from clipfleet.tasks.runs import Runs
from clipfleet.tasks.state import REVOKED
from clipfleet.tasks.step import Step


class Retry(Exception):
    pass


class Task:
    """A bound task: its app keeps what it was asked to send and to store."""

    def __init__(self, retries=0):
        self.sent = []
        self.stored = {}
        self.request = SimpleNamespace(id="task", retries=retries)
        self.app = self
        self.backend = self

    def send_task(self, name, args, **options):
        self.sent.append((name, args, options["countdown"]))

    def store_result(self, task, result, state):
        self.stored[task] = (state, result)

    def retry(self, **options):
        return Retry(options["countdown"])


@pytest.fixture
def runs(redis_client, keys, tmp_path, monkeypatch):
    made = Runs(redis_client, keys)
    monkeypatch.setattr(corpus, "runs", lambda: made)
    monkeypatch.setattr(corpus, "settings", lambda: SimpleNamespace(sources_root=tmp_path))
    monkeypatch.setattr(corpus, "bulk_client", lambda: None)
    (tmp_path / "a").mkdir()
    plan = make_plan(["a"], tmp_path, collection="c", shards=1, columns={}, step_s=1.0, patience_s=60.0)
    monkeypatch.setattr("clipfleet.tasks.runs.secrets.token_hex", lambda _size: "r")
    made.begin("asked", plan.to_json(), "task")
    return made


def stepping(monkeypatch, act):
    monkeypatch.setattr(Step, "run", lambda self, _client, _on_saved: act(self))


def test_given_nothing_that_moved_when_a_step_ends_then_the_next_one_comes_later(runs, monkeypatch):
    stepping(monkeypatch, lambda step: None)
    task = Task()
    corpus.index_shard(task, "r", 0, 0)
    assert task.sent == [("clipfleet.index_shard", ("r", 0, 1), 10.0)]
    (shard,) = runs.shards("r", 1)
    assert (shard.turn, shard.owner, shard.stalls, task.stored["task"][0]) == (1, "", 1, "PROGRESS")


def test_given_a_shard_that_stands_still_beyond_patience_when_a_step_ends_then_it_gives_up(runs, monkeypatch):
    stepping(monkeypatch, lambda step: None)
    began = runs.now_ms()
    monkeypatch.setattr(runs, "now_ms", lambda: began + 61_000)
    task = Task()
    corpus.index_shard(task, "r", 0, 0)
    state, error = task.stored["task"]
    assert (task.sent, state, type(error)) == ([], "FAILURE", RuntimeError)
    assert "nobody took its pictures for 60 s" in str(error)
    assert not runs.is_running("r")


@pytest.mark.parametrize(("raised", "code"), [(KeyError("x"), "unforeseen: KeyError")])
def test_given_an_unforeseen_error_when_it_comes_again_and_again_then_the_shard_ends_with_it(
    runs, monkeypatch, raised, code
):
    def fail(_step):
        raise raised

    stepping(monkeypatch, fail)
    with pytest.raises(Retry):
        corpus.index_shard(Task(), "r", 0, 0)
    runs.release("r", 0, runs.shards("r", 1)[0].owner, turn=0)
    task = Task(retries=10)
    corpus.index_shard(task, "r", 0, 0)
    assert runs.shards("r", 1)[0].ended.startswith(code)
    assert task.stored["task"][0] == "FAILURE"


def test_given_columns_that_cannot_be_made_when_the_first_step_comes_then_it_waits_or_the_shard_ends(runs, monkeypatch):
    stepping(monkeypatch, lambda step: pytest.fail("no picture may be sent: workers would make it without columns"))
    said = iter(
        [error_for(ErrorCode.STORE_FAILED), error_for(ErrorCode.BAD_REQUEST, "collection c declares no fields")]
    )

    def declared(_plan):
        raise next(said)

    monkeypatch.setattr(corpus, "declare_columns", declared)
    with pytest.raises(Retry):
        corpus.index_shard(Task(), "r", 0, 0)
    assert (runs.shards("r", 1)[0].ended, runs.is_running("r")) == ("", True)
    runs.release("r", 0, runs.shards("r", 1)[0].owner, turn=0)
    task = Task()
    corpus.index_shard(task, "r", 0, 0)
    state, error = task.stored["task"]
    assert (state, "c declares no fields" in str(error)) == ("FAILURE", True)


def test_given_a_revoked_run_when_progress_comes_late_then_the_revocation_stays_to_be_seen(runs):
    class Late(Task):
        def store_result(self, task, result, state):
            if state == "PROGRESS":
                assert runs.end("r", REVOKED)
            super().store_result(task, result, state)

    task = Late()
    show(task, runs, "r")
    state, error = task.stored["task"]
    assert (state, type(error)) == (REVOKED.upper(), TaskRevokedError)


@pytest.mark.parametrize("comes", ["the step again", "a worker that starts"])
def test_given_an_owner_killed_after_its_shards_end_when_anything_comes_then_the_run_ends(runs, comes):
    shard, _ = runs.claim("r", 0, 0, "killed")
    shard.indexed, shard.ended = 3, "done"
    runs.save("r", 0, shard)
    task = Task()
    if comes == "the step again":
        corpus.index_shard(task, "r", 0, 0)
    else:
        assert corpus.resume_index(task) == {"ok": True, "runs": {"r": 0}}
    state, result = task.stored["task"]
    assert (state, result["ok"], result["indexed"]) == ("SUCCESS", True, 3)
    assert runs.unfinished() == []


def test_given_a_run_that_is_over_when_a_step_comes_then_it_does_nothing(runs, monkeypatch):
    stepping(monkeypatch, lambda step: pytest.fail("it must not run"))
    runs.end("r", REVOKED)
    for run in ("r", "unknown"):
        task = Task()
        corpus.index_shard(task, run, 0, 0)
        assert task.sent == []


def test_given_a_store_that_is_away_when_all_is_indexed_then_the_alias_is_switched_later(runs, monkeypatch):
    shard, _ = runs.claim("r", 0, 0, "me")
    shard.indexed, shard.ended = 3, "done"
    runs.save("r", 0, shard)
    answers = iter([error_for(ErrorCode.STORE_FAILED), {"alias": "a", "switched": True, "before": "old"}])

    def switched(*_args):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr("clipfleet.tasks.results.switched", switched)
    task = Task()
    with pytest.raises(Retry):
        corpus.index_shard(task, "r", 0, 0)
    assert runs.is_running("r")
    corpus.index_shard(task, "r", 0, 0)
    state, result = task.stored["task"]
    assert (state, result["ok"], result["switched"], result["before"]) == ("SUCCESS", True, True, "old")


@pytest.mark.parametrize(
    ("done", "most", "why"),
    [
        ({"indexed": 0, "failed": {}, "incomplete": 0}, 1.0, "nothing is indexed"),
        ({"indexed": 98, "failed": {"corrupt_image": 2}, "incomplete": 0}, 0.01, "2 failed, more than 1.00%"),
        ({"indexed": 1_000, "failed": {"fetch_failed": 1}, "incomplete": 1}, 0.5, "nobody knows how many"),
        ({"indexed": 999, "failed": {"model_mismatch": 1}, "incomplete": 0}, 1.0, "another model"),
        # All may be as it is: then it is Milvus that is asked for, which nobody has named
        ({"indexed": 1_000, "failed": {"fetch_failed": 1}, "incomplete": 1}, 1.0, "no MILVUS_URI"),
        ({"indexed": 99, "failed": {"corrupt_image": 1}, "incomplete": 0}, 0.01, "no MILVUS_URI"),
    ],
)
def test_given_what_the_new_collection_may_lack_when_all_shards_have_ended_then_the_alias_is_left(
    monkeypatch, done, most, why
):
    fleet = SimpleNamespace(fleet=SimpleNamespace(milvus_uri=None))
    monkeypatch.setattr("clipfleet.tasks.milvus.settings", lambda: fleet)
    said = switched({"alias": "live", "collection": "new", "max_failed": most}, done, [])
    assert (said["switched"], why in said["why"]) == (False, True), said


def test_given_the_alias_for_the_new_collection_when_asked_to_reindex_then_it_is_a_value_error(monkeypatch):
    fleet = SimpleNamespace(fleet=SimpleNamespace(milvus_uri="http://milvus:19530"))
    monkeypatch.setattr(corpus, "settings", lambda: fleet)
    with pytest.raises(ValueError, match="another name than the alias"):
        corpus.reindex(Task(), ["a"], "live", collection="live")


def away(*_args, **_options):
    raise redis.exceptions.ConnectionError("gone")


def test_given_a_redis_that_is_lost_before_the_claim_when_a_step_comes_then_it_comes_again(runs, monkeypatch):
    stepping(monkeypatch, lambda step: pytest.fail("it must not run"))
    for lost in ("get", "claim"):
        with monkeypatch.context() as patched:
            patched.setattr(runs, lost, away)
            with pytest.raises(Retry):
                corpus.index_shard(Task(), "r", 0, 0)


def test_given_a_backend_that_is_lost_at_the_end_when_the_step_comes_again_then_the_run_ends(runs, monkeypatch):
    stepping(monkeypatch, lambda step: setattr(step, "over", True))
    task = Task()
    with monkeypatch.context() as patched:
        patched.setattr(task, "store_result", away)
        with pytest.raises(Retry):
            corpus.index_shard(task, "r", 0, 0)
    corpus.index_shard(task, "r", 0, 0)
    assert (task.stored["task"][0], runs.unfinished()) == ("FAILURE", [])  # nothing was indexed


def test_given_a_redis_that_is_lost_when_a_step_is_revoked_then_the_celery_worker_lives_on(monkeypatch):
    monkeypatch.setattr(corpus, "runs", away)
    request = object.__new__(StepRequest)
    request._request_dict = {corpus.TASKS_HEADER: ["task"], corpus.RUN_HEADER: "r", "expires": None}
    request._app, request.id, request._already_revoked, request._expires = app, "step", False, None
    state.revoked.add("task")
    try:
        assert request.revoked() is False
    finally:
        state.revoked.discard("task")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"sources": []}, {"sources": [1]}, {"sources": 7}, {"sources": {"a": 1}}, {"shards": 0}, {"shards": 257}),
        *({"shards": "4"}, {"shards": 2.5}, {"shards": True}, {"step_s": 0}, {"step_s": "20"}, {"patience_s": -1}),
        *({"patience_s": float("nan")}, {"patience_s": "1"}, {"columns": ["url"]}, {"columns": {"url": 1}}),
        *({"collection": "a b"}, {"collection": 7}, {"collection": ""}),
    ],
    ids=repr,
)
def test_given_options_that_cannot_be_when_asked_then_it_is_a_value_error(wrong):
    with pytest.raises(ValueError, match="is"):
        corpus.index_corpus(Task(), **{"sources": ["a"], **wrong})


def test_given_what_is_no_run_or_no_number_when_asked_then_it_is_an_answer():
    for run in ("runs", 7, "../x", None, ["a"]):
        assert upkeep.reconcile(Task(), run)["error"]["code"] == "bad_request"
    for limit in (0, -1, "9", 1.5, None):
        assert upkeep.retry_dead(Task(), limit=limit)["error"]["code"] == "bad_request"
