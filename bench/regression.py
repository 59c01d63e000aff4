"""Whether the queue has become dearer: ours beside the bare script, by processor time, in a few seconds.

python -m bench.regression       0 when it has not, 1 with a line that says by how much

Wall-clock time is whatever else the machine does; the processor time of producer and worker is the code's own, and the
bare script's beside it is this machine's and this Python's. The quickest of a few short rounds is compared, as what
disturbs a round can only make it dearer. `MOST` is half as much again as what it was when it was set, so that a busy
machine is not heard of, and a queue that takes twice its time is.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.harness import in_turn, server
from bench.queue_overhead import BARE, OURS, Race, mine
from bench.results import Part, number
from clipfleet.cli.local.redis import free_port

MOST = 6.0  # times the bare script's processor time per request
ROUNDS, COUNT = 5, 4_000


def measure() -> tuple[float, float]:
    """Microseconds of processor for each request: ours and the bare script's, each at its best."""
    race = Race(Part("regression", "", ""))
    with server(free_port()) as client, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        turns = mine(race, client, stack, Path(folder), COUNT)
        for turn in turns:  # warm-up
            turn(-1)
        race.costs.clear()
        in_turn(ROUNDS, turns)
    return min(race.costs[OURS]), min(race.costs[BARE])


def main() -> int:
    ours, bare = measure()
    ratio = ours / bare
    print(
        f"processor time of a no-op request: {number(ours)} us, {ratio:.1f} times the bare script's {number(bare)} us "
        f"(at most {MOST:g})"
    )
    if ratio <= MOST:
        return 0
    print("the queue has become dearer: python -m bench queue says more, py-spy where the time goes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
