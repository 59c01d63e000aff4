"""The batch rule in a simulated worker: reader, decode pool of two, one device; the clock is the simulation's."""

from __future__ import annotations

import heapq
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.batching import BatchPolicy, BatchQueue, Launch


class Simulation:
    """Reads `arrivals`, at most `held` at once, decodes them on a pool of two and runs batches on one device."""

    def __init__(
        self, queue: BatchQueue[int], arrivals: list[float], *, decode: list[float], held: int, run: tuple[float, float]
    ) -> None:
        self.queue, self.arrivals, self.decode, self.held, self.run = queue, arrivals, decode, held, run
        self.events: list[tuple[float, int, str, list[int]]] = []
        self.serial = 0
        self.unread = deque(range(len(arrivals)))
        self.undecoded: deque[tuple[int, int]] = deque()
        self.aged: dict[int, float] = {}
        self.decoded_at: dict[int, float] = {}
        self.inside, self.pool, self.free, self.idle_since = 0, 2, True, 0.0
        self.batches: list[list[int]] = []
        self.late = 0.0

    def at(self, when: float, what: str, items: list[int]) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when, self.serial, what, items))

    def play(self) -> None:
        for when in sorted(set(self.arrivals)):
            self.at(when, "look", [])
        while self.events:
            now, _, what, items = heapq.heappop(self.events)
            if what == "decoded":
                self.decoded(now, *items)
            elif what == "ran":
                self.ran(now, len(items))
            self.read(now)
            self.launch(now)

    def decoded(self, now: float, item: int, ticket: int) -> None:
        self.pool += 1
        self.decoded_at[item] = now
        self.queue.add(item, enqueued_at=self.aged[item], now=now, ticket=ticket)

    def ran(self, now: float, size: int) -> None:
        self.free, self.inside, self.idle_since = True, self.inside - size, now
        self.queue.record_run(size, self.run[0] * size + self.run[1])

    def read(self, now: float) -> None:
        while self.unread and self.arrivals[self.unread[0]] <= now and self.inside < self.held:
            self.inside += 1
            (ticket,) = self.queue.announce(now=now)
            item = self.unread.popleft()
            self.aged[item] = max(self.arrivals[item], now - self.queue.policy.max_delay_s)  # clamped, as in a worker
            self.undecoded.append((item, ticket))
        while self.pool and self.undecoded:
            self.pool -= 1
            item, ticket = self.undecoded.popleft()
            self.at(now + self.decode[item % len(self.decode)], "decoded", [item, ticket])

    def launch(self, now: float) -> None:
        decision = self.queue.next_batch(now, device_free=self.free)
        if isinstance(decision, Launch):
            batch = self.queue.take().items
            for item in batch:
                due = max(self.aged[item] + self.queue.policy.max_delay_s, self.decoded_at[item], self.idle_since)
                self.late = max(self.late, now - due)
            self.batches.append(batch)
            self.free = False
            self.at(now + self.run[0] * len(batch) + self.run[1], "ran", batch)
        elif decision.until is not None:
            self.at(decision.until, "look", [])


@pytest.mark.parametrize("decode_ms", [1.0, 6.0, 20.0, 60.0])
@pytest.mark.parametrize("run", [(0.0005, 0.1), (0.005, 0.01)])
def test_given_a_backlog_and_slow_decode_then_batches_are_nearly_full(
    decode_ms: float, run: tuple[float, float]
) -> None:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(64, 0.05))
    simulation = Simulation(queue, [0.0] * 10_000, decode=[decode_ms / 1000, decode_ms / 800], held=128, run=run)
    simulation.play()
    assert sorted(item for batch in simulation.batches for item in batch) == list(range(10_000))
    assert 10_000 / len(simulation.batches) >= 0.9 * 64


@settings(max_examples=60, deadline=None)
@given(
    gap=st.floats(0.001, 0.2),
    loads=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=7),
    run=st.tuples(st.floats(0, 0.001), st.floats(0.001, 0.1)),
)
def test_given_a_steady_trickle_that_decode_keeps_up_with_then_items_wait_for_those_in_decode_alone(
    gap: float, loads: list[float], run: tuple[float, float]
) -> None:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(64, 0.05))
    decode = [load * gap for load in loads]  # at most two gaps each, so one of the two decoders is always free
    simulation = Simulation(queue, [n * gap for n in range(200)], decode=decode, held=128, run=run)
    simulation.play()
    assert sum(map(len, simulation.batches)) == 200
    assert simulation.late <= min(max(decode), 0.05 + queue.horizon_s) + 1e-9
