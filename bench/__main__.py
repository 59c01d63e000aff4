"""Ours and what it is compared with in turn, in one run.

python -m bench                  the shorter parts, in less than five minutes
python -m bench --full           all parts with longer rounds, in less than an hour
python -m bench queue growth     these parts alone
python -m bench report           the page once more, of the figures that are there
python -m bench profile PART     where its time goes, as flame graphs: see profiles.py

The figures go to OUT/performance/results.json, and a page with its pictures is made of them: OUT/performance.md.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import profiles, report
from bench.harness import start, stop
from bench.queue_peers import PEERS
from bench.results import Part, load, machine, now, save, versions
from clipfleet.cli.local.redis import find_redis_server

# Module and function of each part, in the order of the page. A part takes the options and gives a `results.Part`.
PARTS = {
    "queue": "bench.queue_overhead:run",
    "single": "bench.queue_overhead:single",
    "batched": "bench.in_process:run",
    "load": "bench.under_load:run",
    "growth": "bench.growth:run",
    "stored": "bench.stored:run",
    "workers": "bench.workers:run",
    "start": "bench.start:run",
    "pipelines": "bench.pipelines:run",
    "live": "bench.live_latency:run",
    "images": "bench.joined:images",
    "text": "bench.joined:text",
    "bulk": "bench.joined:bulk",
    "http": "bench.joined:http",
}
CLEAN_UP_S = 60.0  # for a part that is stopped: frameworks of others take their time to go
# In the quick form only where they are named: these take minutes, and what they need takes gigabytes.
LONG = ("stored", "live", "images", "text", "bulk", "http")
# What a round of each form is made of.
FORMS = {
    "rounds": (5, 5),
    "count": (10_000, 30_000),
    "peer_count": (1_000, 3_000),
    "calls": (200, 1_000),
    "pictures": (200, 400),
    "seconds": (0.5, 1.5),
    "live_seconds": (1.5, 3.0),
    "shares": ((0.2, 0.5, 0.7, 0.9, 1.1), (0.05, 0.2, 0.5, 0.7, 0.9, 1.2)),
    "backlogs": ((1_000, 100_000), (1_000, 100_000, 1_000_000)),
    "rows": ((10_000, 20_000), (10_000, 100_000, 1_000_000)),
    # What is not measured by then is not: the rest of the page must not wait for it.
    "part_minutes": (5.0, 22.0),
    "minutes": (30.0, 59.0),
}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or report; all if left out")
    parser.add_argument("--full", action="store_true", help="longer rounds, and more of them")
    parser.add_argument("--rounds", type=int, help="rounds of each part (5)")
    parser.add_argument("--count", type=int, help="no-op requests of a round")
    parser.add_argument("--peer-count", type=int, help="of those, for a peer, which takes its time")
    parser.add_argument("--calls", type=int, help="single calls of a round")
    parser.add_argument("--pictures", type=int, help="pictures of a round")
    parser.add_argument("--seconds", type=float, help="of a round of a load in an open loop")
    parser.add_argument("--live-seconds", type=float, help="of a round of live queries")
    parser.add_argument("--shares", type=_shares, metavar="X,X,...", help="loads, as parts of what a closed loop gets")
    parser.add_argument("--backlogs", type=_numbers, metavar="N,N,...", help="requests that are queued already")
    parser.add_argument("--rows", type=_numbers, metavar="N,N,...", help="rows that are in the store already")
    parser.add_argument("--milvus-uri", default="", help="of live queries, else Milvus Lite; of rows in the store, too")
    parser.add_argument("--part-minutes", type=float, help="what a part may take (5, or 22 with --full)")
    parser.add_argument("--minutes", type=float, help="what all parts may take (30, or 59 with --full)")
    parser.add_argument(
        "--peers", type=lambda text: [each for each in text.split(",") if each], metavar="NAME,NAME,..."
    )
    parser.add_argument("--model", default="demo", help="of the pictures; any but the demo is compared with open_clip")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs", help="where the page goes")
    parser.set_defaults(limit_s=math.inf)  # of the part that is given the options: see `measured`
    options = parser.parse_args(words)
    if unknown := [name for name in options.what if name not in (*PARTS, "report")]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}, and report")
    for name, forms in FORMS.items():
        if getattr(options, name) is None:
            setattr(options, name, forms[options.full])
    if unknown := [name for name in options.peers or () if name not in {peer.name for peer in PEERS}]:
        parser.error(f"no peer {', '.join(unknown)}; there are {', '.join(peer.name for peer in PEERS)}")
    if options.minutes <= 0 or options.part_minutes <= 0 or list(options.rows) != sorted(set(options.rows)):
        parser.error("--minutes and --part-minutes are above 0, --rows rise")
    if options.rounds < 1 or options.count < 1 or options.peer_count < 1 or options.calls < 1:
        parser.error("--rounds, --count, --peer-count and --calls are 1 or more")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["profile"]:
        return profiles.main(words[1:])
    options = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else what was started would not be stopped in order
    file = options.out / "performance" / "results.json"
    parts = load(file)
    wanted = [
        name for name in PARTS if name in options.what or (not options.what and (options.full or name not in LONG))
    ]
    here, using = machine(), versions(str(find_redis_server()))
    print(", ".join(f"{name} {value}" for name, value in (*here.items(), *using.items())))
    began, failed = time.monotonic(), []
    try:
        for name in wanted:
            print(f"\n== {name}", flush=True)
            here, left = machine(), options.minutes * 60 - (time.monotonic() - began)
            part, why = measured(name, options, min(options.part_minutes * 60, left))
            if why:
                print(f"{name}: {why}", flush=True)
                failed.append(name)
                before = parts.get(name)
                part.title, part.about = (before.title, before.about) if before else (name.capitalize(), "")
                part.skip("all of it", why)
            part.machine, part.versions = here, {**using, **part.versions}
            parts[name] = part
            save(file, {each: parts[each] for each in (*PARTS, *parts) if each in parts})
            print(f"{name} took {part.took_s:.0f} s, all so far {(time.monotonic() - began) / 60:.1f} min", flush=True)
    finally:  # also when it is stopped: what was measured is shown
        if parts:
            report.write(options.out, {each: parts[each] for each in (*PARTS, *parts) if each in parts})
            print(f"\nwritten: {options.out / 'performance.md'}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measured(name: str, options: argparse.Namespace, limit_s: float) -> tuple[Part, str]:
    """A part, measured by a process of its own, and why there is none, if so.

    Whatever becomes of that process, whether it breaks, hangs or takes too long, the others have their turn.
    """
    began, part = time.monotonic(), Part(name, "", "")
    if limit_s <= 0:
        return part, f"no time was left of {options.minutes:g} minutes"
    with tempfile.TemporaryDirectory() as folder:
        asked, found, said = (Path(folder) / each for each in ("options", "part.json", "part.json.why"))
        asked.write_bytes(pickle.dumps(argparse.Namespace(**{**vars(options), "limit_s": limit_s})))
        running = start(sys.executable, "-m", "bench.one", PARTS[name], str(asked), str(found))
        try:
            code = running.wait(limit_s)
            why = (said.read_text(encoding="utf-8") if said.exists() else f"it ended with {code}") if code else ""
        except subprocess.TimeoutExpired:
            why = f"it was not done after {limit_s:.0f} s"
        finally:
            stop(running, CLEAN_UP_S)
        if not why:
            part = Part.of_json(json.loads(found.read_text(encoding="utf-8")))
    part.took_s, part.at, part.rounds, part.full = time.monotonic() - began, now(), options.rounds, options.full
    return part, why


if __name__ == "__main__":
    sys.exit(main())
