"""Where the time goes: the ours-side of a part under py-spy, as a flame graph of each kind of process.

python -m bench profile queue             docs/performance/flame-queue-client.svg, -worker.svg, -supervisor.svg
python -m bench profile bulk --seconds 40 --model demo --out /tmp/page

Imports, the loading of models and threads that wait are left out: a box is as wide as its share of the moments in which
its process worked.
A thread that was told of something and has no core yet still stands where it waited: that is left out, too, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench import flame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[1]
LARGEST = 150_000  # bytes of a picture: they are kept with the code
RATE = 200  # looks a second
START_S = 240.0  # for models that are loaded, and for what is stopped at the end
# What a process is, by a word of its command; the first that fits. All others are the benchmark itself: the client.
KINDS = {
    "clipfleet.worker.process": "worker",
    "clipfleet.store.lite_process": "store",
    "clipfleet.cli index": "index",
    "clipfleet.cli worker": "supervisor",
    "bench.ours": "supervisor",
    "bench.live_latency": "bulk",
}
# Where work begins in each process: what is outside of it is the same in all, and only makes the picture higher.
OUTER = ("_bootstrap", "Thread.run", "_run_module_as_main", "_run_code", "start_thread.<locals>.guarded", "<module>")


# What is done before the first request: a process's imports, a worker's model.
BEFORE = ("_find_and_load", "assemble (worker/assembly.py)")
WAITS = (
    "select (selectors.py)",
    "wait (multiprocessing/connection.py)",
    "Condition.wait (threading.py)",
    "_wait_for_tstate_lock (threading.py)",
)


class CannotProfile(Exception):
    """Why there is no profile, in one line."""


# The work ------------------------------------------------------------------------------------------------------------


def _queue(going: Callable[[], bool], _: str) -> None:
    from bench import ours
    from bench.harness import server
    from bench.queue_overhead import DATA, IN_FLIGHT
    from clipfleet.cli.local.redis import free_port
    from clipfleet.producer import Client

    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    with server(port), ours.worker(url), Client(url, wait_for_worker=True) as fleet:
        while going():
            ours.produce(fleet, 4_000, IN_FLIGHT, DATA)


def _images(going: Callable[[], bool], model: str) -> None:
    from bench.clip_fleet import IN_FLIGHT, fleets, per_core
    from bench.pictures import jpeg
    from bench.pipelines import DIFFERENT
    from clipfleet.producer import requests

    pictures = [jpeg(number) for number in range(DIFFERENT)]
    with fleets({"images": ["--model", model, *per_core()]}) as started:
        asked = map(requests.embed_image, itertools.takewhile(lambda _: going(), itertools.cycle(pictures)))
        for result in started["images"].client.map(asked, max_in_flight=IN_FLIGHT, ordered=False):
            result.unwrap()


def _http(going: Callable[[], bool], model: str) -> None:
    from bench.clip_fleet import fleets, per_core
    from bench.http_lines import IN_FLIGHT
    from bench.http_load import closed_loop
    from bench.http_peers import PICTURES, TIMEOUT_S
    from bench.pictures import jpeg
    from clipfleet.producer import AsyncClient

    pictures = [jpeg(number) for number in range(PICTURES)]
    with fleets({"http": ["--model", model, *per_core()]}) as started:

        async def main() -> None:
            async with AsyncClient(started["http"].url, queue=started["http"].queue, timeout=TIMEOUT_S) as client:
                while going():
                    await closed_loop(client.embed_image, pictures, in_flight=IN_FLIGHT, seconds=2.0)

        asyncio.run(main())


def _bulk(going: Callable[[], bool], model: str) -> None:
    from bench.clip_bulk import write
    from bench.clip_fleet import changed, fleets, per_core
    from bench.harness import process
    from bench.pictures import jpeg
    from bench.pipelines import DIFFERENT
    from clipfleet.store.lite import LiteServer

    pictures = [jpeg(number) for number in range(DIFFERENT)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write(folder / "pictures", pictures, 20_000)
        lite = stack.enter_context(LiteServer(folder / "milvus"))
        flags = ["--model", model, "--milvus-uri", lite.uri, *per_core()]
        fleet = stack.enter_context(fleets({"worker": flags}))["worker"]
        stack.enter_context(changed(CLIPFLEET_REDIS_URL=fleet.url, MILVUS_URI=lite.uri))
        command = [sys.executable, "-m", "clipfleet.cli", "index", str(folder / "pictures"), "--queue", fleet.queue]
        indexing = stack.enter_context(process(*command, "--manifest", str(folder / "manifest.sqlite")))
        while going() and indexing.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                indexing.wait(0.1)  # and then at the clock: it is stopped in the middle of its work
        if indexing.returncode:
            raise RuntimeError(f"clipfleet index ended with {indexing.returncode}")


def _live(going: Callable[[], bool], model: str) -> None:
    from bench import live_latency
    from bench.__main__ import parse

    while going():
        live_latency.run(parse(["live", "--rounds", "1", "--live-seconds", "5", "--model", model]))


def _from_asyncio(going: Callable[[], bool], _: str) -> None:
    from bench.in_process import ours_from_asyncio

    while going():
        asyncio.run(ours_from_asyncio(20_000, {}))


def _from_threads(going: Callable[[], bool], _: str) -> None:
    from bench.in_process import ours_from_threads

    while going():
        ours_from_threads(5_000, {})


# Pictures by part: what each shows, the seconds that tell enough, and the model that is not named otherwise.
WORK: dict[str, tuple[dict[str, Callable[[Callable[[], bool], str], None]], float, str]] = {
    "queue": ({"queue": _queue}, 10.0, ""),
    "batched": ({"batched-asyncio": _from_asyncio, "batched-threads": _from_threads}, 6.0, ""),
    "live": ({"live": _live}, 1.0, "demo"),  # once, as long as that takes
    "images": ({"images": _images}, 20.0, "ViT-B-32/random"),
    "bulk": ({"bulk": _bulk}, 30.0, "demo"),
    "http": ({"http": _http}, 20.0, "ViT-B-32/random"),
}


# The pictures --------------------------------------------------------------------------------------------------------


def by_kind(found: Sequence[tuple[str, flame.Stack, int]]) -> dict[str, Counter[flame.Stack]]:
    """Stacks of each kind of process; without its start, and without what is around the work in each of them.

    Of the benchmark's own process what never enters clipfleet is the making of pictures and files, and no client's; but
    where all is one process, it is the event loop, too.
    """
    kinds: dict[str, Counter[flame.Stack]] = {}
    alone = len({command for command, _, _ in found}) == 1
    for command, stack, samples in found:
        if any(word in one for one in stack for word in BEFORE):
            continue
        kept = tuple(itertools.dropwhile(lambda one: any(word in one for word in OUTER), stack))
        kind = next((kind for word, kind in KINDS.items() if word in command), "client")
        if kept and (kind != "client" or alone or any(map(flame.is_ours, kept))):
            kinds.setdefault(kind, Counter())[kept] += samples
    return kinds


def record(name: str, seconds: float, model: str, flags: Sequence[str] = ()) -> dict[str, Counter[flame.Stack]]:
    """Run one piece of work under py-spy, or under what ``CLIPFLEET_BENCH_SPY`` names.

    Raises:
        CannotProfile: py-spy is not there, or the work has failed.
    """
    name_of_spy = os.environ.get("CLIPFLEET_BENCH_SPY", "py-spy")
    spy = shutil.which(name_of_spy) or shutil.which(name_of_spy, path=str(Path(sys.executable).parent))
    if spy is None:
        raise CannotProfile("py-spy is not installed: python -m pip install py-spy")
    with tempfile.TemporaryDirectory() as folder:
        raw, whole = Path(folder) / "raw", Path(folder) / "whole"
        command = [spy, "record", "--subprocesses", "--format", "raw", "--rate", str(RATE), "--output", str(raw)]
        command += [*flags, "--", sys.executable, "-m", "bench.profiles", name]
        command += [str(whole), f"{seconds:g}", model]
        done = subprocess.run(
            command, cwd=ROOT, timeout=START_S + 2 * seconds, check=False, stdout=subprocess.DEVNULL, stderr=None
        )
        if done.returncode or not raw.exists():
            raise CannotProfile(f"py-spy ended with {done.returncode}")
        if not whole.exists():  # py-spy ends with 0, whatever became of what it looked at
            raise CannotProfile(f"{name} has failed; above is why")
        return by_kind(flame.folded(raw.read_text(encoding="utf-8").splitlines()))


def write(part: str, folder: Path, seconds: float | None, model: str, flags: Sequence[str] = ()) -> list[Path]:
    """The pictures of a part, and what they say in words.

    Raises:
        CannotProfile: see `record`; or nothing of ours was seen at work.
    """
    work, usual, known = WORK[part]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in work:
        found = record(name, seconds or usual, model or known, flags)
        for kind, stacks in sorted(found.items()):
            working = Counter({stack: samples for stack, samples in stacks.items() if not stack[-1].endswith(WAITS)})
            if not working:
                continue
            waits = 1 - working.total() / stacks.total()
            text = flame.draw(f"{name}: {kind} (without {waits:.0%} of its samples, which waited)", working)
            if len(text.encode()) > LARGEST:
                raise CannotProfile(f"the picture of {name}, {kind} has {len(text.encode()):,} bytes")
            path = folder / f"flame-{name}-{kind}.svg"
            path.write_text(text, encoding="utf-8")
            written.append(path)
            print(f"\n{path}: {working.total():,} samples; by the functions that they ended in")
            for each, share in flame.busiest(working):
                print(f"  {share:6.1%}  {each}")
    if not written:
        raise CannotProfile("not one sample")
    return written


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench profile", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", nargs="+", choices=list(WORK), metavar="PART", help=", ".join(WORK))
    parser.add_argument("--seconds", type=float, help="of the work, for each picture")
    parser.add_argument("--model", default="", help="of the pictures; by itself what the part has")
    parser.add_argument("--native", action="store_true", help="also what is written in C: slower")
    parser.add_argument("--gil", action="store_true", help="only threads that hold the interpreter's lock")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="where the page is; pictures go below it")
    options = parser.parse_args(words)
    flags = [f"--{flag}" for flag in ("native", "gil") if getattr(options, flag)]
    for part in options.part:
        try:
            write(part, options.out / "performance", options.seconds, options.model, flags)
        except (CannotProfile, subprocess.TimeoutExpired) as error:
            print(f"{part}: {error}", file=sys.stderr)
            return 1
    return 0


def _work(name: str, whole: str, seconds: str, model: str = "") -> None:
    """What runs under py-spy; the file ``whole`` is there when it has come to its end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else what was started would not be stopped in order
    give_up: list[float] = []

    def going() -> bool:
        give_up[:] = give_up or [time.monotonic() + float(seconds)]  # from the first look on: all is started then
        return time.monotonic() < give_up[0]

    next(work[name] for work, _, _ in WORK.values() if name in work)(going, model)
    Path(whole).touch()


if __name__ == "__main__":
    _work(*sys.argv[1:])
