"""Who may claim a new collection, and what others are told of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import redis

from clipfleet.cli.claims import claim, let_go


def test_given_a_folder_with_any_name_when_its_run_claims_then_others_are_told_of_it(redis_server, keys):
    with redis.Redis.from_url(redis_server.url) as client:
        assert claim(client, keys, "fresh", by="a", about="the run in /tmp/\udcff \U0001f600") == ""
        assert claim(client, keys, "fresh", by="b", about="") == "the run in /tmp/\\udcff \U0001f600"
        let_go(client, keys, "fresh", by="b")  # not its own
        assert claim(client, keys, "fresh", by="b", about="") != ""
        let_go(client, keys, "fresh", by="a")
        let_go(client, keys, "fresh", by="a")
        assert claim(client, keys, "fresh", by="b", about="") == ""
        assert claim(client, keys, "fresh", by="a", about="") == "another run"


def test_given_many_at_once_when_they_claim_one_collection_then_one_has_it(redis_server, keys):
    with redis.Redis.from_url(redis_server.url) as client, ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda n: claim(client, keys, "fresh", by=str(n), about=f"run {n}"), range(64)))
    (winner,) = [number for number, holder in enumerate(told) if holder == ""]
    assert set(told) == {"", f"run {winner}"}


def test_given_a_redis_that_lets_nobody_claim_then_that_is_told_and_no_more(redis_server, keys):
    with redis.Redis.from_url(redis_server.url) as admin:
        admin.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], commands=["+get", "+@connection"])
        try:
            with redis.Redis.from_url(redis_server.url, username="reader", password="secret") as client:
                assert claim(client, keys, "fresh", by="a", about="the run a") is None
        finally:
            admin.acl_deluser("reader")


def test_given_a_claim_when_others_ask_then_they_are_told_of_it_and_cannot_end_it(redis_server, keys):
    with redis.Redis.from_url(redis_server.url) as client:
        assert claim(client, keys, "fresh", by="a", about="the run\udcff\x1b[31m\n a") == ""
        for by in ("b", "", "a the"):
            let_go(client, keys, "fresh", by=by)
            assert claim(client, keys, "fresh", by="b", about="the run b") == r"the run\udcff\x1b[31m\n a"
        assert claim(client, keys, "fresh", by="a", about="the run a") == ""
        let_go(client, keys, "fresh", by="a")
        assert claim(client, keys, "fresh", by="b", about="the run b") == ""
