"""What a request costs the client, step by step, without sockets, threads and a fleet: us, the least of many rounds.

python -m bench.client_cost [ROUNDS]

One process and no waiting, so that other work on the machine disturbs single rounds alone.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import hiredis

from clipfleet.producer import Client, requests
from clipfleet.producer.config import TO_INBOX
from clipfleet.producer.core.window import Window
from clipfleet.schemas import Lane
from clipfleet.schemas.result import encode_success

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.producer import Job
    from clipfleet.producer.core import Core
    from clipfleet.producer.core.window import Entry

COUNT, DATA, ME = 256, b"x" * 32, "default.me"


class Backend:
    """Keeps what the client sends."""

    inherited, unanswered = False, 0

    def __init__(self, inbox_key: str) -> None:
        self.inbox_key = inbox_key
        self.sent: list[Any] = []
        self.add = self.sent.append

    def stop(self) -> None:
        """Nothing runs."""


class Alone(Client):
    """A client that is connected to nothing."""

    def core(self) -> Core:
        return self._config.core(ME)

    def send(self, entry: Entry, sink: Callable[[Job], None]) -> None:
        job = entry.job = self._send(entry.request.loaded(), Lane.INTERACTIVE, TO_INBOX, sink)
        job.entry = entry

    @property
    def sent(self) -> list[Any]:
        return self._running().sent

    def _new_backend(self) -> Any:
        return Backend(self._config.keys.inbox(ME))


def main(rounds: int) -> None:
    client = Alone(wait_for_worker=True)
    least: dict[str, float] = {}
    for _ in range(rounds):
        core, window, done = client.core(), Window(COUNT, ordered=False), []
        clock = Clock(least)
        asked = [requests.echo(DATA) for _ in range(COUNT)]
        clock.lap("build the request")
        for entry in [window.add(request) for request in asked]:
            client.send(entry, done.append)
        clock.lap("check, encode, make its job")
        core.take_in(deque(client.sent))
        (call,) = core.commands(clock.began)
        hiredis.pack_command(call.args)
        clock.lap("put it into an admit call")
        results = [encode_success(job.id, {"data": DATA}, timing={"queue": 0.1, "run": 0.5}) for job in client.sent]
        admitted = reply([COUNT, 1000, 1, [b"1795999999999-%d" % number for number in range(COUNT)]])
        arrived = reply(results)
        _, inbox = core.inbox_commands(clock.began)
        clock.lap("")
        call.reply(parse(admitted), clock.began)
        clock.lap("its place in the queue")
        inbox.reply(parse(arrived), clock.began)
        clock.lap("decode its result")
        for job in core.take_finished():
            job.notify()
        for job in done:
            window.ended(job.entry, job.ending, clock.began)
        while window.take():
            pass
        clock.lap("give it to the caller")
        assert window.empty
        assert not core.unanswered
        client.sent.clear()
    least.pop("")
    for name, seconds in {**least, "all": sum(least.values())}.items():
        print(f"{name:<30} {seconds / COUNT * 1e6:6.2f} us")
    client.close()


class Clock:
    """Keeps the least time of each step."""

    def __init__(self, least: dict[str, float]) -> None:
        self._least = least
        self.began = self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._least[name] = min(self._least.get(name, now), now - self._last)
        self._last = time.monotonic()


def reply(value: Any) -> bytes:
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(reply, value))
    return b":%d\r\n" % value if isinstance(value, int) else b"$%d\r\n%s\r\n" % (len(value), value)


def parse(data: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(data)
    return reader.gets()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
