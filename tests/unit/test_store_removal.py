"""Rows out by filter: pages, limits, and what is too much for one call; without a Milvus, since millions are meant."""

from __future__ import annotations

import pytest

from clipfleet.pipeline import builtin
from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.store.removal import MAX_DELETED, delete_matching
from clipfleet.store.types import MAX_LIMIT


class Rows:
    """So many rows match; every call is noted."""

    def __init__(self, matching):
        self.left = [f"r{number}" for number in range(matching)]
        self.found = []
        self.deleted = []

    def find(self, expression, limit):
        assert expression == "n > 0"
        self.found.append(limit)
        return self.left[:limit]

    def delete(self, expression):
        assert expression.startswith('id in ["')
        size = expression.count('", "') + 1
        self.deleted.append(size)
        del self.left[:size]

    def count(self, expression):
        return len(self.left)

    def go(self, limit=None):
        return delete_matching("n > 0", limit, self.find, self.delete, self.count)


def test_given_as_many_rows_as_one_call_may_delete_then_all_go_in_pages_that_milvus_takes():
    rows = Rows(MAX_DELETED)
    assert rows.go() == MAX_DELETED
    assert not rows.left
    assert max(rows.found) <= MAX_LIMIT
    assert max(rows.deleted) <= 1_024


def test_given_one_row_more_then_nothing_is_deleted_and_the_refusal_says_what_to_do():
    rows = Rows(MAX_DELETED + 1)
    with pytest.raises(RequestFailed, match=r"100,001 rows match it.*give a limit") as refused:
        rows.go()
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert not rows.deleted


def test_given_a_million_rows_when_deleted_by_limit_until_fewer_go_then_none_is_left():
    rows = Rows(1_000_000)
    counts = [rows.go(limit=MAX_LIMIT)]
    while counts[-1] == MAX_LIMIT:
        counts.append(rows.go(limit=MAX_LIMIT))
    assert (sum(counts), rows.left) == (1_000_000, [])


@pytest.mark.parametrize("matching", [0, 1, 1_024, 1_025, MAX_LIMIT, MAX_LIMIT + 1])
def test_given_any_number_around_a_page_then_that_many_are_told(matching):
    rows = Rows(matching)
    assert rows.go() == matching
    assert not rows.left


def test_the_pipeline_allows_what_the_store_does():
    assert builtin.MAX_DELETED == MAX_DELETED
    assert builtin.MAX_SEARCH_LIMIT == MAX_LIMIT
