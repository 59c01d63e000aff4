"""Memory follows what is under way, and not how much there is."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tracemalloc
from collections import deque
from itertools import islice

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


def held_on_a_walk(folder, folders):
    """What is held when all folders but ten were left, by whoever is not pathlib: its names go into Python's table."""
    for number in range(folders):
        below = folder / str(folders) / f"{number:05}"
        below.mkdir(parents=True)
        (below / "a.png").touch()
    tracemalloc.start()
    try:
        walking = walk([folder / str(folders)])
        assert sum(1 for _ in islice(walking, folders - 10)) == folders - 10
        taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, pathlib.__file__)])
        return sum(trace.size for trace in taken.traces)
    finally:
        tracemalloc.stop()


def test_given_ten_times_as_many_folders_then_a_walk_holds_no_more(tmp_path):
    held_on_a_walk(tmp_path, 50)
    small, large = held_on_a_walk(tmp_path, 200), held_on_a_walk(tmp_path, 2_000)
    assert large < small + 20_000


# In a process of its own: nothing in Python sees SQLite's memory, and here others have had some before.
SEEN = """
from clipfleet.index.sources import Seen

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

with Seen() as seen:
    seen.add("first", b"")
    before = peak()
    for number in range(150_000):
        seen.add(f"{number}", b"")
    print(peak() - before)
"""


def test_given_more_ids_than_fit_into_the_cache_then_they_are_kept_in_a_file():
    done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 3_000  # KiB, where all of them take 6,200
