"""What a request costs a worker process, step by step, without sockets and threads: us, the least of many rounds.

python -m bench.worker_cost [ROUNDS]

As `client_cost`: one process and no waiting, so that other work on the machine disturbs single rounds alone.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

import hiredis

from bench.client_cost import Clock, parse, reply
from clipfleet.pipeline.engine import Engine
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.request import encode_request, new_id
from clipfleet.worker.assembly import assemble
from clipfleet.worker.clock import ServerClock
from clipfleet.worker.config import NO_MODEL, WorkerConfig
from clipfleet.worker.context import Context
from clipfleet.worker.control import Channel
from clipfleet.worker.intake import Intake
from clipfleet.worker.ledger import Ledger
from clipfleet.worker.process import collect_seldom
from clipfleet.worker.report import Reporter
from clipfleet.worker.settler import Settler
from clipfleet.worker.stream import QueueStream

COUNT, DATA = 128, b"x" * 32
KEYS = QueueKeys()
ENTERED_MS = 1_795_999_999_999


class Wire:
    """Answers as Redis would, and packs what it is told as a connection does."""

    def __init__(self) -> None:
        self.entries = b""
        self.settled = 0

    def batch(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        b"".join(map(hiredis.pack_command, commands))
        return [parse(self._answer(command)) for command in commands]

    def command(self, *command: Any) -> Any:
        return self.batch([command])[0]

    def call_many(self, calls: list[Any]) -> list[Any]:
        return self.batch([("EVALSHA", "0" * 40, len(keys), *keys, *args) for _, keys, args in calls])

    def _answer(self, command: tuple[Any, ...]) -> bytes:
        if command[0] == "XREADGROUP":
            return self.entries
        if command[0] == "MGET":
            return b"*%d\r\n" % (len(command) - 1) + b"$-1\r\n" * (len(command) - 1)
        self.settled += (many := (len(command) - 7) // 4)  # settle_many, of one inbox
        return reply([1] * many)


def main(rounds: int) -> None:
    wire, least = Wire(), dict[str, float]()
    here, there = socket.socketpair()
    told, hears = Channel(here), Channel(there)
    stream = QueueStream(wire, KEYS, "me")  # type: ignore[arg-type]  (what it uses of one)
    config = WorkerConfig(model=NO_MODEL)
    assembled = assemble(config, "cpu")
    ledger = Ledger(10.0, Reporter(told).holding)
    settler = Settler(stream, ledger, assembled.hooks)
    clock = ServerClock()
    context = Context(
        ledger=ledger,
        settler=settler,
        clock=clock,
        hooks=assembled.hooks,
        connect=lambda: stream,
        report_call=lambda _: None,
    )
    collect_seldom()
    intake = Intake(config, context, Engine(assembled.served, context, threads=1))
    lane, inbox = KEYS.lanes[0], KEYS.inbox("default.abcdefghijklmnopqrstuv")
    accepted, settle = intake._engine.submit, settler.settle_over  # noqa: SLF001  (between them the outcomes are made)

    def submit(*args: Any) -> Any:
        try:
            return accepted(*args)
        finally:
            laps.lap("decode, check, run")

    def settle_over(*args: Any) -> None:
        settle(*args)
        laps.lap("encode, settle")

    intake._engine.submit, settler.settle_over = submit, settle_over  # type: ignore[method-assign]  # noqa: SLF001
    for turn in range(rounds):
        clock.set(ENTERED_MS + 1, time.monotonic(), time.monotonic())
        asked = [encode_request(new_id(), "echo", {"data": DATA}, {}, inbox, None, None) for _ in range(COUNT)]
        deadline = b"%d" % (ENTERED_MS + 60_000)
        wire.entries = reply([[lane.encode(), [_entry(turn, number, m, deadline) for number, m in enumerate(asked)]]])
        intake._began_at = time.monotonic()  # noqa: SLF001  (as its loop does before it reads)
        laps = Clock(least)
        found = stream.read({lane: COUNT})
        laps.lap("read")
        intake._accept(found)  # noqa: SLF001  (the step of its loop that costs)
        laps.lap("after it was settled")
        hears.arrived()
        assert wire.settled == COUNT * (turn + 1)
        assert not len(ledger)
    for name, seconds in {**least, "all": sum(least.values())}.items():
        print(f"{name:<30} {seconds / COUNT * 1e6:6.2f} us")


def _entry(turn: int, number: int, m: bytes, deadline: bytes) -> list[Any]:
    return [b"%d-%d" % (ENTERED_MS + turn, number), [b"m", m, b"d", deadline]]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
