"""Admission: many submits, few calls; a call may be sent twice, its requests are added once.

A call carries its key (``call:<producer>.<n>``) for life. When its answer does not come, the very same call goes out
again on the next connection, and the script gives its first answer again if it had one. That memory lasts 60 s, so a
call is sent for 50 s at most; after that its requests may or may not be in the queue, and only their results can tell.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

from clipfleet.producer.core.command import Command, Reply, nothing
from clipfleet.producer.core.pending import Pending, Stage
from clipfleet.producer.core.trouble import Remedy, broken_by, remedy_for
from clipfleet.producer.limits import LARGE_BYTES
from clipfleet.schemas import scripts
from clipfleet.schemas.errors import ErrorCode, QueueFull, RequestFailed, error_for
from clipfleet.schemas.keys import Lane, QueueKeys

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Admission", "Call"]

_BULK: Final = Lane.BULK
MAX_CALL_REQUESTS: Final = 256
MAX_CALL_BYTES: Final = 4 * 1024 * 1024
# A second call is worth its cost when it is not for a handful: those ride with the next.
MAX_CALLS_AT_ONCE: Final = 8
WORTH_A_CALL: Final = 64
RESEND_FOR_S: Final = 50.0  # the call key lives for 60
LATER_S: Final = 0.05
REPLICA_WAIT_MS: Final = 500
CALL_KEY_TTL_MS: Final = 60_000


class Call:
    """One admit call; its requests and their order never change, since an answer counts by position."""

    __slots__ = ("confirming", "first_sent", "key", "lane", "not_before", "requests", "whole_script")

    def __init__(self, key: str, lane: Lane, requests: list[Pending]) -> None:
        self.key = key
        self.lane = lane
        self.requests = requests
        self.first_sent: float | None = None
        self.not_before = 0.0
        self.whole_script = False
        self.confirming = False

    @property
    def undecided(self) -> bool:
        """Whether a request still waits for its answer."""
        return any(request.stage is Stage.CALLING for request in self.requests)

    def too_old(self, now: float) -> bool:
        """Whether the script may have forgotten it: see the head of this file."""
        return self.first_sent is not None and now - self.first_sent > RESEND_FOR_S


class Admission:
    """Makes calls of requests and verdicts of answers.

    Args:
        keys: the queue's keys.
        producer: this producer's name.
        replicated: count a request as accepted when a replica has it.
        accept: called with the requests of a call that are in the queue.
        refuse: called with each request that is not, and why.
    """

    def __init__(
        self,
        keys: QueueKeys,
        producer: str,
        *,
        replicated: bool,
        accept: Callable[[list[Pending]], None],
        refuse: Callable[[Pending, RequestFailed], None],
    ) -> None:
        self._keys = keys
        self._producer = producer
        self._replicated = replicated
        self._accept = accept
        self._refuse = refuse
        self._script = scripts.load("admit")
        self._numbers = count(1)
        self._queues = (_Waiting(Lane.INTERACTIVE), _Waiting(Lane.BULK))
        self._again: deque[Call] = deque()
        self._large = False

    def add(self, requests: list[Pending]) -> None:
        """Take requests in; they leave with the next call."""
        interactive, bulk = (queue.requests for queue in self._queues)
        for request in requests:
            (bulk if request.lane is _BULK else interactive).append(request)
            if len(request.payload) > LARGE_BYTES:
                self._large = True

    @property
    def has_large(self) -> bool:
        """Whether a request waits that is worth the question how large one may be."""
        return self._large

    def refuse_above(self, most: float) -> None:
        """The answer to it, in bytes."""
        self._large = False
        for request in self.waiting():
            if (size := len(request.payload)) > most:
                text = f"a request of {size} bytes is not sent: this queue takes at most {most:.0f}"
                self._refuse(request, error_for(ErrorCode.TOO_LARGE, text))

    def waiting(self) -> list[Pending]:
        """Requests that are in no call yet."""
        return [request for queue in self._queues for request in queue.requests if request.stage is Stage.WAITING]

    def forget_ended(self) -> None:
        """Drop what ended before it could be sent: an outage may last, and its requests must not pile up."""
        for queue in self._queues:
            queue.requests = deque(request for request in queue.requests if request.stage is Stage.WAITING)
        self._again = deque(call for call in self._again if call.undecided)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send."""
        return not (self._again or self._queues[0].requests or self._queues[1].requests)

    @property
    def due(self) -> float | None:
        """When the earliest call that waits for its moment may go; None when none does."""
        return min(call.not_before for call in self._again) if self._again else None

    def commands(self, now: float, *, fresh: bool) -> list[Command]:
        """What to send now; with ``fresh`` false only calls that were sent before."""
        commands: list[Command] = []
        for _ in range(len(self._again)):
            call = self._again.popleft()
            if call.not_before > now:
                self._again.append(call)
            elif call.undecided and not call.too_old(now):
                commands += self._send(call, now)
        if fresh:
            for queue in self._queues:
                while queue.worth_a_call:
                    requests = queue.take()
                    if requests:
                        key = self._keys.call(self._producer, next(self._numbers))
                        commands += self._send(Call(key, queue.lane, requests), now)
        return commands

    def _queue(self, lane: Lane) -> _Waiting:
        return self._queues[lane is Lane.BULK]

    def _send(self, call: Call, now: float) -> list[Command]:
        self._queue(call.lane).flying += 1
        if call.first_sent is None:
            call.first_sent = now
        script = ("EVAL", self._script.text) if call.whole_script else ("EVALSHA", self._script.sha)
        keys = self._keys
        args: list[str | bytes | int] = [*script, 5, *keys.lanes, keys.fleet, keys.bytes, call.key, call.lane.value]
        done = Stage.DONE
        for request in call.requests:
            left_ms = int((request.deadline - now) * 1000)
            # A request that ended meanwhile keeps its place, to be dropped by the worker at once.
            if left_ms < 1 or request.stage is done:
                left_ms = 1
            args += (request.id, left_ms, request.payload)
        commands = [
            Command(tuple(args), lambda reply, now: self._answered(call, reply, now), lambda _: self._lost(call))
        ]
        if self._replicated:
            # WAIT counts from this connection's own last write; a call answered from memory has written nothing.
            commands += [
                Command(("PEXPIRE", call.key, CALL_KEY_TTL_MS), nothing, nothing),
                Command(
                    ("WAIT", 1, REPLICA_WAIT_MS),
                    lambda reply, now: self._confirmed(call, reply, now),
                    lambda _: self._unconfirmed(call, 0.0),
                ),
            ]
        return commands

    def _lost(self, call: Call) -> None:
        self._queue(call.lane).flying -= 1
        call.confirming = False
        self._again.append(call)

    def _answered(self, call: Call, reply: Reply, now: float) -> None:
        if isinstance(reply, Exception):
            self._erred(call, reply, now)
            return
        self._queue(call.lane).flying -= 1
        _, retry_after_ms, _, answers = reply
        call.confirming = self._replicated
        forget = not self._replicated
        accepted: list[Pending] = []
        calling = Stage.CALLING
        for request, answer in zip(call.requests, answers, strict=True):
            if forget:
                request.payload = b""
            if request.stage is calling:
                if b"-" in answer:
                    accepted.append(request)
                else:
                    self._refuse(request, _refusal(answer, retry_after_ms))
        if not self._replicated:
            self._accept(accepted)

    def _erred(self, call: Call, error: Exception, now: float) -> None:
        remedy = remedy_for(error)
        if remedy in {Remedy.RECONNECT, Remedy.MOVED}:
            raise broken_by(error)  # `lost` takes the call back
        self._queue(call.lane).flying -= 1
        if remedy is Remedy.LOAD_SCRIPT:
            call.whole_script = True
            self._again.append(call)
        elif remedy is Remedy.LATER or (call.whole_script and str(error).startswith("NOPERM")):
            # A server that has forgotten the script, and an ACL without EVAL: a worker loads it within seconds.
            call.whole_script = False
            call.not_before = now + LATER_S
            self._again.append(call)
        else:
            for request in call.requests:
                if request.stage is Stage.CALLING:
                    full = remedy is Remedy.FULL
                    self._refuse(
                        request,
                        QueueFull(1.0, "Redis has no memory left")
                        if full
                        else error_for(ErrorCode.UNAVAILABLE, f"Redis refuses the admission: {error}"),
                    )

    @staticmethod
    def _forget_payloads(call: Call) -> None:
        for request in call.requests:
            request.payload = b""

    def _confirmed(self, call: Call, reply: Reply, now: float) -> None:
        if not call.confirming:
            return  # its admission went wrong and is being mended
        if isinstance(reply, int) and reply >= 1:
            call.confirming = False
            self._forget_payloads(call)
            self._accept([request for request in call.requests if request.stage is Stage.CALLING])
        else:
            self._unconfirmed(call, now + LATER_S)

    def _unconfirmed(self, call: Call, not_before: float) -> None:
        """No replica has it: the same call again, answered from memory by this server or added by its successor."""
        if call.confirming:
            call.confirming = False
            call.not_before = not_before
            self._again.append(call)


class _Waiting:
    """The requests of one lane that are in no call yet."""

    __slots__ = ("flying", "lane", "requests")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.requests: deque[Pending] = deque()
        self.flying = 0

    @property
    def worth_a_call(self) -> bool:
        waiting = len(self.requests)
        return self.flying < MAX_CALLS_AT_ONCE and (waiting >= WORTH_A_CALL or (waiting > 0 and self.flying == 0))

    def take(self) -> list[Pending]:
        """Those of the next call."""
        taken: list[Pending] = []
        requests, size, room = self.requests, 0, MAX_CALL_REQUESTS
        waiting, calling = Stage.WAITING, Stage.CALLING
        while requests and room:
            request = requests[0]
            size += len(request.payload)
            if taken and size > MAX_CALL_BYTES:
                break
            requests.popleft()
            if request.stage is waiting:
                request.stage = calling
                taken.append(request)
                room -= 1
            else:  # it was cancelled or ran out here
                size -= len(request.payload)
        return taken


def _refusal(answer: bytes, retry_after_ms: int) -> RequestFailed:
    code = answer.decode()
    if code == ErrorCode.QUEUE_FULL:
        return QueueFull(retry_after_ms / 1000)
    return error_for(code)
