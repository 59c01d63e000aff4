"""The client without its sockets: requests in, Redis commands out, answers in, results out.

No thread, no clock, no connection of its own: each call is told the time, and all are made by one owner (engine.py).
It speaks over two connections: *commands* (admission, cancel, looks) and *inbox* (the blocking read).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from clipfleet.producer.core.admission import Admission
from clipfleet.producer.core.command import Command, Reply
from clipfleet.producer.core.inbox import Inbox
from clipfleet.producer.core.pending import Pending, Stage
from clipfleet.producer.core.presence import Presence
from clipfleet.producer.core.sizes import SizeLimit
from clipfleet.producer.core.trouble import Remedy, broken_by, remedy_for
from clipfleet.producer.core.watch import KeyWatch
from clipfleet.schemas.errors import ErrorCode, ProtocolError, RequestFailed, error_for
from clipfleet.schemas.result import decode_result

if TYPE_CHECKING:
    from clipfleet.schemas.keys import QueueKeys

__all__ = ["Core"]

log = logging.getLogger("clipfleet.producer")

# Redis gone for this long: what was not sent fails, so that a service can answer 503 while it is still asked.
PATIENCE_S: Final = 5.0
# And what comes later gets this long each, for the case that Redis is just coming back; where nobody listens, no
# request gets more: a wrong address is said at once, and a restart takes less.
LATE_PATIENCE_S: Final = 1.0
DOWN_CHECK_S: Final = 0.1
LOG_EVERY_S: Final = 5.0


class Core:
    """All state of one producer.

    Args:
        keys: the queue's keys.
        producer: this producer's name, ``<acl user>.<128 random bits>``.
        block_s: how long the inbox read may block.
        wait_for_worker: accept requests although no worker lives, and wait for Redis until the deadline too.
        replicated: a request counts as accepted when a replica has it.
    """

    def __init__(
        self, keys: QueueKeys, producer: str, *, block_s: float, wait_for_worker: bool, replicated: bool
    ) -> None:
        self.keys = keys
        self.unanswered: dict[str, Pending] = {}
        self._finished: list[Pending] = []
        self._wait_for_worker = wait_for_worker
        self._admission = Admission(keys, producer, replicated=replicated, accept=self._accepted, refuse=self._fail)
        self._inbox = Inbox(keys.inbox(producer), block_s, self._deliver, self._inbox_refused)
        self._presence = Presence(keys.workers, always=wait_for_worker, absent=self._no_worker)
        self._size_limit = SizeLimit(keys.fleet)
        self._watch = KeyWatch(keys, self._deliver_key)
        self._cancels: deque[tuple[str, float]] = deque()
        self._next_deadline = math.inf
        self._down_since: float | None = None
        self._down_reason = ""
        self._down_patience_s = PATIENCE_S
        self._quiet_until = 0.0

    # Requests

    def take_in(self, incoming: deque[Pending]) -> None:
        """Take requests in, out of ``incoming``, until it is empty; whoever hands them over may add to it meanwhile."""
        unanswered, earliest, done = self.unanswered, self._next_deadline, Stage.DONE
        fresh: list[Pending] = []
        while incoming:
            request = incoming.popleft()
            request_id = request.id
            if request.stage is done:
                self._finished.append(request)  # cancelled before it got here
            elif request_id in unanswered:
                text = f"id {request_id!r} is in use by a request of this client"
                request.failed(error_for(ErrorCode.BAD_REQUEST, text))
                self._finished.append(request)
            else:
                unanswered[request_id] = request
                if request.deadline < earliest:  # noqa: PLR1730 - a call for every request
                    earliest = request.deadline
                fresh.append(request)
        self._next_deadline = earliest
        self._admission.add(fresh)

    def cancel(self, request: Pending) -> None:
        """End ``request`` as cancelled here, and tell the workers."""
        if request.stage is Stage.DONE:
            return
        if request.stage is not Stage.WAITING:
            self._cancels.append((request.id, request.deadline))
        self._fail(request, error_for(ErrorCode.CANCELLED))

    def look_for(self, request: Pending, now: float) -> None:
        """Somebody waits for a result on a key of its own."""
        if request.stage is not Stage.DONE:
            self._watch.add(request, now)

    def look_no_more(self, request: Pending) -> None:
        """One of those waits no more."""
        self._watch.leave(request)

    def fail_all(self, error: RequestFailed) -> None:
        """End whatever is unanswered."""
        for request in [*self.unanswered.values(), *self._watch.requests]:  # an ended one is not ended again
            self._fail(request, error_for(error.code, error.message))
        self._admission.forget_ended()

    def take_finished(self) -> list[Pending]:
        """Requests whose waiters are to be told, each once."""
        finished, self._finished = self._finished, []
        return finished

    @property
    def unsent(self) -> bool:
        """Whether a request's admission is not decided."""
        return any(request.stage <= Stage.CALLING for request in self.unanswered.values())

    # Connections

    @property
    def wants_commands(self) -> bool:
        """Whether there is a reason to have the command connection."""
        return bool(self._cancels or self._watch or not self._admission.idle)

    @property
    def wants_inbox(self) -> bool:
        """Whether there is a reason to have the inbox connection: nobody blocks for nothing."""
        return any(request.inbox for request in self.unanswered.values())

    def commands(self, now: float) -> list[Command]:
        """What to send on the command connection now."""
        commands: list[Command] = []
        fresh = self._presence.known(now)
        if not fresh and not self._admission.idle:
            commands += self._presence.commands()
        if self._admission.has_large:
            if self._size_limit.known(now):
                self._admission.refuse_above(self._size_limit.most)
            else:
                commands += self._size_limit.commands()
                fresh = False
        if not self._admission.idle:
            commands += self._admission.commands(now, fresh=fresh)
        if self._watch:
            commands += self._watch.commands(now)
        while self._cancels:
            request_id, deadline = self._cancels.popleft()
            if deadline > now:
                commands.append(self._cancel_command(request_id, deadline, now))
        return commands

    def inbox_commands(self, now: float) -> list[Command]:
        """What to send on the inbox connection now."""
        return [] if self._inbox.busy else self._inbox.commands(now, wanted=self.wants_inbox)

    def inbox_ended(self) -> None:
        """The inbox connection is over."""
        self._inbox.connection_ended()

    def away(self, reason: str, now: float, *, refused: bool = False, nobody: bool = False) -> None:
        """Redis cannot be reached; ``nobody`` listens there; ``refused``: asking again cannot help."""
        if self._down_since is None:
            self._down_since = now
        self._down_reason = reason
        self._down_patience_s = LATE_PATIENCE_S if nobody else PATIENCE_S
        self._log(now, "Redis is away: %s", reason)
        if refused:
            self.fail_all(error_for(ErrorCode.UNAVAILABLE, f"Redis refuses this client: {reason}"))
        self.tick(now)

    def back(self, now: float) -> None:
        """Redis answers."""
        if self._down_since is not None:
            self._log(now, "Redis is back after %.3g s", now - self._down_since)
            self._down_since = None

    # Time

    def tick(self, now: float) -> None:
        """End what has run out of time."""
        if self._down_since is not None and not self._wait_for_worker:
            for request in self._admission.waiting():
                if now >= self._patience_ends(request, self._down_since):
                    self._fail(request, self._redis_away())
            self._admission.forget_ended()
        for request in self._watch.overdue(now):
            self._fail(request, self._overdue(request, now))
        if now < self._next_deadline:
            return
        earliest = math.inf
        for request in list(self.unanswered.values()):
            if request.deadline > now:
                earliest = min(earliest, request.deadline)
            else:
                self._fail(request, self._overdue(request, now))
        self._next_deadline = earliest
        self._admission.forget_ended()

    def due(self, now: float) -> float:
        """When ``tick`` or a pump has work to do though nothing arrives; infinity when never."""
        due = self._next_deadline if self.unanswered else math.inf
        if self._watch:
            due = min(due, self._watch.gives_up)
        for other in (self._admission.due, self._watch.due, self._inbox.due):
            # What is overdue waits for its connection, not for the clock.
            if other is not None and now < other < due:
                due = other
        if self._down_since is not None and self.unanswered:
            due = min(due, now + DOWN_CHECK_S)
        return due

    # Answers

    def _accepted(self, requests: list[Pending]) -> None:
        accepted = Stage.ACCEPTED
        for request in requests:
            request.stage = accepted
            if not request.inbox:
                self._forget(request)
            if request.watched:
                self._finished.append(request)

    def _deliver(self, results: list[bytes], now: float) -> None:
        self._presence.seen(now)
        unanswered, finished = self.unanswered, self._finished
        for data in results:
            try:
                result = decode_result(data)
            except ProtocolError as error:
                self._log(now, "a result that cannot be read was dropped: %s", error)
                continue
            request = unanswered.pop(result.id, None)
            if request is not None:  # else a second copy, or cancelled, or too late
                request.ended(result)
                finished.append(request)

    def _deliver_key(self, request: Pending, data: bytes, now: float) -> None:
        self._watch.drop(request)
        self._presence.seen(now)
        try:
            request.ended(decode_result(data))
        except ProtocolError as error:
            request.failed(error_for(ErrorCode.INTERNAL, f"the result cannot be read: {error}"))
        self._forget(request)
        self._finished.append(request)

    def _fail(self, request: Pending, error: RequestFailed) -> None:
        if request.stage is not Stage.DONE:
            self._forget(request)
            self._watch.drop(request)
            request.failed(error)
            self._finished.append(request)

    def _forget(self, request: Pending) -> None:
        if self.unanswered.get(request.id) is request:
            del self.unanswered[request.id]

    def _no_worker(self) -> None:
        for request in self._admission.waiting():
            self._fail(request, error_for(ErrorCode.UNAVAILABLE, f"no worker on queue '{self.keys.queue}'"))
        self._admission.forget_ended()

    def _inbox_refused(self, reason: str) -> None:
        for request in list(self.unanswered.values()):
            if request.inbox:
                self._fail(request, error_for(ErrorCode.UNAVAILABLE, f"Redis refuses to read results: {reason}"))

    def _overdue(self, request: Pending, now: float) -> RequestFailed:
        if request.stage is Stage.ACCEPTED:
            return error_for(ErrorCode.EXPIRED)
        if self._down_since is not None:
            return self._redis_away()
        if now - request.submitted < LATE_PATIENCE_S:
            return error_for(ErrorCode.EXPIRED)  # its time was too short for anything
        return error_for(ErrorCode.UNAVAILABLE, "Redis did not confirm the admission before the deadline")

    def _redis_away(self) -> RequestFailed:
        return error_for(ErrorCode.UNAVAILABLE, f"Redis cannot be reached: {self._down_reason}")

    def _log(self, now: float, text: str, *args: object) -> None:
        if now >= self._quiet_until:
            self._quiet_until = now + LOG_EVERY_S
            log.warning(text, *args)

    def _patience_ends(self, request: Pending, down_since: float) -> float:
        return max(down_since + self._down_patience_s, request.submitted + LATE_PATIENCE_S)

    def _cancel_command(self, request_id: str, deadline: float, now: float) -> Command:
        def answered(reply: Reply, _now: float) -> None:
            if isinstance(reply, Exception) and remedy_for(reply) in {Remedy.RECONNECT, Remedy.MOVED}:
                raise broken_by(reply)
            # Anything else costs the work that a cancel would have saved, and no more.

        def lost(_now: float) -> None:
            self._cancels.append((request_id, deadline))

        left_ms = max(1, int((deadline - now) * 1000))
        return Command(("SET", self.keys.cancel(request_id), "1", "PX", left_ms), answered, lost)
