"""What has left a corpus, and what has only become unreadable."""

from __future__ import annotations

import pytest

from clipfleet.index import Failure, Item, Manifest, Skip
from clipfleet.index.sources import Seen
from clipfleet.index.sync import Visited
from clipfleet.schemas.errors import ErrorCode, error_for


class Source:
    """Gives what a test says."""

    about = "a test's"

    def __init__(self, *events):
        self._events = events

    def events(self, seen):
        yield from self._events


def item(id_):
    return Item(id_, id_, b"x")


def failure(id_, *, whole=False):
    return Failure(id_, id_, error_for(ErrorCode.FETCH_FAILED, "why"), whole)


def gone(manifest, *sources):
    with Visited() as visited, Seen() as seen:
        for source in visited.over(sources):
            for _ in source.events(seen):
                pass
        return [id_ for page in visited.gone(manifest) for id_ in page], visited.doubt


@pytest.fixture
def manifest(tmp_path):
    with Manifest(tmp_path / "m") as made:
        for id_ in ("a", "b/1", "b/2", "bc", "d"):
            made.answered(id_, b"")
        made.sent("e", b"")
        made.answered("f", b"", error_for(ErrorCode.CORRUPT_IMAGE))
        yield made


def test_given_a_whole_run_then_what_it_has_not_met_is_gone_whatever_became_of_it(manifest):
    assert gone(manifest, Source(item("a"), Skip(Skip.OTHER)), Source(item("d"))) == (
        ["b/1", "b/2", "bc", "e", "f"],
        "",
    )


def test_given_what_cannot_be_read_then_it_and_what_is_below_it_stays(manifest):
    assert gone(manifest, Source(item("a"), failure("b"), failure("e"))) == (["bc", "d", "f"], "")


@pytest.mark.parametrize(
    "sources",
    [
        [Source(item("a"), failure("shard", whole=True))],
        [Source(item("a"), failure("."))],
        [Source(item("a")), Source()],
        [Source(failure("b"))],
        [Source(item("a"), *(failure(f"x{number}") for number in range(1_001)))],
    ],
    ids=["broken shard", "unreadable folder", "an empty source", "nothing but failures", "too many failures"],
)
def test_given_doubt_then_nothing_is_gone_and_it_says_why(manifest, sources):
    left, doubt = gone(manifest, *sources)
    assert (left, bool(doubt)) == ([], True)
