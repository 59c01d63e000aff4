"""What the intake reads next while a worker is never idle, step by step against a real Redis."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError  # noqa: A004

from clipfleet.pipeline.engine import Engine
from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.keys import Lane
from clipfleet.schemas.limits import GROUP
from clipfleet.schemas.request import Request, decode_request
from clipfleet.schemas.result import decode_result
from clipfleet.worker import intake
from clipfleet.worker.assembly import assemble
from clipfleet.worker.clock import ServerClock
from clipfleet.worker.config import NO_MODEL, WorkerConfig
from clipfleet.worker.context import Context
from clipfleet.worker.fleet import Fleet
from clipfleet.worker.intake import BULK_SHARE, Intake
from clipfleet.worker.ledger import Ledger
from clipfleet.worker.settler import Settler
from clipfleet.worker.stream import QueueStream
from clipfleet.worker.wire import Wire
from support.fleet import admit
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import redis

    from clipfleet.pipeline.program import Served
    from clipfleet.pipeline.work import Work
    from clipfleet.schemas.keys import QueueKeys
    from clipfleet.worker.entry import Entry
    from clipfleet.worker.stream import Delivery
    from support.fixtures import Leftovers
    from support.redis_server import RedisServer

LEASE_MS = 10_000


class Steps:
    """The parts of a worker process without their threads: what is read is run at once, and settled when told to."""

    def __init__(
        self, url: str, keys: QueueKeys, max_batch_size: int, serve: Callable[[Served], Served] = lambda served: served
    ) -> None:
        config = WorkerConfig(
            redis_url=url,
            queue=keys.queue,
            prefix=keys.prefix,
            model=NO_MODEL,
            max_batch_size=max_batch_size,
            lease_ms=LEASE_MS,
        )
        assembled = assemble(config, "cpu")
        self.streams: list[QueueStream] = []
        self.keys, self.url = keys, url
        self.read: list[Entry] = []
        self.ledger = Ledger(LEASE_MS / 1000.0, lambda added, _removed: self.read.extend(added))
        self._settler = Settler(self.connect(), self.ledger, assembled.hooks)
        self.context = Context(
            ledger=self.ledger,
            settler=self._settler,
            clock=ServerClock(),
            hooks=assembled.hooks,
            connect=self.connect,
            report_call=lambda _who, _begins: None,
        )
        self.intake = Intake(config, self.context, Engine(serve(assembled.served), self.context, threads=1))

    def connect(self, name: str = "me") -> QueueStream:
        self.streams.append(QueueStream(Wire(self.url), self.keys, name))
        return self.streams[-1]

    def step(self) -> None:
        self.intake._step()

    def settle(self, count: int) -> None:
        """The oldest ``count`` entries leave."""
        outcomes = []
        while not self._settler._queue.empty():
            outcomes += self._settler._queue.get() or []
        self._settler._settle(outcomes[:count])
        self._settler.put(outcomes[count:])


@pytest.fixture
def worker(redis_server: RedisServer, keys: QueueKeys) -> Iterator[Callable[..., Steps]]:
    made: list[Steps] = []

    def make(max_batch_size: int, **options: Any) -> Steps:
        made.append(Steps(redis_server.url, keys, max_batch_size, **options))
        return made[-1]

    yield make
    for steps in made:
        for stream in steps.streams:
            stream.wire.close()


def echoes(count: int, name: str) -> list[Request]:
    return [Request(f"{name}{number}", "echo", {"data": number}) for number in range(count)]


@pytest.mark.parametrize("lane", list(Lane))
def test_given_a_backlog_when_another_worker_hands_back_then_that_is_not_run_behind_all_of_it(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[[int], Steps], leftovers: Leftovers, lane: Lane
) -> None:
    leftovers.expected("the backlog is not run to its end")
    # Given a worker whose room is always taken, since there is more than it can do
    steps = worker(2)
    admit(redis_client, keys, echoes(60, "backlog"), lane=Lane.BULK)
    steps.step()
    assert steps.ledger.active == 4
    # And one that stops, and hands back what it had not run
    other = steps.connect("other")
    admit(redis_client, keys, echoes(1, "returned"), lane=lane)
    returned = other.read({keys.lane(lane): 100})[-1]
    assert other.hand_back(returned.lane, [(returned.stream_id, 0)], idle_ms=LEASE_MS) == 1
    admit(redis_client, keys, echoes(60, "more"), lane=Lane.BULK)
    # When it is time for a look while all room is taken, and then a batch ends
    steps.intake._reclaim_at = 0.0
    steps.step()
    steps.settle(2)
    for _ in range(2):
        steps.step()
    # Then what was handed back is among what is read next
    assert returned.place in {entry.place for entry in steps.read}
    assert steps.ledger.active <= 4


def test_given_live_requests_without_end_when_one_place_is_free_at_a_time_then_bulk_has_its_share(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[[int], Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = worker(1)
    admit(redis_client, keys, echoes(60, "live"), lane=Lane.INTERACTIVE)
    admit(redis_client, keys, echoes(60, "bulk"), lane=Lane.BULK)
    steps.step()
    while len(steps.read) < 5 * BULK_SHARE:
        steps.settle(1)
        steps.step()
        assert steps.ledger.active <= 2
    bulk = sum(entry.lane == keys.lanes[1] for entry in steps.read)
    assert 4 <= bulk <= 6


def test_given_a_suspect_when_another_worker_has_done_with_it_then_a_busy_one_reads_on(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[[int], Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    # Given a worker at something long, and a request that was run once by one that died
    steps = worker(2)
    dead = steps.connect("dead")
    dead.ensure_groups()
    admit(redis_client, keys, echoes(1, "suspect"))
    (suspect,) = dead.read({keys.lanes[0]: 1})
    admit(redis_client, keys, echoes(1, "long"))
    steps.step()
    redis_client.execute_command("XCLAIM", suspect.lane, GROUP, "dead", 0, suspect.stream_id, "IDLE", LEASE_MS)
    admit(redis_client, keys, echoes(1, "new"))
    steps.intake._reclaim_at = 0.0
    steps.step()
    assert len(steps.read) == 1  # it reads nothing new, as long as the other waits for its turn
    # When another worker has run that
    redis_client.xack(suspect.lane, GROUP, suspect.stream_id)
    redis_client.xdel(suspect.lane, suspect.stream_id)
    for _ in range(2):
        steps.step()
    # Then this one reads on, though it is not done with what it has
    assert (len(steps.read), steps.ledger.active) == (2, 2)


def test_given_a_key_that_cannot_be_written_when_a_request_was_run_then_its_dead_letter_holds_it(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[[int], Steps]
) -> None:
    steps = worker(2)
    (request,) = echoes(1, "unanswered")
    redis_client.set(keys.result(request.id), "somebody's own", px=60_000)
    admit(redis_client, keys, [request])
    steps.step()
    steps.settle(1)
    ((_, letter),) = redis_client.xrange(keys.dead)
    assert decode_request(letter[b"request"], keys)[0] == request


def with_small_batches(served: Served) -> Served:
    """A second pipeline, for which one batch of two on each of two cores is worth it."""
    small = {variant: replace(program, at_once=4) for variant, program in served.programs["echo"].items()}
    return replace(
        served, programs={**served.programs, "small": small}, picks={**served.picks, "small": served.picks["echo"]}
    )


def test_given_small_batches_then_two_for_each_call_are_held_and_of_other_requests_as_many_as_they_may(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[..., Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    # Given a worker that does not know yet what there is
    steps = worker(16, serve=with_small_batches)
    small = [Request(f"small{number}", "small", {"data": number}) for number in range(12)]
    admit(redis_client, keys, [*small, *echoes(60, "echo")], lane=Lane.INTERACTIVE)
    # When it reads, then no more than what runs at once, and as many that are prepared
    held = []
    while len(steps.read) < 12:
        steps.step()
        held.append(steps.ledger.active)
        steps.settle(4)
    assert max(held) == 8
    # And when others come it soon holds two batches of these, as it always did
    for _ in range(4):
        if steps.ledger.active < 32:
            steps.step()
    assert steps.ledger.active == 32


def test_given_a_bulk_run_of_small_batches_then_live_requests_of_large_ones_neither_swell_it_nor_wait_for_it(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[..., Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = worker(16, serve=with_small_batches)
    bulk = [Request(f"bulk{number}", "small", {"data": number}) for number in range(200)]
    admit(redis_client, keys, bulk, lane=Lane.BULK)
    steps.step()
    for turn in range(5):
        # When live requests come again and again, each is read at once, though bulk has taken all the room
        admit(redis_client, keys, [Request(f"live{turn}", "echo", {"data": turn})], lane=Lane.INTERACTIVE)
        for _ in range(4):
            if f"live{turn}" not in {entry.id for entry in steps.read}:
                steps.step()
        assert steps.read[-1].id == f"live{turn}"
        # And of the bulk run no more is held than its own batches are worth
        assert steps.ledger.active_in(keys.lanes[1]) <= 8
        steps.settle(3)
        steps.step()


def test_given_a_live_request_of_large_batches_when_a_bulk_run_of_small_ones_begins_then_it_does_not_swell_it(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[..., Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = worker(16, serve=with_small_batches)
    admit(redis_client, keys, echoes(1, "live"))
    steps.step()
    assert steps.ledger.active == 1
    bulk = [Request(f"bulk{number}", "small", {"data": number}) for number in range(200)]
    admit(redis_client, keys, bulk, lane=Lane.BULK)
    for _ in range(3):
        steps.step()
        assert steps.ledger.active_in(keys.lanes[1]) <= 8
    assert steps.ledger.active_in(keys.lanes[1]) > 0


@pytest.mark.parametrize(("size", "bulk", "live"), [(16, "small", 28), (16, "echo", 4), (1, "echo", 1)])
def test_given_no_room_beside_a_bulk_run_when_a_live_request_leaves_then_the_next_does_not_wait_for_bulk_ones(
    redis_client: redis.Redis,
    keys: QueueKeys,
    worker: Callable[..., Steps],
    leftovers: Leftovers,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    bulk: str,
    live: int,
) -> None:
    leftovers.expected("the bulk run goes on")
    monkeypatch.setattr(intake, "RECLAIM_EVERY_S", 60.0)
    steps = worker(size, serve=with_small_batches)
    ledger = steps.ledger
    # Given a bulk run that has all its room, and beside it as many live requests as are read there
    admit(redis_client, keys, [Request(f"b{number}", bulk, {"data": 1}) for number in range(99)], lane=Lane.BULK)
    while steps.intake._room() > 0:
        steps.step()
    admit(redis_client, keys, echoes(live, "live"))
    while steps.intake._room_beside_bulk() > 0:
        steps.step()
    assert ledger.active_in(keys.lanes[0]) == live
    # When one of these is answered while there is no room for another
    admit(redis_client, keys, echoes(1, "next"))
    reading = threading.Thread(target=steps.step)
    reading.start()
    wait_until(lambda: ledger._wanted, 10, "a wait for room")
    ledger.remove([one for one in ledger.held() if one.place[0] == keys.lanes[0]][:1])
    # Then nobody waits until a batch of the run has ended
    reading.join(10)
    waits = reading.is_alive()
    ledger.remove(ledger.held() if waits else [])
    reading.join(10)
    assert not waits
    for _ in range(4):
        if steps.read[-1].id != "next0":
            steps.step()
    assert steps.read[-1].id == "next0"


@pytest.mark.parametrize(("pipeline", "full"), [("echo", False), ("small", True)])
def test_given_requests_of_large_batches_then_a_worker_is_not_full_with_as_many_as_small_ones_hold(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[..., Steps], pipeline: str, full: bool
) -> None:
    steps = worker(16, serve=with_small_batches)
    admit(redis_client, keys, [Request(f"one{number}", pipeline, {"data": number}) for number in range(6)])
    while len(steps.read) < 6:
        steps.step()
    busy_s, full_s = steps.ledger.times()
    steps.settle(6)
    assert busy_s > 0
    assert (full_s > 0) is full


@pytest.mark.parametrize(
    ("size", "held", "live", "bulk", "asked"),
    [
        (2, 0, 1, 0, {False}),
        (2, 0, 5, 0, {True}),
        (8, 0, 1, 40, {False, True}),
        (8, 0, 40, 40, {True}),
        (1, 1, 1, 0, {False}),
    ],
    ids=["room for all", "more live ones", "a live one and a bulk run", "both have their share", "one more place"],
)
def test_given_a_read_then_more_is_only_taken_to_wait_in_the_lanes_that_filled_their_share(
    redis_client: redis.Redis,
    keys: QueueKeys,
    worker: Callable[[int], Steps],
    leftovers: Leftovers,
    size: int,
    held: int,
    live: int,
    bulk: int,
    asked: set[bool],
) -> None:
    leftovers.expected("the backlog is not run to its end")
    steps = worker(size)
    admit(redis_client, keys, echoes(held, "held"))
    if held:
        steps.step()
    said: dict[str, set[bool]] = {lane: set() for lane in keys.lanes}

    def hopeless(works: list[Work], *, contended: bool) -> list[Work]:
        for work in works:
            said[work.entry.lane].add(contended)
        return []

    steps.intake._engine.forecast.hopeless = hopeless  # type: ignore[assignment, method-assign]

    def send() -> None:
        if held:  # the other comes when there is nothing, and the worker waits for it
            wait_until(lambda: redis_client.info("clients")["blocked_clients"], 10, "a blocked reader")
        admit(redis_client, keys, echoes(live, "live"))

    admit(redis_client, keys, echoes(bulk, "bulk"), lane=Lane.BULK)
    sending = threading.Thread(target=send)
    sending.start()
    if not held:
        sending.join()
    while len(steps.read) < held + 1:
        steps.step()
    sending.join()
    assert said[keys.lanes[0]] | said[keys.lanes[1]] == asked
    if live < bulk:
        assert said[keys.lanes[0]] == {False}


@pytest.mark.parametrize(
    ("others_idle", "ttl_ms", "count", "returned"),
    [(True, 60_000, 1, True), (False, 60_000, 1, False), (True, 1_500, 1, False), (True, 60_000, 5, False)],
    ids=["others idle", "nobody idle", "no time for another", "more than there is room for"],
)
def test_given_no_time_here_then_another_worker_that_is_idle_has_it_and_else_it_is_told_so_at_once(
    redis_client: redis.Redis,
    keys: QueueKeys,
    worker: Callable[[int], Steps],
    leftovers: Leftovers,
    others_idle: bool,
    ttl_ms: int,
    count: int,
    returned: bool,
) -> None:
    if returned or count > 4:
        leftovers.expected("what is handed back, or not read, is not run")
    steps = worker(2)
    steps.intake._engine.forecast.hopeless = lambda works, **_: list(works)  # type: ignore[method-assign]
    if others_idle:
        steps.context.others_idle.set()
    requests = echoes(count, "late")
    admit(redis_client, keys, requests, ttl_ms=ttl_ms)
    steps.step()
    steps.settle(count)
    assert steps.ledger.active == 0
    pending = redis_client.xpending_range(keys.lanes[0], GROUP, "-", "+", 10)
    if returned:
        assert [(one["consumer"], one["times_delivered"]) for one in pending] == [(b"handback", 0)]
        # It rests no time: whoever looks next has it
        (taken,) = (
            steps.connect("other")
            .reclaim(keys.lanes[0], lease_ms=LEASE_MS, room=1, max_deliveries=3, solo=False)
            .deliveries
        )
        assert taken.deliveries == 1
    else:
        assert pending == []
        (raw,) = redis_client.lrange(keys.result(requests[0].id), 0, -1)
        error = decode_result(raw).error
        assert error is not None
        assert error.code is ErrorCode.EXPIRED


def test_given_a_pause_while_cancels_are_asked_for_then_the_deadline_is_no_sooner_for_it(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[[int], Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = worker(2)
    steps.step()
    real, paused = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + paused[0])

    def cancelled(ids: Sequence[str]) -> list[bool]:
        paused[0] += 3.0  # of the process, or of Redis
        return [False] * len(ids)

    left: list[float] = []

    def hopeless(works: list[Work], **_: bool) -> list[Work]:
        left.extend(work.deadline - time.monotonic() for work in works)
        return []

    steps.intake._stream.cancelled = cancelled  # type: ignore[method-assign]
    steps.intake._engine.forecast.hopeless = hopeless  # type: ignore[assignment, method-assign]
    admit(redis_client, keys, echoes(1, "one"), ttl_ms=10_000)
    while not left:
        steps.step()
    steps.settle(1)
    assert left[0] >= 6.5  # of ten seconds, less three


def test_given_a_connection_lost_while_handing_back_then_the_request_rests_no_lease_and_counts_no_delivery(
    redis_client: redis.Redis, keys: QueueKeys, worker: Callable[[int], Steps], leftovers: Leftovers
) -> None:
    leftovers.expected("what is handed back is not run")
    steps = worker(2)
    steps.context.others_idle.set()
    steps.intake._engine.forecast.hopeless = lambda works, **_: list(works)  # type: ignore[method-assign]
    steps.step()
    steps.intake._doubt_until = 0.0  # it was connected long ago
    real = steps.intake._stream.hand_back

    def lost(lane: str, entries: Sequence[tuple[str, int]], *, idle_ms: int) -> int:
        if not entries:
            return 0
        steps.intake._stream.hand_back = real  # type: ignore[method-assign]
        raise ConnectionError("lost")

    steps.intake._stream.hand_back = lost  # type: ignore[assignment, method-assign]
    admit(redis_client, keys, echoes(1, "late"))
    steps.step()
    assert len(steps.read) == 1
    # When it goes on, then it finds in its hands what it had not given back, and whoever looks next has it
    steps.step()
    assert [entry.deliveries for entry in steps.read] == [1, 1]


def test_given_a_worker_paused_while_it_waits_for_requests_then_what_another_has_taken_over_is_not_run(
    redis_client: redis.Redis,
    keys: QueueKeys,
    worker: Callable[[int], Steps],
    leftovers: Leftovers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leftovers.expected("what another has taken over is not run here")
    steps = worker(2)
    steps.step()
    real, paused, wait = time.monotonic, [0.0], steps.intake._stream.wait
    monkeypatch.setattr(time, "monotonic", lambda: real() + paused[0])

    def slow(*args: Any, **options: Any) -> list[Delivery]:
        """Its answers are there, and read a minute later."""
        found = wait(*args, **options)
        for one in found[:1]:
            redis_client.execute_command("XCLAIM", one.lane, GROUP, "other", 0, one.stream_id)
        paused[0] += 60.0
        return found

    steps.intake._stream.wait = slow  # type: ignore[method-assign]
    steps.intake._stream.read = lambda _: []  # type: ignore[method-assign]  (the first comes while it waits)
    admit(redis_client, keys, echoes(2, "one"), ttl_ms=600_000)
    steps.step()
    (held,) = steps.read
    (taken,) = (
        one for one in redis_client.xpending_range(keys.lanes[0], GROUP, "-", "+", 9) if one["consumer"] != b"me"
    )
    assert held.stream_id != taken["message_id"].decode()
    steps.settle(1)


def test_given_living_workers_then_the_supervisor_tells_its_own_whether_another_is_idle(
    redis_client: redis.Redis, keys: QueueKeys, redis_server: RedisServer
) -> None:
    said: list[bool] = []

    class Told:
        name, facts, stats = "ours", {}, {"settled": 0, "held": 0, "at": 1.0, "busy_s": 0, "full_s": 0, "loads": []}
        hear_of_idle = said.append

    fleet = Fleet(WorkerConfig(redis_url=redis_server.url, queue=keys.queue, prefix=keys.prefix))
    redis_client.hset(keys.fleet, "v", 1)
    wire = Wire(redis_server.url)
    for held in ("3", "0", "nonsense"):
        wire.call("heartbeat", [keys.workers, keys.worker("other")], ["other", 5_000, "held", held, "rate", "2.5"])
        fleet.heartbeat([Told()])  # type: ignore[list-item]
    assert said == [False, True, False]
    assert redis_client.hget(keys.fleet, "rate") == b"2.5"
    fleet.close()
    wire.close()
