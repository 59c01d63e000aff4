"""What the queue costs: a no-op through ours, through a bare script, and through the task queues of the field."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import bare, ours
from bench.environments import CannotInstall
from bench.harness import cpu_s, in_turn, process, server, singles
from bench.queue_peers import IN_FLIGHT, PEERS, PeerFailed, pinned, quickest, started
from bench.results import Part
from bench.stats import percentile
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import Client

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import redis

DATA = b"x" * 32
MOST_S = 4.0  # about as long as a peer's round may take
OURS, BARE = "clipfleet", "bare script"
ARRIVAL = f"closed loop, {IN_FLIGHT} in flight"


class Race:
    """Rounds of each contestant: seconds, latencies, processor seconds. Who fails is out, with the reason."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.rates: dict[str, list[float]] = {}
        self.costs: dict[str, list[float]] = {}
        self.latencies: dict[str, list[float]] = {}
        self.sizes: dict[str, dict[int, int]] = {}
        self.settings: dict[str, str] = {}

    def turn(self, name: str, count: int, run: Callable[[int], dict[str, Any]]) -> Callable[[int], None]:
        """A contestant's turn of a round."""

        def once(_: int) -> None:
            if name in self.part.skipped:
                return
            try:
                found = run(count)
            except PeerFailed as error:
                self.part.skip(name, str(error))
                return
            self.rates.setdefault(name, []).append(count / found["seconds"])
            self.costs.setdefault(name, []).append(found["cpu_s"] / count * 1e6)
            self.latencies.setdefault(name, []).extend(found["latencies"])

        return once

    def report(self, name: str, note: str = "") -> None:
        """Its figures."""
        latencies = self.latencies[name]
        self.part.add(
            f"{name}: no-op requests",
            self.rates[name],
            "requests/s",
            arrival=ARRIVAL,
            batches=self.sizes.get(name, {}),
            p50_ms=percentile(latencies, 50) * 1000,
            p99_ms=percentile(latencies, 99) * 1000,
            note=note,
        )
        self.part.add(f"{name}: processor time, producer and worker", self.costs[name], "us/request", arrival=ARRIVAL)


def run(options: argparse.Namespace) -> Part:
    """A closed loop of no-ops, 32 bytes each, all results received."""
    part = Part(
        "queue",
        "What the queue costs",
        "A no-op with 32 bytes of input: one producer process with 256 requests in flight, one worker, every result "
        "received, the same redis-server for all. The bare script is the least that can be done with redis-py and "
        "msgpack: batches of 64, one inbox, pipelined settling, no lease, no validation. Each of the others runs as "
        "its documentation says for many short tasks, in the full form with the quickest of a few settings; these, "
        "with the reasons, are in `bench/peers/` and `bench/queue_peers.py`.",
    )
    port = free_port()
    with server(port) as client, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        race = Race(part)
        # Peers first: while their settings are tried nobody else needs to be there.
        theirs = _peers(race, port, stack, Path(folder), options)
        turns = [*mine(race, client, stack, Path(folder), options.count), *theirs]
        in_turn(options.rounds, turns)
        race.report(BARE)
        race.report(OURS)
        peers = {name: rates for name, rates in race.rates.items() if name not in (OURS, BARE, *part.skipped)}
        for peer in PEERS:
            if peer.name in peers:
                said = [f"{name} {version}" for name, version in pinned(peer).items()]
                race.report(peer.name, ", ".join([*said, race.settings[peer.name]]))
        part.ratio("clipfleet / bare script", race.rates[OURS], race.rates[BARE], target=">= 0.5", arrival=ARRIVAL)
        part.ratio("processor time: clipfleet / bare script", race.costs[OURS], race.costs[BARE], arrival=ARRIVAL)
        for name, rates in peers.items():
            part.ratio(f"clipfleet / {name}", race.rates[OURS], rates, arrival=ARRIVAL)
        if peers:
            fastest = [max(rates) for rates in zip(*peers.values(), strict=True)]
            part.ratio("clipfleet / the fastest of them", race.rates[OURS], fastest, target=">= 20", arrival=ARRIVAL)
    return part


