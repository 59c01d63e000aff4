"""A step against a client that answers as it is told: what counts as done, and what is sent again."""

from __future__ import annotations

import tarfile
import threading
from zipfile import ZipFile

import pytest

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.result import Result
from clipfleet.tasks.plan import make_plan
from clipfleet.tasks.runs import Runs
from clipfleet.tasks.state import totals
from clipfleet.tasks.step import Keeper, Step
from support.waiting import wait_until

OPTIONS = {"collection": "images", "columns": {}, "patience_s": 60.0}


class Client:
    """Answers each request at once, by ``say(id)``; ids sent are kept."""

    def __init__(self, say=lambda _id: None):
        self.sent = []
        self._say = say

    def map_with_request(self, requests, *, max_in_flight, ordered):
        assert not ordered
        for request in requests:
            self.sent.append(request.inputs["id"])
            code = self._say(request.inputs["id"])
            yield request, Result("x", ok=code is None, error=None if code is None else error_for(code))


@pytest.fixture
def corpus(tmp_path):
    for number in range(12):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number:02}.png").write_bytes(b"x")
    return tmp_path


@pytest.fixture
def run_step(corpus, redis_client, keys):
    runs = Runs(redis_client, keys)
    turns = iter(range(1000))

    def one(client, *, shards=1, number=0, stop=None, plan=None):
        plan = plan or make_plan(["a"], corpus, shards=shards, step_s=60.0, **OPTIONS)
        run, _, _ = runs.begin("asked", plan.to_json(), "task")
        turn = next(turns)
        shard, _ = runs.claim(run, number, turn, f"owner {turn}")
        step = Step(
            plan=plan, runs=runs, run=run, number=number, shard=shard, root=corpus, stop=stop or threading.Event()
        )
        step.run(client, lambda: None)
        return step, runs.shards(run, shards)[number]

    return one


def test_given_a_fleet_when_a_step_ends_then_all_is_done_and_the_log_is_gone(run_step):
    client = Client()
    step, shard = run_step(client)
    assert (step.over, step.moved, shard.indexed, shard.unit) == (True, True, 12, 1)
    assert sorted(client.sent) == [f"{number:02}.png" for number in range(12)]


@pytest.mark.parametrize("code", [ErrorCode.UNAVAILABLE, ErrorCode.EXPIRED, ErrorCode.STORE_FAILED])
def test_given_nobody_who_takes_them_when_the_next_step_comes_then_only_those_are_sent_again(run_step, code):
    first = Client(lambda id_: code if id_ in {"03.png", "07.png"} else None)
    step, shard = run_step(first)
    assert (step.over, step.moved, shard.indexed, shard.failed, shard.unit) == (False, True, 10, {}, 0)
    step, shard = run_step(first)
    assert (step.over, step.moved) == (False, False)
    last = Client()
    step, shard = run_step(last)
    assert (step.over, shard.indexed, sorted(last.sent)) == (True, 12, ["03.png", "07.png"])


def test_given_verdicts_when_a_step_runs_then_they_are_counted_once_and_never_sent_again(run_step, corpus):
    (corpus / "a" / "gone.png").symlink_to("nowhere")
    bad = Client({"02.png": ErrorCode.CORRUPT_IMAGE, "03.png": ErrorCode.UNAVAILABLE}.get)
    run_step(bad)
    step, shard = run_step(Client())
    assert (step.over, shard.indexed, shard.failed) == (True, 11, {"corrupt_image": 1, "fetch_failed": 1})
    assert sorted(each["id"] for each in shard.failures) == ["02.png", "gone.png"]


def test_given_files_that_come_and_go_between_steps_when_it_goes_on_then_nothing_is_twice_or_left_out(run_step, corpus):
    stop = threading.Event()
    half = Client(lambda _id: stop.set() if len(half.sent) == 5 else None)
    step, shard = run_step(half, stop=stop)
    assert (step.over, shard.indexed) == (False, 5)
    for number in range(100, 120):
        (corpus / "a" / f"{number}.png").write_bytes(b"new")
    (corpus / "a" / half.sent[0]).unlink()
    rest = Client()
    step, shard = run_step(rest)
    assert (step.over, shard.indexed) == (True, 32)
    assert not set(half.sent) & set(rest.sent)


def test_given_a_source_that_vanished_when_a_step_comes_then_it_is_a_failure_and_no_endless_run(run_step, corpus):
    run_step(Client(lambda _id: ErrorCode.UNAVAILABLE))
    plan = make_plan(["a"], corpus, shards=1, step_s=1.0, **OPTIONS)
    (corpus / "a").rename(corpus / "b")
    step, shard = run_step(Client(), plan=plan)
    assert (step.over, shard.failed) == (True, {"fetch_failed": 1})


