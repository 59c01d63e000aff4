"""The batch rule in a simulated worker: reader, decode pool of two, one device; the clock is the simulation's."""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.batching import BatchPolicy, BatchQueue, Launch, Reason, Wait


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
        self.latencies: list[float] = []
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
                self.latencies += [now - self.arrivals[item] for item in items]
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


# The delay that is chosen by what was learnt ------------------------------------------------------------------------

TEXT, IMAGE, GPU = (0.001, 0.005), (0.012, 0.004), (0.0002, 0.02)


def mean_latency(policy: BatchPolicy, run: tuple[float, float], *, rate: float, burst: int) -> float:
    """Of 2,000 items that come in bursts, each decoded in 4 ms on a pool of two."""
    chance, at, arrivals = random.Random(7), 0.0, []
    while len(arrivals) < 2_000:
        at += chance.expovariate(rate / burst)
        arrivals += [at] * burst
    simulation = Simulation(BatchQueue(policy), arrivals, decode=[0.004], held=128, run=run)
    simulation.play()
    return statistics.mean(simulation.latencies)


@pytest.mark.parametrize("run", [TEXT, IMAGE, GPU], ids=["texts", "pictures", "a gpu"])
@pytest.mark.parametrize("burst", [1, 16])
@pytest.mark.parametrize("rate", [5, 50, 300])
def test_given_auto_then_it_is_no_worse_at_any_load_than_no_batching_nor_than_full_batches(
    run: tuple[float, float], burst: int, rate: float
) -> None:
    auto = mean_latency(BatchPolicy(64, 0.0, auto=True), run, rate=rate, burst=burst)
    # 2 %: whether to wait is decided by means, and one that comes late was waited for in vain.
    assert auto <= 1.02 * mean_latency(BatchPolicy(64, 0.0), run, rate=rate, burst=burst)
    assert auto <= 1.02 * mean_latency(BatchPolicy(64, 0.05), run, rate=rate, burst=burst)
    if burst == 1:  # of a burst, a run of one each answers some sooner and the last one far later
        assert auto <= 1.02 * mean_latency(BatchPolicy(1, 0.0), run, rate=rate, burst=burst)


def test_given_auto_when_a_sibling_is_near_and_a_run_dear_then_it_is_waited_for_and_no_longer() -> None:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(64, 0.0, auto=True))
    for n in (1, 8, 2):
        queue.record_run(n, 0.02 + 0.001 * n)
    first, *_ = queue.announce(4, now=0.0)
    assert queue.add(1, enqueued_at=0.0, now=0.002, ticket=first)
    # A gap is 2 ms: 1 item x 3 ms for the next is less than 20 ms
    assert queue.next_batch(0.002) == Wait(0.006)
    assert queue.next_batch(0.006) == Launch(Reason.IDLE)
    # and 7 x 3 ms is more, whatever else comes
    assert queue.add_all(range(2, 8), enqueued_at=0.002, now=0.003)
    assert queue.next_batch(0.003) == Launch(Reason.IDLE)


def test_given_auto_when_the_last_sibling_is_rejected_then_nobody_waits() -> None:
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(64, 0.0, auto=True))
    queue.record_run(1, 0.02)
    first, second = queue.announce(2, now=0.0)
    queue.add(1, enqueued_at=0.0, now=0.002, ticket=first)
    assert queue.next_batch(0.002) == Wait(0.006)
    assert queue.retract(second, now=0.003)
    assert queue.next_batch(0.003) == Launch(Reason.IDLE)
