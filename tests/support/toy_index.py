"""Runs of the indexer over pictures by id, into a store that is a dict: killed where a test says."""

from __future__ import annotations

from collections import Counter, deque

from clipfleet.index import Item, index_sources
from clipfleet.index.reconcile import alone
from clipfleet.index.sync import Visited
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.result import Result

__all__ = ["Fleet", "Killed", "Source", "listed", "run"]


class Killed(Exception):
    """The process ended there."""


class Source:
    """Pictures by id, in an order that a test chooses."""

    about = ""

    def __init__(self, pictures):
        self.pictures = pictures

    def events(self, seen):
        for id_, picture in list(self.pictures.items()):
            yield Item(id_, f"label of {id_}", picture)

    def count(self):
        return iter(self.pictures)


class Fleet:
    """A store, and who writes into it: so many under way, some answers that pass, an end where a test says."""

    def __init__(self):
        self.rows = {}
        self.sent = Counter()
        self.passing = set()
        self.left = None

    def map(self, requests, *, max_in_flight):
        under_way = deque()
        for request in requests:
            under_way.append(request)
            if len(under_way) == max_in_flight:
                yield self.answer(under_way.popleft())
        while under_way:
            yield self.answer(under_way.popleft())

    def answer(self, request):
        id_, picture = request.inputs["id"], request.inputs["image"]
        self.sent[id_] += 1
        if picture.startswith(b"bad"):
            return Result(id_, ok=False, error=error_for(ErrorCode.CORRUPT_IMAGE, "bad"))
        self.rows[id_] = picture
        if self.left is not None:
            # Its row is there, and nobody has been told.
            self.left -= 1
            if self.left < 0:
                raise Killed
        if id_ in self.passing:
            return Result(id_, ok=False, error=error_for(ErrorCode.EXPIRED, "late"))
        return Result(id_, ok=True)


def run(fleet, manifest, pictures, *, sync=True, **options):
    """One run as the command line makes it; its report, and what it told of each id."""
    told = {}
    with Visited() as visited:
        sources = visited.over([Source(pictures)])
        report = index_sources(
            fleet,
            sources,
            manifest=manifest,
            dedupe=True,
            max_in_flight=3,
            on_outcome=lambda one: told.__setitem__(one.id, one),
            **options,
        )
        if sync:
            for page in visited.gone(manifest):
                for id_ in page:
                    fleet.rows.pop(id_, None)
                manifest.forget(page)
            if manifest.duplicates.leave_alone(run=manifest.run):
                index_sources(fleet, alone(sources, manifest), manifest=manifest, dedupe=True, max_in_flight=3)
    return report, told


def listed(manifest):
    return {id_: same_as for page in manifest.duplicates.listed() for id_, same_as in page}
