"""Memory follows what is under way, and not how much there is."""

from __future__ import annotations

import tracemalloc
from collections import deque

import pytest

from clipfleet.index import Manifest, index_sources, walk
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.result import Result


class Client:
    """Answers in order, with so many under way; one in a hundred fails."""

    def map(self, requests, *, max_in_flight):
        under_way = deque()
        for number, request in enumerate(requests):
            under_way.append(request)
            if len(under_way) == max_in_flight:
                under_way.popleft()
                failed = number % 100 == 0
                yield Result("x", ok=not failed, error=error_for(ErrorCode.CORRUPT_IMAGE, "bad") if failed else None)
        for _ in under_way:
            yield Result("x", ok=True)


def peak_of(folder, rows):
    table = folder / f"{rows}.csv"
    with table.open("w") as file:
        file.write("url,caption\n")
        file.writelines(f"https://example.com/{number:07}.jpg,picture {number}\n" for number in range(rows))
    with Manifest(folder / f"{rows}.sqlite") as manifest:
        tracemalloc.start()
        try:
            report = index_sources(Client(), [table], manifest=manifest, max_in_flight=64)
            again = index_sources(Client(), [table], manifest=manifest, max_in_flight=64)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (report.found, again.earlier) == (rows, report.indexed)
    return peak


@pytest.mark.timeout(300)
def test_given_ten_times_as_many_items_then_memory_is_the_same(tmp_path):
    peak_of(tmp_path, 100)  # what is imported and compiled once
    small, large = peak_of(tmp_path, 300), peak_of(tmp_path, 3_000)
    assert large < small + 200_000


def folders_of(folder, count):
    for number in range(count):
        # Of few names: Python keeps those of paths in a table, which grows by leaps.
        (folder / str(count) / str(number // 60) / str(number % 60)).mkdir(parents=True)
    tracemalloc.start()
    try:
        assert list(walk([folder / str(count)])) == []
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_given_ten_times_as_many_folders_then_memory_is_the_same(tmp_path):
    folders_of(tmp_path, 50)
    small, large = folders_of(tmp_path, 300), folders_of(tmp_path, 3_000)
    assert large < small + 50_000, (small, large)