@pytest.mark.parametrize("shards", [1, 3])
def test_given_what_hides_any_number_of_pictures_when_steps_have_run_then_it_is_counted_once(run_step, corpus, shards):
    (corpus / "empty").mkdir()
    (corpus / "a" / "disk").symlink_to("not mounted")
    with tarfile.open(corpus / "whole.tar", "w") as archive:
        archive.add(corpus / "a" / "01.png", "01.png")
    whole = (corpus / "whole.tar").read_bytes()
    (corpus / "cut.tar").write_bytes(whole[:512])
    with tarfile.open(corpus / "nothing.tar", "w"):
        pass
    names = ["a", "empty", "none*.png", "whole.tar", "cut.tar", "nothing.tar"]
    plan = make_plan(names, corpus, shards=shards, step_s=60.0, **OPTIONS)
    # A step that leaves off in the middle counts nothing twice
    run_step(Client(lambda _id: ErrorCode.UNAVAILABLE), plan=plan, shards=shards)
    ended = [run_step(Client(), plan=plan, shards=shards, number=number)[1] for number in range(shards)]
    # The link, the empty folder, the pattern without a match, the shard that is cut; not the tar that is empty
    assert totals(ended)["incomplete"] == 4
    assert totals(ended)["indexed"] == 13


def test_given_links_made_after_the_plan_when_a_step_comes_then_what_leads_out_of_the_root_is_not_read(
    run_step, corpus, tmp_path_factory
):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.png").write_bytes(b"x")
    with tarfile.open(corpus / "t.tar", "w") as archive:
        archive.add(outside / "secret.png", "secret.png")
    plan = make_plan(["a", "t.tar"], corpus, shards=1, step_s=60.0, **OPTIONS)
    (corpus / "a" / "secret.png").symlink_to(outside / "secret.png")
    (corpus / "a" / "inside.png").symlink_to(corpus / "a" / "00.png")
    (corpus / "a" / "more").symlink_to(outside)
    (corpus / "t.tar").rename(outside / "t.tar")
    (corpus / "t.tar").symlink_to(outside / "t.tar")
    client = Client()
    step, shard = run_step(client, plan=plan)
    assert (step.over, shard.failed) == (True, {"fetch_forbidden": 2, "fetch_failed": 1})
    assert sorted(client.sent) == [*(f"{number:02}.png" for number in range(12)), "inside.png"]


def test_given_shards_when_each_has_run_then_together_they_sent_each_picture_once(run_step):
    clients = [Client() for _ in range(3)]
    for number, client in enumerate(clients):
        assert run_step(client, shards=3, number=number)[0].over
    assert sorted(id_ for client in clients for id_ in client.sent) == [f"{number:02}.png" for number in range(12)]


def test_given_rows_met_twice_and_other_files_when_shards_share_them_then_they_are_counted_once(run_step, corpus):
    (corpus / "a" / "notes.txt").touch()
    rows = "".join(f"https://e.com/{number % 8}.jpg\n" for number in range(12))
    (corpus / "t.csv").write_text("url\n" + rows)
    plan = make_plan(["a", "t.csv"], corpus, shards=3, step_s=60.0, **OPTIONS)
    shards = [run_step(Client(), shards=3, number=number, plan=plan)[1] for number in range(3)]
    assert [sum(getattr(shard, name) for shard in shards) for name in ("indexed", "duplicates", "skipped")] == [
        20,
        4,
        1,
    ]


def test_given_zips_and_a_store_when_shards_share_them_then_each_picture_is_sent_once(run_step, corpus):
    with ZipFile(corpus / "z.zip", "w") as archive:
        for number in range(6):
            archive.writestr(f"{number}.png", b"zipped %d" % number)
    (corpus / "store").mkdir()
    for number in range(9):
        (corpus / "store" / f"s{number}.png").write_bytes(b"stored")
    with tarfile.open(corpus / "store" / "t.tar", "w") as archive:
        archive.add(corpus / "a" / "00.png", "00.png")
    address = f"file://{corpus}/store"
    plan = make_plan(["z.zip", address, f"{address}/*.tar"], corpus, (address,), shards=3, step_s=60.0, **OPTIONS)
    assert [unit.whole for unit in plan.units] == [False, True, True]
    clients = [Client() for _ in range(3)]
    shards = [run_step(client, shards=3, number=number, plan=plan)[1] for number, client in enumerate(clients)]
    assert sorted(id_ for client in clients for id_ in client.sent) == [
        *(f"s{number}.png" for number in range(9)),
        "t/00",
        *(f"z/{number}.png" for number in range(6)),
    ]
    assert sum(shard.indexed for shard in shards) == 16


def test_given_a_lease_that_is_lost_when_kept_then_the_step_is_told_to_stop():
    answers = iter([True, True, False])
    with Keeper(lambda: next(answers), every_s=0.01) as keeper:
        assert wait_until(keeper.stop.is_set, 5, "to be told")
