"""What sources gave, as tests compare it."""

from __future__ import annotations

from clipfleet.index.sources import Failure, Item, Skip

JPG = b"\xff\xd8\xff-a picture-"


def items(events):
    return {event.id: event.picture for event in events if isinstance(event, Item)}


def failures(events):
    return [(event.id, str(event.error.code)) for event in events if isinstance(event, Failure)]


def skipped(events, reason=Skip.OTHER):
    return sum(event.count for event in events if isinstance(event, Skip) and event.reason == reason)


def write_pictures(folder, count):
    """Files that a worker with toy vectors takes for as many pictures."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:04}.png").write_bytes(b"picture %d" % number)
