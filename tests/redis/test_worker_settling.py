"""The settler against a real Redis: what happens to answers that cannot be given."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from clipfleet.pipeline.engine import incident
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.limits import GROUP, MAX_RESULT_BYTES
from clipfleet.schemas.request import Request, RequestReader
from clipfleet.schemas.result import decode_result
from clipfleet.worker.entry import Entry, open_entry
from clipfleet.worker.hooks import Hooks
from clipfleet.worker.ledger import Ledger
from clipfleet.worker.settler import Outcome, Settler
from clipfleet.worker.stream import QueueStream
from clipfleet.worker.wire import SLICE_BYTES, Wire
from support.fleet import admit
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer


@pytest.fixture
def stream(redis_server: RedisServer, redis_client: redis.Redis, keys: QueueKeys) -> Iterator[QueueStream]:
    made = QueueStream(Wire(redis_server.url), keys, "me")
    made.ensure_groups()
    yield made
    made.wire.close()


@pytest.fixture
def settler(redis_server: RedisServer, stream: QueueStream) -> Iterator[Settler]:
    own = QueueStream(Wire(redis_server.url), stream.keys, "me")
    made = Settler(own, Ledger(10.0, lambda _a, _r: None), Hooks())
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.close()
    thread.join(10)
    assert not thread.is_alive()
    own.wire.close()


@pytest.fixture
def resting(redis_server: RedisServer, stream: QueueStream) -> Iterator[Settler]:
    """One whose thread does not run yet."""
    own = QueueStream(Wire(redis_server.url), stream.keys, "me")
    yield Settler(own, Ledger(10.0, lambda _a, _r: None), Hooks())
    own.wire.close()


def finish(settler: Settler) -> None:
    """Let it do what was left to its thread."""
    settler.close()
    settler.run()


def test_given_a_reader_that_ran_them_itself_when_settled_over_its_connection_then_no_thread_is_needed(
    redis_client: redis.Redis, stream: QueueStream, resting: Settler
) -> None:
    entries = deliver(redis_client, stream, "a1", "a2", "a3")
    resting._ledger.add(entries)
    resting.settle_over(stream, [Outcome(entry, outputs={"data": entry.id}) for entry in entries])
    for entry in entries:
        raw = redis_client.lindex(stream.keys.result(entry.id), 0)
        assert decode_result(raw).outputs == {"data": entry.id}
    assert (len(resting._ledger), resting.settled, resting.failed) == (0, 3, 0)
    assert redis_client.xlen(stream.keys.lanes[0]) == 0
    resting.settle_over(stream, [])
    finish(resting)
    assert resting.settled == 3


def test_given_one_that_cannot_be_answered_when_settled_over_a_reader_then_it_alone_is_left_to_the_thread(
    redis_client: redis.Redis, stream: QueueStream, resting: Settler
) -> None:
    good, bad = deliver(redis_client, stream, "good", "bad")
    resting._ledger.add([good, bad])
    redis_client.set(stream.keys.result("bad"), "x", ex=60)
    resting.settle_over(stream, [Outcome(one, outputs={"data": 1}) for one in (good, bad)])
    assert redis_client.exists(stream.keys.result("good"))
    assert (resting._ledger.held(), resting.settled) == ([bad], 1)
    finish(resting)
    assert (resting._ledger.held(), resting.settled) == ([], 2)
    assert [fields[b"id"] for _, fields in redis_client.xrange(stream.keys.dead)] == [b"bad"]


def test_given_a_connection_that_is_lost_when_settled_over_a_reader_then_the_thread_settles_them_all(
    redis_client: redis.Redis, stream: QueueStream, resting: Settler
) -> None:
    entries = deliver(redis_client, stream, "a1", "a2")
    resting._ledger.add(entries)
    redis_client.client_kill_filter(skipme=True)
    resting.settle_over(stream, [Outcome(entry, outputs={"data": 1}) for entry in entries])
    assert (len(resting._ledger), resting.settled) == (2, 0)
    finish(resting)
    assert (len(resting._ledger), resting.settled) == (0, 2)
    assert all(redis_client.llen(stream.keys.result(entry.id)) == 1 for entry in entries)


def deliver(redis_client: redis.Redis, stream: QueueStream, *ids: str) -> list[Entry]:
    admit(redis_client, stream.keys, [Request(one, "echo", {"data": 1}) for one in ids])
    return [
        open_entry(one.lane, one.stream_id, one.fields, RequestReader(stream.keys), deliveries=1, read_at=0.0)
        for one in stream.read({stream.keys.lanes[0]: 100})
    ]


def test_an_unwritable_reply_to_buries_the_request_and_not_its_neighbours(
    redis_client: redis.Redis, stream: QueueStream, settler: Settler
) -> None:
    good, bad = deliver(redis_client, stream, "good", "bad")
    redis_client.set(stream.keys.result("bad"), "a string", px=60_000)
    settler.put([Outcome(bad, outputs={"data": 1}), Outcome(good, outputs={"data": 1})])
    wait_until(lambda: redis_client.xlen(stream.keys.lanes[0]) == 0, 10, "both settled")
    assert decode_result(redis_client.lindex(stream.keys.result("good"), 0)).ok
    ((_, letter),) = redis_client.xrange(stream.keys.dead)
    assert letter[b"id"] == b"bad"
    assert redis_client.get(stream.keys.result("bad")) == b"a string"


def test_a_lifetime_that_the_script_refuses_buries_the_request_and_not_its_neighbours(
    redis_client: redis.Redis, stream: QueueStream, settler: Settler
) -> None:
    good, bad, too = deliver(redis_client, stream, "good", "bad", "too")
    for entry in (bad, too):
        assert entry.envelope is not None
        entry.envelope = entry.envelope._replace(reply_ttl_ms=86_400_001)
    # Whether it goes out with others or, as an owner's failure, alone
    settler.put([Outcome(bad, outputs={"data": 1}), Outcome(good, outputs={"data": 1})])
    settler.put([Outcome(too, error_for(ErrorCode.MODEL_FAILED))])
    wait_until(lambda: redis_client.xlen(stream.keys.lanes[0]) == 0, 10, "all settled")
    assert decode_result(redis_client.lindex(stream.keys.result("good"), 0)).ok
    letters = [letter for _, letter in redis_client.xrange(stream.keys.dead)]
    assert [letter[b"id"] for letter in letters] == [b"bad", b"too"]


def test_failures_of_a_worker_count_from_the_owner_alone(
    redis_client: redis.Redis, stream: QueueStream, settler: Settler
) -> None:
    # Given two requests that another worker has taken over
    one, two = deliver(redis_client, stream, "one", "two")
    redis_client.xclaim(stream.keys.lanes[0], GROUP, "another", 0, [one.stream_id, two.stream_id])
    # When this one reports a failure of its own, and a verdict on the item
    settler.put([Outcome(one, error_for(ErrorCode.MODEL_FAILED)), Outcome(two, error_for(ErrorCode.CORRUPT_IMAGE))])
    wait_until(lambda: redis_client.llen(stream.keys.result("two")) == 1, 10, "the verdict")
    # Then the failure did not count
    assert redis_client.exists(stream.keys.result("one")) == 0
    assert redis_client.xpending(stream.keys.lanes[0], GROUP)["pending"] == 1
    settler.put([Outcome(one, outputs={"data": 1})])
    wait_until(lambda: redis_client.xlen(stream.keys.lanes[0]) == 0, 10, "settled by a success")


def test_settling_waits_out_a_server_that_refuses_for_a_while(
    redis_client: redis.Redis, stream: QueueStream, settler: Settler
) -> None:
    # Given a server on which the settler may run no scripts, as while an ACL is edited
    (entry,) = deliver(redis_client, stream, "patient")
    redis_client.acl_setuser("default", enabled=True, commands=["+@all", "-evalsha"])
    try:
        settler.put([Outcome(entry, outputs={"data": 1})])
        waiting = settler._patience
        wait_until(lambda: waiting._failures > 0, 10, "a refusal")
        assert redis_client.exists(stream.keys.result("patient")) == 0
    finally:
        redis_client.acl_setuser("default", enabled=True, commands=["+@all"])
    wait_until(lambda: redis_client.llen(stream.keys.result("patient")) == 1, 10, "the answer")


def test_outputs_that_msgpack_cannot_carry_are_an_error_result(
    redis_client: redis.Redis, stream: QueueStream, settler: Settler
) -> None:
    (entry,) = deliver(redis_client, stream, "odd")
    settler.put([Outcome(entry, outputs={"data": {1, 2}})])
    raw = wait_until(lambda: redis_client.lindex(stream.keys.result("odd"), 0), 10, "the answer")
    assert decode_result(raw).error.code is ErrorCode.INTERNAL


@pytest.mark.parametrize("over", [True, False], ids=["by the reader", "by the thread"])
def test_outputs_that_no_client_would_read_are_an_error_that_says_so(
    redis_client: redis.Redis, stream: QueueStream, settler: Settler, *, over: bool
) -> None:
    outcomes = [Outcome(deliver(redis_client, stream, "huge")[0], outputs={"data": bytes(MAX_RESULT_BYTES)})]
    settler.settle_over(stream, outcomes) if over else settler.put(outcomes)
    raw = wait_until(lambda: redis_client.lindex(stream.keys.result("huge"), 0), 10, "the answer")
    error = decode_result(raw).error
    assert error.code is ErrorCode.INTERNAL
    assert f"exceed the limit of {MAX_RESULT_BYTES}" in error.message


def test_megabytes_of_results_leave_in_slices_each_with_a_time_of_its_own(
    redis_client: redis.Redis, stream: QueueStream, resting: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices: list[int] = []
    entries = deliver(redis_client, stream, "large", "larger")
    connection = stream.wire._connection
    send = connection.send_packed_command

    def counted(data: Sequence[bytes]) -> None:
        slices.extend(map(len, data))
        send(data)

    monkeypatch.setattr(connection, "send_packed_command", counted)
    sizes = [SLICE_BYTES + 5, 7 * SLICE_BYTES]
    resting.settle_over(
        stream, [Outcome(one, outputs={"data": bytes(size)}) for one, size in zip(entries, sizes, strict=True)]
    )
    found = [decode_result(redis_client.lindex(stream.keys.result(one.id), 0)) for one in entries]
    assert [len(one.outputs["data"]) for one in found] == sizes
    assert sum(slices) > sum(sizes)
    assert max(slices) == SLICE_BYTES


class Picture:
    """Something large that came with a request."""


def refused(picture: Picture, *, foreseen: bool) -> RequestFailed:
    """The error of whoever looked at a picture; its frame has the error in a variable, as functions do."""

    def look(_picture: Picture) -> None:
        error = error_for(ErrorCode.CORRUPT_IMAGE) if foreseen else ValueError("of nobody's making")
        raise error

    try:
        look(picture)
    except RequestFailed as verdict:
        return verdict
    except ValueError as unforeseen:
        return incident(unforeseen, ErrorCode.INTERNAL, "id")
    raise AssertionError


@pytest.mark.parametrize("foreseen", [True, False])
def test_given_a_failure_when_settled_then_nothing_of_its_item_stays_until_cycles_are_looked_for(
    redis_client: redis.Redis, stream: QueueStream, settler: Settler, foreseen: bool
) -> None:
    (entry,) = deliver(redis_client, stream, "broken")
    picture = Picture()
    left = weakref.ref(picture)
    logging.disable()  # pytest keeps what is logged, with its traceback
    gc.collect()
    gc.disable()
    try:
        settler.put([Outcome(entry, refused(picture, foreseen=foreseen))])
        wait_until(lambda: redis_client.xlen(stream.keys.lanes[0]) == 0, 10, "settled")
        del picture
        assert left() is None
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
