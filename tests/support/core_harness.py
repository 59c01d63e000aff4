"""The producer's core without its sockets: commands out, answers in, a clock of the test's own."""

from __future__ import annotations

from collections import deque

from clipfleet.producer.core.core import Core
from clipfleet.producer.core.pending import Pending
from clipfleet.schemas.keys import Lane, QueueKeys

KEYS = QueueKeys("q")


class Payload(bytes):
    """As large as it says, without the memory."""

    def __new__(cls, size):
        made = super().__new__(cls, b"x")
        made.size = size
        return made

    def __len__(self):
        return self.size


class Harness:
    """A core, the time, and a look at what it wants to say."""

    def __init__(self, **options):
        settings = {"block_s": 2.0, "wait_for_worker": True, "replicated": False} | options
        self.core = Core(KEYS, "default.me", **settings)
        self.now = 1000.0
        self.told = []

    def pending(self, request_id="a", *, timeout=60.0, size=10, lane=Lane.INTERACTIVE, inbox=True):
        payload = Payload(size) if size > 10 else b"x" * size
        return Pending(request_id, lane, payload, self.now, self.now + timeout, inbox)

    def submit(self, request_id="a", **options):
        request = self.pending(request_id, **options)
        self.core.take_in(deque([request]))
        return request

    def commands(self):
        return self.core.commands(self.now)

    def reply(self, command, value):
        command.reply(value, self.now)
        self.told += self.core.take_finished()

    def admit(self, *answers, retry_after_ms=1000):
        (command,) = self.commands()
        taken = sum(b"-" in answer for answer in answers)
        self.reply(command, [taken, retry_after_ms, 5, list(answers)])
        return command

    def results(self, *data):
        turn = self.core.inbox_commands(self.now)
        assert [command.args[0] for command in turn][-2:] == ["BLMOVE", "LRANGE"]
        self.reply(turn[-2], data[0] if data else None)
        self.reply(turn[-1], list(data))
        return [command.args for command in turn]
