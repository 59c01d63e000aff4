"""What the queue costs: a no-op against a bare script, and a single call on an idle fleet."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bench import bare, ours
from bench.harness import line, process, server, single
from clipfleet.cli.local.redis import free_port
from clipfleet.producer import Client

if TYPE_CHECKING:
    import argparse

IN_FLIGHT, DATA = 256, b"x" * 32


def run(options: argparse.Namespace) -> None:
    port = free_port()
    with server(port) as client:
        bare.prepare(client)
        url = f"redis://127.0.0.1:{port}"
        with (
            process(sys.executable, "-m", "bench.bare", str(port)),
            process(sys.executable, "-m", "bench.ours", url),
            Client(url, queue="clip", wait_for_worker=True) as fleet,
        ):
            fleet.run("echo", {"data": DATA})
            limits, rates, ratios, extra = [], [], [], []
            for number in range(options.rounds):
                turns = [
                    lambda: limits.append(options.count / bare.produce(client, options.count, IN_FLIGHT, DATA)),
                    lambda: rates.append(options.count / ours.produce(fleet, options.count, IN_FLIGHT, DATA)),
                ]
                for turn in turns if number % 2 else reversed(turns):
                    turn()
                ratios.append(rates[-1] / limits[-1])
                one = single(lambda: fleet.run("echo", {"data": DATA}), 200)
                least = single(lambda: bare.produce(client, 1, 1, DATA), 200)
                extra.append((one - least) * 1000)
            line("bare script, no-op requests/s", limits, "{:,.0f}")
            line("clipfleet, the same", rates, "{:,.0f}")
            line("clipfleet / bare", ratios, "{:.2f}")
            line("single call on an idle fleet: more by, ms", extra, "{:.2f}")
