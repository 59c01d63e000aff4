"""Memory follows what is under way: a million listed files cost what ten thousand cost."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.cli import clean_environment

FEW, MANY = 10_000, 1_000_000
# Caches of fixed sizes fill up on the way: SQLite's of the manifest (2 MB), of the ids met and of those of --sync (1 MB
# each), and what the allocator keeps.
BOUND_MB = 8

# Its own peak: what the system counts for a process begins with that of the one that started it.
PEAK = """
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))
"""
DRY_RUN = (
    PEAK
    + """
import sys
from clipfleet.cli.__main__ import main
sys.argv[0] = "clipfleet"
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(peak())
"""
)
# Indexes with a fleet that answers at once, and compares the manifest with a store that holds all of it.
RUN = (
    PEAK
    + """
import sys
from collections import deque
from clipfleet.index import Manifest, index_sources, open_sources, reconcile
from clipfleet.index.sync import Visited
from clipfleet.schemas.result import Result

class Client:
    def map(self, requests, *, max_in_flight):
        under_way = deque()
        for request in requests:
            under_way.append(request)
            if len(under_way) == max_in_flight:
                under_way.popleft()
                yield Result("x", ok=True, notes={"sketch": "0" * 32})
        for _ in under_way:
            yield Result("x", ok=True, notes={"sketch": "0" * 32})

table, manifest = sys.argv[1:]
with Manifest(manifest) as manifest, Visited() as visited:
    report = index_sources(Client(), visited.over(open_sources([table])), manifest=manifest, dedupe=True)
    assert not visited.doubt
    assert not any(visited.gone(manifest))
    found = reconcile(manifest, lambda page: dict.fromkeys(page, True))
    assert found.agrees and found.done == report.indexed
    print(report.indexed, report.duplicates, sum(map(len, manifest.duplicates.listed())))
print(peak())
"""
)


@pytest.fixture(scope="module")
def folder():
    """Where a million files cost no disk, if there is such a place."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as made:
        yield Path(made)


def make_files(folder, count):
    """Empty files, 500 in each folder, three folders deep."""
    for number in range(count // 500):
        below = folder / f"{number // 400:02}" / f"{number // 20 % 20:02}" / f"{number % 20:02}"
        below.mkdir(parents=True)
        at = os.open(below, os.O_RDONLY)
        for name in range(500):
            os.mknod(f"{name:03}.jpg", 0o600, dir_fd=at)
        os.close(at)
    return folder


def write_table(path, count):
    """Rows with an address; every tenth one is that of the row before."""
    with path.open("w") as file:
        file.write("id,url\n")
        file.writelines(f"{n:07},https://e.com/{n - (n % 10 == 9):07}.jpg\n" for n in range(count))
    return path


def peak(code, *args):
    """The largest resident size of a process, in MB, and what it said before."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        env=clean_environment(),
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *said, told = done.stdout.split()
    return float(told), said


def flat(few, many):
    print(f"{FEW:,}: {few:.1f} MB; {MANY:,}: {many:.1f} MB")
    assert many < few + BOUND_MB


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_given_a_million_files_in_folders_when_run_dry_then_memory_is_flat(folder):
    peaks = []
    for count in (FEW, MANY):
        files = make_files(folder / str(count), count)
        told, said = peak(DRY_RUN, "index", files, "--dry-run", "--manifest", folder / "none")
        assert said[0] == f"{count:,}"
        peaks.append(told)
    flat(*peaks)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_given_a_million_pictures_that_are_indexed_compared_and_reconciled_then_memory_is_flat(folder):
    peaks = []
    for count in (FEW, MANY):
        manifest = folder / f"{count}.sqlite"
        told, said = peak(RUN, write_table(folder / f"{count}.csv", count), manifest)
        assert said == [str(count - count // 10), str(count // 10), str(count // 10)]
        peaks.append(told)
        print(f"{count:,}: a manifest of {manifest.stat().st_size / 1e6:.1f} MB")
    flat(*peaks)
