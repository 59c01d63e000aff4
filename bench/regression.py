"""Whether the queue has become dearer: ours beside the bare script, by processor time, in a few seconds.

python -m bench.regression       0 when it has not, 1 with a line that says by how much

Wall-clock time is whatever else the machine does; the processor time of producer and worker is the code's own, and the
bare script's of the same round is this machine's and this Python's at that moment. The median of such ratios hardly
moves with what else runs: 2.2 to 3 from a machine with six times its work to an idle one. `MOST` is between those and
twice as much, so that the machine is not heard of, and a queue that takes twice its time is.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.harness import in_turn, server
from bench.queue_overhead import BARE, OURS, Race, mine
from bench.results import Part, number
from bench.stats import ratios
from clipfleet.cli.local.redis import free_port

MOST = 4.2  # times the bare script's processor time per request
ROUNDS, COUNT = 7, 4_000


def measure() -> tuple[float, float]:
    """Microseconds of processor for each request, the median of the rounds, and how often the bare script's that is."""
    race = Race(Part("regression", "", ""))
    with server(free_port()) as client, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        turns = mine(race, client, stack, Path(folder), COUNT)
        for turn in turns:  # warm-up
            turn(-1)
        race.costs.clear()
        in_turn(ROUNDS, turns)
    return median(race.costs[OURS]), median(ratios(race.costs[OURS], race.costs[BARE]))


def main() -> int:
    ours, ratio = measure()
    print(
        f"processor time of a no-op request: {number(ours)} us, {ratio:.1f} times the bare script's (at most {MOST:g})"
    )
    if ratio <= MOST:
        return 0
    print("the queue has become dearer: python -m bench queue says more, py-spy where the time goes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
