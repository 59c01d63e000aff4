"""A queue as a worker sees it: the only module of the worker that speaks Redis streams.

Every operation that must not be half done is one of the protocol's scripts (``clipfleet/schemas/lua``); the life of a
request through them is told in docs/lifecycle.md.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.exceptions import ResponseError

from clipfleet.schemas.keys import NAME
from clipfleet.schemas.limits import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clipfleet.schemas.keys import QueueKeys
    from clipfleet.worker.wire import Call, Wire

__all__ = ["Delivery", "QueueStream", "Reclaimed", "Settlement", "is_out_of_memory", "settlement_of"]

MOST_PENDING = 10_000  # more than any process holds
# Of one settle_many: while a script runs Redis does nothing else.
MOST_TOGETHER, MOST_TOGETHER_BYTES = 128, 1 << 20
REFUSED_HERE = -1  # settle_many's answer where settle has an error to tell


class Delivery(NamedTuple):
    """One delivered entry: where it is, what it holds, how often it was delivered."""

    lane: str
    stream_id: str
    fields: dict[bytes, bytes]
    deliveries: int

    @property
    def place(self) -> tuple[str, str]:
        """Its lane and its id there, as ``Entry.place``."""
        return self.lane, self.stream_id


# One for each request: made so, a named tuple takes half of the time that calling its class does.
delivery_of: Final[Callable[[tuple[str, str, dict[bytes, bytes], int]], Delivery]] = partial(tuple.__new__, Delivery)


class Reclaimed(NamedTuple):
    """What a reclaim gave: entries, how many suspects were left alone, and where to go on."""

    deliveries: list[Delivery]
    suspects: int
    cursor: str


class Settlement(NamedTuple):
    """One request's end, as ``settle.lua`` takes it.

    Attributes:
        lane: key of its lane.
        stream_id: its entry.
        size: bytes to take off the queue's account.
        owner: the consumer that must still own it; empty = whoever is first.
        reply_to: the key of the result.
        result: its bytes.
        reply_ttl_ms: its life; 0 = nobody can be answered.
        letter: fields of a dead letter, or none.
    """

    lane: str
    stream_id: str
    size: int
    owner: str
    reply_to: str
    result: bytes
    reply_ttl_ms: int
    letter: Sequence[str | int | bytes] = ()


# As ``delivery_of``; all fields, in order.
settlement_of: Final[Callable[[tuple[str, str, int, str, str, bytes, int, tuple[()]]], Settlement]] = partial(
    tuple.__new__, Settlement
)


class QueueStream:
    """The lanes of one queue, read and settled over one connection.

    Args:
        wire: the connection; used by one thread.
        keys: of the queue.
        consumer: the worker's name in the group.
    """

    def __init__(self, wire: Wire, keys: QueueKeys, consumer: str) -> None:
        self.wire = wire
        self.keys = keys
        self.consumer = consumer

    def ensure_groups(self) -> None:
        """Create the group on both lanes where it is missing, from the first entry on.

        Raises:
            ResponseError: for another reason than that it exists; at ``maxmemory`` an existing group is enough.
        """
        for lane in self.keys.lanes:
            try:
                self.wire.command("XGROUP", "CREATE", lane, GROUP, "0", "MKSTREAM")
            except ResponseError as error:
                if "BUSYGROUP" in str(error):
                    continue
                if not (is_out_of_memory(error) and self._has_group(lane)):
                    raise

    def _has_group(self, lane: str) -> bool:
        try:
            groups = self.wire.command("XINFO", "GROUPS", lane)
        except ResponseError:
            return False
        return any(GROUP.encode() in group for group in groups)

    def server_ms(self) -> tuple[float, float, float]:
        """The server's clock (unix ms), and the monotonic times (s) before and after asking."""
        before = time.monotonic()
        seconds, micros = self.wire.command("TIME")
        return int(seconds) * 1000 + int(micros) / 1000, before, time.monotonic()

    def read(self, counts: Mapping[str, int]) -> list[Delivery]:
        """New entries that are there, at most ``counts[lane]`` of each lane, in one round trip."""
        commands = self._reads(counts)
        return [one for reply in self.wire.batch(commands) for one in _deliveries(reply)] if commands else []

    def wait(
        self,
        block_ms: int,
        lanes: Sequence[str] | None = None,
        count: int = 1,
        then: Mapping[str, int] | None = None,
    ) -> list[Delivery]:
        """Block until an entry comes in any of the lanes (None: both); then take what came with it.

        Of each lane at most ``count`` are given if they are there; a reader that was blocked is woken with one,
        whatever ``count`` says. What is sent behind a blocked command is done when that has its answer: so, with
        ``then[lane]`` more of each lane, a burst is one batch, and not one request and then a batch.
        """
        lanes = self.keys.lanes if lanes is None else lanes
        where = ("STREAMS", *lanes, *(">" for _ in lanes))
        first = ("XREADGROUP", "GROUP", GROUP, self.consumer, "COUNT", count, "BLOCK", block_ms, *where)
        replies = self.wire.batch([first, *self._reads(then or {})])
        return [one for reply in replies for one in _deliveries(reply)]

    def _reads(self, counts: Mapping[str, int]) -> list[tuple[Any, ...]]:
        return [
            ("XREADGROUP", "GROUP", GROUP, self.consumer, "COUNT", count, "STREAMS", lane, ">")
            for lane, count in counts.items()
            if count > 0
        ]

    def reclaim(
        self, lane: str, *, lease_ms: int, room: int, max_deliveries: int, solo: bool, cursor: str = "-"
    ) -> Reclaimed:
        """Take over entries whose lease has run out (``reclaim.lua``)."""
        after, suspects, entries = self.wire.call(
            "reclaim", [lane], [self.consumer, lease_ms, room, max_deliveries, int(solo), cursor]
        )
        deliveries = [
            Delivery(lane, stream_id.decode(), _fields(fields), count) for stream_id, fields, count in entries
        ]
        return Reclaimed(deliveries, suspects, after.decode())

    def mine(self, lane: str) -> dict[str, int]:
        """What Redis holds to be in our hands: stream id to delivery count."""
        reply = self.wire.command("XPENDING", lane, GROUP, "-", "+", MOST_PENDING, self.consumer)
        return {stream_id.decode(): deliveries for stream_id, _, _, deliveries in reply}

    def cancelled(self, request_ids: Sequence[str]) -> list[bool]:
        """Which of the requests are not wanted any more."""
        if not request_ids:
            return []
        start = self.keys.cancel("")
        replies = self.wire.command("MGET", *[start + one for one in request_ids])
        return [reply is not None for reply in replies]

    def renew(self, held: Mapping[str, Sequence[str]]) -> set[tuple[str, str]]:
        """Lengthen the leases of ``held`` (stream ids by lane); returns lane and id of what is ours no longer."""
        lanes = [lane for lane, ids in held.items() if ids]
        calls = [("renew", [lane], [self.consumer, *held[lane]]) for lane in lanes]
        lost: set[tuple[str, str]] = set()
        for lane, reply in zip(lanes, self.wire.call_many(calls) if calls else [], strict=True):
            if isinstance(reply, Exception):
                raise reply
            lost.update((lane, one.decode()) for one in reply)
        return lost

    def still_ours(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Without what another worker has taken over, where we were slow to hear of it; leases begin now."""
        held: dict[str, list[str]] = {}
        for one in deliveries:
            held.setdefault(one.lane, []).append(one.stream_id)
        lost = self.renew(held)
        return [one for one in deliveries if one.place not in lost]

    def hand_back(self, lane: str, entries: Iterable[tuple[str, int]], *, idle_ms: int) -> int:
        """Give entries back to the queue (``handback.lua``).

        Args:
            lane: where they are.
            entries: stream id and the delivery count to leave behind.
            idle_ms: the lease, so that they may be reclaimed at once; less, so that they rest for the difference.

        Returns:
            How many were still ours.
        """
        flat = [part for entry in entries for part in entry]
        return int(self.wire.call("handback", [lane], [self.consumer, idle_ms, *flat])) if flat else 0

    def settle(self, settlements: Sequence[Settlement]) -> list[int | Exception]:
        """End requests, each atomically, all in one round trip: 1 settled now, 0 before, -1 not the owner.

        What somebody's key stands in the way of is asked for once more, alone: its error says which.
        """
        alone, together = _grouped(settlements)
        # Who waits for an answer does not wait for the bulk answers that leave with it.
        together.sort(key=lambda places: settlements[places[0]].lane != self.keys.lanes[0])
        calls = [self._one(settlements[place]) for place in alone]
        calls += [self._many([settlements[place] for place in places]) for places in together]
        replies = self.wire.call_many(calls)
        if not alone and len(together) == 1 and type(replies[0]) is list and REFUSED_HERE not in replies[0]:
            return list(replies[0])  # as nearly always: in order, and all said
        answers: dict[int, int | Exception] = dict(zip(alone, replies, strict=False))
        for places, reply in zip(together, replies[len(alone) :], strict=True):
            if isinstance(reply, Exception):
                # Of the arguments of one of them: which one is seen when each is asked for alone.
                reply = [REFUSED_HERE if str(reply).startswith("settle_many:") else reply] * len(places)  # noqa: PLW2901
            answers.update(zip(places, reply, strict=True))
        refused = [place for places in together for place in places if answers[place] == REFUSED_HERE]
        if refused:
            said = self.wire.call_many([self._one(settlements[place]) for place in refused])
            answers.update(zip(refused, said, strict=True))
        return [answers[place] for place in range(len(settlements))]

    def _one(self, one: Settlement) -> Call:
        keys = self.keys
        return (
            "settle",
            (one.lane, keys.other_lane(one.lane), keys.bytes, one.reply_to, keys.dead),
            (one.stream_id, one.size, one.owner, one.result, one.reply_ttl_ms, *one.letter),
        )

    def _many(self, settlements: Sequence[Settlement]) -> Call:
        lane = settlements[0].lane
        ttls = {one.reply_to: one.reply_ttl_ms for one in settlements}
        numbers = {reply_to: number for number, reply_to in enumerate(ttls, 1)}
        args: list[Any] = list(ttls.values())
        for _, stream_id, size, _, reply_to, result, _, _ in settlements:
            args += (stream_id, size, numbers[reply_to], result)
        return "settle_many", (lane, self.keys.other_lane(lane), self.keys.bytes, *ttls), args

    def leave(self, consumer: str) -> bool:
        """Remove a consumer that holds nothing; False when it still holds something."""
        keys = [*self.keys.lanes, self.keys.workers, self.keys.worker(consumer)]
        return bool(self.wire.call("leave", keys, [consumer]) == 0)

    def idle_consumers(self, min_idle_ms: int) -> set[str]:
        """Names in the group that hold nothing and have not been heard of for ``min_idle_ms``."""
        found: set[str] = set()
        for lane in self.keys.lanes:
            for info in self.wire.command("XINFO", "CONSUMERS", lane, GROUP):
                fields = dict(zip(info[::2], info[1::2], strict=True))
                name = fields[b"name"].decode("utf-8", "replace")
                # A name that is none of ours is some neighbour's, and no key of ours is made of it.
                if fields[b"pending"] == 0 and fields[b"idle"] >= min_idle_ms and NAME.match(name):
                    found.add(name)
        return found


def is_out_of_memory(error: Exception) -> bool:
    """Whether the server is at ``maxmemory``."""
    return isinstance(error, ResponseError) and ("OOM" in str(error) or "maxmemory" in str(error))


def _grouped(settlements: Sequence[Settlement]) -> tuple[list[int], list[list[int]]]:
    """Places of those that need a call of their own, and of those that share one: of one lane, up to a megabyte.

    ``settle_many.lua`` asks for no owner, buries nothing, and answers somebody.
    """
    alone: list[int] = []
    together: list[list[int]] = []
    filling: dict[str, list[int]] = {}  # by lane, the last of its calls
    room: dict[str, int] = {}  # and the bytes that it may still hold
    for place, (lane, _, _, owner, _, result, reply_ttl_ms, letter) in enumerate(settlements):
        if owner or letter or reply_ttl_ms == 0:
            alone.append(place)
            continue
        left = room.get(lane, -1) - len(result)
        if left < 0 or len(filling[lane]) >= MOST_TOGETHER:
            filling[lane] = []
            together.append(filling[lane])
            left = MOST_TOGETHER_BYTES - len(result)
        filling[lane].append(place)
        room[lane] = left
    return alone, together


def _deliveries(reply: Any) -> Iterable[Delivery]:
    if isinstance(reply, Exception):
        raise reply
    for lane, entries in reply or ():
        name = lane.decode()
        for stream_id, fields in entries:
            yield delivery_of((name, stream_id.decode(), _fields(fields), 1))


def _fields(flat: Sequence[bytes] | None) -> dict[bytes, bytes]:
    if flat is not None and len(flat) == 4:
        return {flat[0]: flat[1], flat[2]: flat[3]}
    return dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}
