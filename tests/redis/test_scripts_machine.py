"""All scripts at once against a model: whatever the order, an accepted request is queued or answered, never neither.

The model is a page of Python; hypothesis looks for a sequence of calls after which Redis holds something else.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from clipfleet.schemas.keys import QueueKeys
from support.script_queue import LEASE_MS, ScriptQueue

WORKERS = st.sampled_from(["w1", "w2", "w3"])
MAX_DELIVERIES = 3


@dataclass
class Entry:
    stream_id: str
    size: int  # 0 = a bare XADD
    lane: int
    owner: str = ""  # nobody yet
    deliveries: int = 0
    overdue: bool = False
    answers: int = 0

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(map(int, self.stream_id.split("-")))


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, client) -> None:
        super().__init__()
        self.queue = ScriptQueue(client, QueueKeys(f"q{secrets.token_hex(4)}"))
        self.queue.group()
        self.queue.limits(capacity=12, bulk_capacity=8, max_queue_bytes=60)
        self.entries: list[Entry] = []

    def open(self, lane: int | None = None) -> list[Entry]:
        return [one for one in self.entries if not one.answers and lane in {None, one.lane}]

    def held(self, worker: str, lane: int = 0) -> list[Entry]:
        return [one for one in self.open(lane) if one.owner == worker]

    def result_key(self, entry: Entry) -> str:
        return self.queue.keys.result(f"{entry.lane}-{entry.stream_id}")

    def bytes_held(self) -> int:
        return sum(one.size for one in self.open())

    @initialize(deliveries=st.lists(st.integers(1, 3), min_size=2, max_size=5))
    def start_in_the_midst_of_it(self, deliveries):
        """A dead worker's entries, a living one's, and some that wait: few sequences from nothing get so far."""
        self.admit([1] * len(deliveries), 0)
        self.deliver("w1", 0, len(deliveries))
        for one, number in zip(self.entries, deliveries, strict=True):
            one.deliveries = number
        self.die_or_stop("w1")
        self.admit([2, 3, 4], 0)
        self.admit([5, 6], 1)
        self.deliver("w2", 0, 2)
        self.deliver("w3", 1, 1)

    @rule(sizes=st.lists(st.integers(1, 15), min_size=1, max_size=5), lane=st.integers(0, 1))
    def admit(self, sizes, lane):
        answer = self.queue.admit(*sizes, lane=("interactive", "bulk")[lane])
        for size, stream_id in zip(sizes, answer.answers, strict=True):
            full = len(self.open()) >= 12 or (lane and len(self.open(1)) >= 8) or self.bytes_held() + size > 60
            if full:
                assert set(answer.answers[answer.accepted :]) == {"queue_full"}
                return
            self.entries.append(Entry(stream_id, size, lane))
        assert answer.accepted == len(sizes)

    @rule(lane=st.integers(0, 1))
    def add_barely(self, lane):
        stream_id = self.queue.redis.xadd(self.queue.keys.lanes[lane], {"m": b"m"}).decode()
        self.entries.append(Entry(stream_id, 0, lane))

    @rule(worker=WORKERS, lane=st.integers(0, 1), limit=st.integers(1, 4))
    def deliver(self, worker, lane, limit):
        waiting = sorted((one for one in self.open(lane) if not one.owner), key=lambda one: one.order)[:limit]
        assert self.queue.deliver(worker, lane, limit) == [one.stream_id for one in waiting]
        for one in waiting:
            one.owner, one.deliveries = worker, 1

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), owner=st.just("") | WORKERS)
    def settle(self, data, owner):
        entry = data.draw(st.sampled_from(self.entries))
        answer = self.queue.settle(
            entry.stream_id,
            size=entry.size,
            owner=owner,
            lane=entry.lane,
            reply_to=self.result_key(entry),
        )
        if entry.answers or not entry.owner:
            assert answer == 0
        elif owner not in {"", entry.owner}:
            assert answer == -1
        else:
            assert answer == 1
            entry.answers = 1

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), lane=st.integers(0, 1))
    def settle_many(self, data, lane):
        mine = [one for one in self.entries if one.lane == lane]
        if not mine:
            return
        chosen = data.draw(st.lists(st.sampled_from(mine), min_size=1, max_size=4))
        items = [(one.stream_id, one.size, self.result_key(one), b"result") for one in chosen]
        expected = []
        for one in chosen:  # the same one twice, too: the second is settled already
            expected.append(int(bool(one.owner) and not one.answers))
            one.answers |= expected[-1]
        assert self.queue.settle_many(*items, lane=lane) == expected

    @rule(worker=WORKERS)
    def die_or_stop(self, worker):
        for one in self.held(worker):
            self.queue.age(one.stream_id, consumer=worker, idle_ms=LEASE_MS, deliveries=one.deliveries)
            one.overdue = True

    @rule(worker=WORKERS, room=st.integers(0, 4), solo=st.booleans())
    def reclaim(self, worker, room, solo):
        expected, left, places = [], 0, room
        at, resume = "-", None
        for one in sorted((each for each in self.open(0) if each.overdue), key=lambda each: each.order):
            if 1 <= one.deliveries < MAX_DELIVERIES:  # a suspect: first and alone, or not now
                if not solo or expected:
                    left += 1
                    at = "(" + one.stream_id
                    continue
                places = 1
            if len(expected) < places:
                expected.append(one)
            else:
                resume = resume or at
            at = "(" + one.stream_id
        answer = self.queue.reclaim(worker, room=room, solo=solo)
        assert answer == (resume or "-", left, [(one.stream_id, one.deliveries + 1) for one in expected])
        for one in expected:
            one.owner, one.deliveries, one.overdue = worker, one.deliveries + 1, False

    @rule(worker=WORKERS)
    def renew(self, worker):
        ids = [one.stream_id for one in self.entries if one.lane == 0]
        mine = self.held(worker)
        kept = {one.stream_id for one in mine}
        assert self.queue.renew(worker, *ids) == [each for each in ids if each not in kept]
        for one in mine:
            one.overdue = False

    @rule(worker=WORKERS, unrun=st.booleans())
    def hand_back(self, worker, unrun):
        mine = self.held(worker)
        pairs = [(one.stream_id, one.deliveries - unrun) for one in self.open(0) if one.owner]
        assert self.queue.handback(worker, *pairs) == len(mine)
        for one in mine:
            one.owner, one.deliveries, one.overdue = "handback", one.deliveries - unrun, True

    @rule(worker=WORKERS)
    def leave(self, worker):
        busy = sum(bool(self.held(worker, lane)) for lane in (0, 1))
        assert self.queue.leave(worker) == busy

    @invariant()
    def redis_holds_what_the_model_holds(self):
        for lane in (0, 1):
            owned = {one.stream_id: (one.owner, one.deliveries) for one in self.open(lane) if one.owner}
            assert self.queue.pending(lane) == owned
        assert self.queue.lengths() == (len(self.open(0)), len(self.open(1)))
        assert (self.queue.bytes_held() or 0) == self.bytes_held()

    @invariant()
    def each_request_is_queued_or_answered_once(self):
        for one in self.entries:
            assert self.queue.redis.llen(self.result_key(one)) == one.answers

    def teardown(self):
        self.queue.drain()
        assert self.queue.bytes_held() is None


def test_given_any_order_of_calls_when_played_then_redis_and_the_model_agree(redis_client):
    run_state_machine_as_test(
        lambda: QueueMachine(redis_client),
        settings=settings(
            max_examples=60,
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.generate],  # twenty calls can be read; making them fewer would take minutes
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
