"""The last step: results go out, requests leave the queue; many in one round trip."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from clipfleet.schemas.errors import ErrorCode, ProtocolError, RequestFailed, error_for
from clipfleet.schemas.result import encode_failure, encode_success
from clipfleet.worker.connection import REFUSED
from clipfleet.worker.letters import dead_letter
from clipfleet.worker.patience import Patience
from clipfleet.worker.quiet import Quiet
from clipfleet.worker.stream import Settlement, settlement_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from clipfleet.worker.entry import Entry
    from clipfleet.worker.hooks import Hooks
    from clipfleet.worker.ledger import Ledger
    from clipfleet.worker.stream import QueueStream

__all__ = ["Outcome", "Settler"]

log = logging.getLogger(__name__)
MOST_AT_ONCE = 512
# What settle.lua itself says of a key that it cannot write, or of its arguments; everything else passes (a full disk, a
# failover, a lane that somebody has overwritten). Without "ERR ", which redis-py takes away.
FOR_GOOD = ("WRONGTYPE settle", "settle:")


class Outcome(NamedTuple):
    """How one request ended: outputs, or an error; ``bury`` makes a dead letter of it too."""

    entry: Entry
    error: RequestFailed | None = None
    outputs: dict[str, Any] | None = None
    model: str = ""
    notes: dict[str, Any] | None = None
    timing: dict[str, float] | None = None
    bury: bool = False


class Settler:
    """Owns the settling connection; run in one thread, fed by all.

    A settlement whose answer was lost is sent again: the script finds it settled and changes nothing.
    """

    def __init__(self, stream: QueueStream, ledger: Ledger, hooks: Hooks) -> None:
        self._stream = stream
        self._ledger = ledger
        self._hooks = hooks
        self._queue: queue.SimpleQueue[list[Outcome] | None] = queue.SimpleQueue()
        self._patience = Patience("settling")
        self._unanswered, self._unburied = Quiet(log), Quiet(log)
        self._counting = threading.Lock()
        self.settled = 0
        self.failed = 0

    def put(self, outcomes: list[Outcome]) -> None:
        """Settle these; never blocks."""
        for outcome in outcomes:
            if outcome.error is not None:
                _let_go(outcome.error)
        if outcomes:
            self._queue.put(outcomes)

    def settle_over(self, stream: QueueStream, outcomes: list[Outcome]) -> None:
        """Settle these in the caller's thread, over its connection; what Redis does not take is left to ``run``.

        Of requests that the caller's thread has run itself: another one would find them in another core's caches.
        """
        if not outcomes:
            return
        self._hooks.before_settle(len(outcomes))
        now = time.monotonic()
        try:
            replies = stream.settle([self._settlement(outcome, now) for outcome in outcomes])
        except REFUSED:
            self.put(outcomes)
            return
        left = [outcome for outcome, reply in zip(outcomes, replies, strict=True) if isinstance(reply, Exception)]
        if left:
            outcomes = [one for one, reply in zip(outcomes, replies, strict=True) if not isinstance(reply, Exception)]
        self._ended(outcomes)
        self.put(left)

    def close(self) -> None:
        """Let ``run`` return once everything put before is settled."""
        self._queue.put(None)

    def run(self) -> None:
        """The thread's loop."""
        closing = False
        while not closing:
            waiting: list[Outcome] = []
            first = self._queue.get()
            while True:
                if first is None:
                    closing = True
                else:
                    waiting += first
                if closing or len(waiting) >= MOST_AT_ONCE or self._queue.empty():
                    break
                first = self._queue.get()
            for start in range(0, len(waiting), MOST_AT_ONCE):
                self._settle(waiting[start : start + MOST_AT_ONCE])

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        self._hooks.before_settle(len(outcomes))
        now = time.monotonic()
        settlements = {place: self._settlement(outcome, now) for place, outcome in enumerate(outcomes)}
        while settlements:
            # Each refusal takes a part away: the answer, or the dead letter.
            refused = self._send(settlements)
            settlements = {
                place: self._instead(outcomes[place], settlements[place], error) for place, error in refused.items()
            }
        self._ended(outcomes)

    def _ended(self, outcomes: Sequence[Outcome]) -> None:
        with self._counting:
            self.settled += len(outcomes)
            self.failed += sum(1 for outcome in outcomes if outcome.error is not None)
        self._ledger.remove([outcome.entry for outcome in outcomes])

    def _send(self, settlements: Mapping[int, Settlement]) -> dict[int, Exception]:
        """Settle them all, however long Redis takes; what a script refused for good, by place."""
        refused: dict[int, Exception] = {}
        places = list(settlements)
        while places:
            try:
                replies = self._stream.settle([settlements[place] for place in places])
            except REFUSED as error:
                self._patience.trouble(error)
                continue
            if set(map(type, replies)) == {int}:
                break
            errors = {place: one for place, one in zip(places, replies, strict=True) if isinstance(one, Exception)}
            refused |= {place: error for place, error in errors.items() if str(error).startswith(FOR_GOOD)}
            places = [place for place in errors if place not in refused]
            if places:
                self._patience.trouble(errors[places[0]])
        self._patience.fine()
        return refused

    def _settlement(self, outcome: Outcome, now: float) -> Settlement:
        entry, error = outcome.entry, outcome.error
        envelope = entry.envelope
        result = self._encoded(outcome, now)
        if error is None and envelope is not None:  # as nearly all are
            return settlement_of(
                (entry.lane, entry.stream_id, entry.size, "", envelope.reply_to, result, envelope.reply_ttl_ms, ())
            )
        owned = error is not None and error.code.needs_owner
        return Settlement(
            entry.lane,
            entry.stream_id,
            entry.size,
            self._stream.consumer if owned else "",
            envelope.reply_to if envelope else self._stream.keys.dead,
            result,
            envelope.reply_ttl_ms if envelope else 0,
            dead_letter(entry, error) if outcome.bury and error is not None else (),
        )

    @staticmethod
    def _encoded(outcome: Outcome, now: float) -> bytes:
        entry, error = outcome.entry, outcome.error
        if error is not None:
            return encode_failure(entry.id, error)
        timing = outcome.timing if outcome.timing is not None else {}
        timing["total"] = int((now - entry.read_at) * 1e6) / 1e3
        try:
            return encode_success(
                entry.id, outcome.outputs or {}, model=outcome.model, notes=outcome.notes, timing=timing
            )
        except ProtocolError as unfit:
            return encode_failure(entry.id, error_for(ErrorCode.INTERNAL, f"the outputs cannot be sent: {unfit}"))

    def _instead(self, outcome: Outcome, refused: Settlement, reply: Exception) -> Settlement:
        """What becomes of a settlement that the script refused: one of its keys holds something of another type.

        Without it the request would come back at each end of a lease, for ever.
        """
        entry = outcome.entry
        if refused.letter and "dead letter" in str(reply):
            self._unburied.warning("request %s is not kept as a dead letter: %s", entry.id, reply)
            return refused._replace(letter=())
        self._unanswered.warning("request %s cannot be answered: %s", entry.id, reply)
        error = outcome.error or error_for(ErrorCode.BAD_REQUEST, f"its reply_to cannot be written: {reply}")
        return Settlement(
            entry.lane, entry.stream_id, entry.size, "", self._stream.keys.dead, b"", 0, dead_letter(entry, error)
        )


def _let_go(error: RequestFailed) -> None:
    """Free what an error came through, and what led to it: no more than its text leaves here.

    A traceback holds frames, and these the item, megabytes of a picture; where one of them has the error in a variable,
    all of it stays until cycles are looked for, which a worker seldom does.
    """
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is not None:
            chain += (one.__cause__, one.__context__)
            one.__traceback__ = one.__cause__ = one.__context__ = None