def mine(race: Race, client: redis.Redis, stack: ExitStack, folder: Path, count: int) -> list[Callable[[int], None]]:
    """The turns of the bare script and of ours."""
    bare.prepare(client)
    url = f"redis://127.0.0.1:{client.get_connection_kwargs()['port']}"
    limit = stack.enter_context(process(sys.executable, "-m", "bench.bare", url.rpartition(":")[2]))
    sizes = ours.Batches(folder / "batches")
    worker = stack.enter_context(ours.worker(url, folder / "batches"))
    fleet = stack.enter_context(Client(url, wait_for_worker=True))
    fleet.run("echo", {"data": DATA})
    bare.produce(client, 1, 1, DATA)

    def timed(pid: int, work: Callable[[], tuple[float, list[float]]]) -> dict[str, Any]:
        before = cpu_s(pid) + _own_cpu_s()
        seconds, latencies = work()
        return {"seconds": seconds, "latencies": latencies, "cpu_s": cpu_s(pid) + _own_cpu_s() - before}

    def fleet_round(many: int) -> dict[str, Any]:
        sizes.new(ours.SETTLED)
        found = timed(worker.pid, lambda: ours.produce(fleet, many, IN_FLIGHT, DATA))
        all_sizes = race.sizes.setdefault(OURS, {})
        for size, number in sizes.new(ours.SETTLED).items():
            all_sizes[size] = all_sizes.get(size, 0) + number
        return found

    return [
        race.turn(BARE, count, lambda many: timed(limit.pid, lambda: bare.produce(client, many, IN_FLIGHT, DATA))),
        race.turn(OURS, count, fleet_round),
    ]


def _own_cpu_s() -> float:
    return time.process_time()


def _peers(
    race: Race, port: int, stack: ExitStack, folder: Path, options: argparse.Namespace
) -> list[Callable[[int], None]]:
    """The turns of those that run here."""
    turns = []
    for peer in PEERS:
        if options.peers is not None and peer.name not in options.peers:
            continue
        try:
            setting = quickest(peer, port, folder) if options.full else next(iter(peer.settings))
            running = stack.enter_context(started(peer, setting, port, folder))
        except (CannotInstall, PeerFailed) as error:
            race.part.skip(peer.name, str(error))
            continue
        race.settings[peer.name] = setting
        # Rates need no equal counts, and a slow one on a slow machine must not take all the time there is.
        count = min(options.peer_count, max(IN_FLIGHT * 2, int(running.rate * MOST_S)))
        turns.append(race.turn(peer.name, count, lambda many, running=running: running.round(many, IN_FLIGHT)))
    return turns


def single(options: argparse.Namespace) -> Part:
    """One call at a time on an idle fleet."""
    part = Part(
        "single",
        "A single call on an idle fleet",
        "One no-op at a time, `max_delay` 0: what a caller waits, beside the same round trip by the bare script.",
    )
    port = free_port()
    times: dict[str, list[float]] = {OURS: [], BARE: []}
    medians: dict[str, list[float]] = {OURS: [], BARE: []}
    with (
        server(port) as client,
        process(sys.executable, "-m", "bench.bare", str(port)),
        ours.worker(f"redis://127.0.0.1:{port}"),
        Client(f"redis://127.0.0.1:{port}", wait_for_worker=True) as fleet,
    ):
        bare.prepare(client)
        fleet.run("echo", {"data": DATA})
        bare.produce(client, 1, 1, DATA)
        calls = {
            OURS: lambda: fleet.run("echo", {"data": DATA}),
            BARE: lambda: bare.produce(client, 1, 1, DATA),
        }

        def turn(name: str) -> Callable[[int], None]:
            def once(_: int) -> None:
                found = singles(calls[name], options.calls)
                times[name] += found
                medians[name].append(percentile(found, 50) * 1000)

            return once

        in_turn(options.rounds, [turn(OURS), turn(BARE)])
    for name in (BARE, OURS):
        part.add(
            f"{name}: median of a call",
            medians[name],
            "ms",
            arrival="one at a time",
            p50_ms=percentile(times[name], 50) * 1000,
            p99_ms=percentile(times[name], 99) * 1000,
        )
    more = [mine - limit for mine, limit in zip(medians[OURS], medians[BARE], strict=True)]
    part.add("clipfleet: more than the bare script by", more, "ms", target="<= 1", arrival="one at a time")
    return part
