"""The thread that reads: as much as there is room for, suspects alone, nothing that need not be run.

Its loop: keep the clock · take over what others left · wait for room · read · sort out · submit.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.request import RequestReader
from clipfleet.schemas.text import counted
from clipfleet.worker.connection import REFUSED
from clipfleet.worker.contention import contended
from clipfleet.worker.entry import Entry, open_entry
from clipfleet.worker.patience import Patience
from clipfleet.worker.settler import Outcome
from clipfleet.worker.sorting import Sorting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.engine import Engine
    from clipfleet.pipeline.program import Program
    from clipfleet.pipeline.work import Work
    from clipfleet.worker.config import WorkerConfig
    from clipfleet.worker.context import Context
    from clipfleet.worker.stream import Delivery

__all__ = ["Intake"]

log = logging.getLogger(__name__)

RECLAIM_EVERY_S = 1.0
LOOK_S = 0.1  # how long one tick may go through what is parked: reading must go on
BLOCK_MS = 1_000
BULK_SHARE = 8
# While bulk takes all the room: how long live requests are waited for between two looks for room. Each time longer, so
# that quick bulk work is not held up, and slow bulk work costs Redis no more than 125 looks a second.
FIRST_LULL_MS, MOST_LULL_MS = 1, 8
PARK_MS = 1_000
# What another worker that is idle may still do in time: it is found there within a second.
HANDED_ON_AT_LEAST_S = 2.0
# A parked request rests for PARK_MS and is found again by a look that comes every RECLAIM_EVERY_S.
PARKED_AT_MOST_S = 2.5
# A read that was blocked when its connection went may be given something for BLOCK_MS more; two looks see it.
DOUBT_S = 3.0


class Intake:
    """Owns the reading connection.

    Args:
        config: the worker's.
        context: what the process shares.
        engine: where works go.
    """

    def __init__(self, config: WorkerConfig, context: Context, engine: Engine) -> None:
        self._config = config
        self._keys = config.keys
        self._sorting = Sorting(config, context.clock, engine)
        self._reader = RequestReader(config.keys, config.max_request_bytes)
        self._interactive, self._bulk = config.keys.lanes
        self._context = context
        self._engine = engine
        self._stream = context.connect()
        self._patience = Patience("reading the queue", context.stop)
        self._ceiling = 2 * config.most_batch
        # Until it is known what the queue holds: what takes longest.
        programs = [one for variants in engine.served.programs.values() for one in variants.values()]
        self._most = dict.fromkeys(config.keys.lanes, min(map(self._most_of, programs), default=self._ceiling))
        self._lull_ms = 0
        self._passed = 0  # times that the only free place went to a live request since bulk last had its share
        self._most_stored = 4 * config.most_batch
        self._reclaim_at = 0.0
        self._cursors = dict.fromkeys(config.keys.lanes, "-")
        self._suspects = self._ensured = False
        self._blind = False  # the last look ended for want of room
        self._doubt_until = self._began_at = 0.0

    def run(self) -> None:
        """The thread's loop; ends when the process stops."""
        while not self._context.stop.is_set():
            try:
                self._step()
            except REFUSED as error:
                # FLUSHALL and failover take the group away, also under a blocked reader: nothing stays "ensured".
                self._ensured = False
                self._patience.trouble(error)

    def _step(self) -> None:
        context, self._began_at = self._context, time.monotonic()
        if not self._ensured:
            self._stream.ensure_groups()
            self._ensured = True
            self._doubt_until, self._reclaim_at = time.monotonic() + DOUBT_S, 0.0
        if context.clock.stale:
            context.clock.set(*self._stream.server_ms())
        if self._suspects or time.monotonic() >= self._reclaim_at or (self._blind and self._room() > 0):
            self._return_unheard()
            self._reclaim()
            self._patience.fine()
        if self._suspects:
            return
        if self._room() > 0 or self._room_beside_bulk() == 0:
            self._lull_ms = 0
            # Where there is more than can be done all room is taken again at once. So what waits to be taken over has
            # the first look at it: else it would wait for the end of the backlog, and expire.
            if not context.ledger.wait_until(self._has_room, RECLAIM_EVERY_S) or self._blind:
                return
            if (room := self._room()) <= 0:
                return  # a live request has left, and no bulk one: the next step reads what may be read beside these
            self._accept(*self._read(room))
        else:
            self._accept(self._read_beside_bulk())
        self._patience.fine()

    # Reading ------------------------------------------------------------------------------------------------------

    def _read(self, room: int) -> tuple[list[Delivery], frozenset[str]]:
        """What is there, interactive first and a share for bulk, or the first that comes; and where more waits."""
        interactive, bulk = self._interactive, self._bulk
        # One place cannot be divided: bulk has it each eighth time.
        reserved = max(1, room // BULK_SHARE) if room > 1 or self._passed >= BULK_SHARE - 1 else 0
        self._passed = 0 if reserved else self._passed + 1
        shares = {interactive: room - reserved, bulk: reserved}
        found = self._stream.read(shares)
        if not found and reserved == room:
            found = self._stream.read({interactive: room})
        if not found:
            then = {interactive: room - reserved - 1, bulk: min(reserved, room - 1)}
            found = self._stream.wait(BLOCK_MS, then=then)
            # Nothing waited before, and one that takes the only place says nothing of others.
            return found, contended(found, shares) if room > 1 else frozenset()
        # One lane may have had less than its share; what is left of the room goes to the other, if that had all of its.
        of_bulk, left = sum(one.lane == bulk for one in found), room - len(found)
        if left > 0 and len(found) - of_bulk == room - reserved:
            found += self._stream.read({interactive: left})
        elif left > 0 and of_bulk == reserved:
            # Room is as live requests have it while no bulk one is held, whose batches may be smaller.
            found += self._stream.read({bulk: min(left, self._most[bulk] - of_bulk)})
        return found, contended(found, shares)

    def _read_beside_bulk(self) -> list[Delivery]:
        """Live requests alone, as they come, while bulk ones take all the room.

        What they would else wait for is the end of a batch, and then of the next one, which is prepared already.
        """
        if self._lull_ms == 0:
            self._lull_ms = FIRST_LULL_MS
            if self._context.ledger.wait_active(self._limit() - 1, FIRST_LULL_MS / 1000.0):
                return []
        lull_ms, self._lull_ms = self._lull_ms, min(2 * self._lull_ms, MOST_LULL_MS)
        return self._stream.wait(lull_ms, self._config.keys.lanes[:1], self._room_beside_bulk())

    def _most_of(self, program: Program) -> int:
        """Requests for it that are held at a time: two batches, or, where these are small, two for each call.

        More would keep them from workers that are idle, and each would wait here for all the others.
        """
        return self._ceiling if program.at_once is None else min(self._ceiling, 2 * program.at_once)

    def _limit(self) -> int:
        """Requests that are held at a time: as many as of the smallest batches that are under way."""
        active_in, most = self._context.ledger.active_in, self._most
        return min((most[lane] for lane in most if active_in(lane)), default=min(most.values()))

    def _room(self) -> int:
        return self._limit() - self._context.ledger.active

    def _room_beside_bulk(self) -> int:
        """Room that live requests have where bulk has none: of live ones alone no more than two batches are held."""
        ledger, live = self._context.ledger, self._most[self._interactive]
        reserve = max(1, live // BULK_SHARE)
        return max(0, min(live - ledger.active_in(self._interactive), self._ceiling + reserve - ledger.active))

    def _has_room(self) -> bool:
        return self._room() > 0 or self._room_beside_bulk() > 0

    def _reclaim(self) -> None:
        """Take over entries whose lease ran out: handed back ones as far as there is room, suspects one by one.

        A suspect is run when this process holds nothing else (what waits for the store has survived the device and
        does not count), and before new work: so a request that kills costs a bystander one solo run, and no more.
        """
        ledger, config = self._context.ledger, self._config
        solo = self._suspects and ledger.wait_active(0, RECLAIM_EVERY_S)
        if self._suspects and not solo:
            # What this process is at may take an hour, and others be done with them long before.
            self._suspects = any(self._suspects_in(lane) for lane in config.keys.lanes)
            return
        suspects, give_up = 0, time.monotonic() + LOOK_S
        for lane in config.keys.lanes:
            suspects += self._look(lane, solo=solo)
            # What is taken only to be handed back again (its store is away) must not hide what waits behind it.
            while not solo and self._cursors[lane] != "-" and self._room() > 0 and time.monotonic() < give_up:
                suspects += self._look(lane, solo=False)
        self._suspects = suspects > 0
        self._blind = self._room() <= 0
        self._reclaim_at = time.monotonic() + RECLAIM_EVERY_S

    def _suspects_in(self, lane: str) -> int:
        """How many there are, of the first that rest there; takes nothing."""
        lease_ms, most = self._config.lease_ms, self._config.max_deliveries
        return self._stream.reclaim(lane, lease_ms=lease_ms, room=0, max_deliveries=most, solo=False).suspects

    def _return_unheard(self) -> None:
        """Hand back what was delivered in a reply that never came: nobody ran it, and no lease need end first."""
        if time.monotonic() > self._doubt_until:
            return
        for lane in self._keys.lanes:
            mine = self._stream.mine(lane).items()
            unheard = [(one, deliveries - 1) for one, deliveries in mine if (lane, one) not in self._context.ledger]
            if self._stream.hand_back(lane, unheard, idle_ms=self._config.lease_ms):
                log.warning("handed back %s that came in a lost reply", counted(len(unheard), "request"))

    def _look(self, lane: str, *, solo: bool) -> int:
        """Take over what there is room for, from where the last look ended; how many suspects it left alone."""
        ledger, config = self._context.ledger, self._config
        reclaimed = self._stream.reclaim(
            lane,
            lease_ms=config.lease_ms,
            room=max(0, self._room()),
            max_deliveries=config.max_deliveries,
            solo=solo and ledger.active == 0,
            cursor=self._cursors[lane],
        )
        self._cursors[lane] = reclaimed.cursor
        self._accept([one for one in reclaimed.deliveries if one.place not in ledger])
        return reclaimed.suspects

    # Sorting out --------------------------------------------------------------------------------------------------

    def _accept(self, deliveries: Sequence[Delivery], pressed: frozenset[str] = frozenset()) -> None:
        """Hold these; ``pressed``: lanes in which there are likely more than there was room for."""
        if deliveries and time.monotonic() - self._began_at > 0.0008 * self._config.lease_ms:
            deliveries = self._stream.still_ours(deliveries)  # we may have been paused with the reply on its way
        if not deliveries:
            return
        now, reader = time.monotonic(), self._reader
        entries = [
            open_entry(lane, stream_id, fields, reader, deliveries=count, read_at=now)
            for lane, stream_id, fields, count in deliveries
        ]
        self._context.ledger.add(entries)
        works, outcomes = self._sorting.sort(entries, self._cancelled(entries))
        self._context.settler.put(outcomes)
        if works:
            found = {(work.entry.lane, work.program) for work in works}
            for lane in {lane for lane, _ in found}:
                self._most[lane] = max(self._most_of(program) for at, program in found if at == lane)
            self._context.ledger.full = self._limit() // 2
        ended = self._engine.submit(self._in_time(self._storable(works), pressed), now)
        self._context.settler.settle_over(self._stream, self._context.outcomes(ended))

    def _cancelled(self, entries: Sequence[Entry]) -> list[bool]:
        """Which are not wanted any more. What is held must go on whatever Redis says: it is asked again later."""
        try:
            return self._stream.cancelled([entry.id for entry in entries])
        except REFUSED as error:
            self._patience.trouble(error)
            return [False] * len(entries)

    def _in_time(self, works: list[Work], pressed: frozenset[str]) -> list[Work]:
        """Answer those that would be run too late, before anything is spent on them."""
        forecast = self._engine.forecast
        sure = forecast.hopeless([work for work in works if work.entry.lane not in pressed], contended=False)
        late = {*sure, *forecast.hopeless([work for work in works if work.entry.lane in pressed], contended=True)}
        if not late:
            return works
        kept = [work for work in works if work not in late]
        if self._context.others_idle.is_set():
            # Redis deals entries out in turn, to who is busy as well as to who is not.
            others = [work for work in sure if self._context.left_s(work) >= HANDED_ON_AT_LEAST_S]
            late.difference_update(others)
            self._hand_back([work.entry for work in others], idle_ms=self._config.lease_ms)
        text = f"{ErrorCode.EXPIRED.meaning}: it would have been, by what was ahead of it"
        self._context.settler.put(
            [Outcome(work.entry, error_for(ErrorCode.EXPIRED, text, request_id=work.request.id)) for work in late]
        )
        return kept

    def _hand_back(self, entries: Sequence[Entry], *, idle_ms: int) -> None:
        """Leave these in the queue, their delivery count as if they had not been read."""
        for lane in self._keys.lanes:
            ids = [(entry.stream_id, entry.deliveries - 1) for entry in entries if entry.lane == lane]
            try:
                self._stream.hand_back(lane, ids, idle_ms=idle_ms)
            except REFUSED as error:
                self._patience.trouble(error)
                self._ensured = False  # what is left in our hands is looked for, and no lease need end first
        self._context.ledger.remove(entries)

    def _storable(self, works: list[Work]) -> list[Work]:
        """Leave works for a full store in the queue, resting a while: embeddings must not wait behind them.

        What would come back after its deadline from a store that is away is told so now.
        """
        if self._context.ledger.stored < self._most_stored:
            return works
        parked: list[Entry] = []
        hopeless: list[Outcome] = []
        for work in works:
            if work.program.needs_store:
                if self._engine.store_troubled and self._context.left_s(work) < PARKED_AT_MOST_S:
                    error = error_for(ErrorCode.STORE_FAILED, request_id=work.request.id)
                    hopeless.append(Outcome(work.entry, error))
                else:
                    parked.append(work.entry)
        self._context.settler.put(hopeless)
        self._hand_back(parked, idle_ms=max(0, self._config.lease_ms - PARK_MS))
        return [work for work in works if not work.program.needs_store]
