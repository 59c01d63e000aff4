"""The same model file and the same decoding behind HTTP servers that batch, and by clipfleet over Redis.

python -m bench.http_peers [--model ViT-B-32/random] [--only mosec,clipfleet] [--install] [--quick]

Each server lives in an environment of its own, ``.venv-bench/NAME`` (or below ``CLIPFLEET_BENCH_ENVIRONMENTS``), which
``--install`` makes of ``bench/requirements-NAME.txt``. One is up at a time, since idle ones poll; each is started
anew in each round. clipfleet's HTTP gateway is not built yet, so there is no line of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from bench.clip_fleet import fleets
from bench.clip_work import (
    BATCHES,
    Parts,
    PictureLimit,
    carry_out,
    cpu_of,
)
from bench.http_lines import IN_FLIGHT, OURS, PEERS, SHARE, Found, lines
from bench.http_load import closed_loop, open_loop
from bench.pictures import jpeg
from clipfleet.cli.local.redis import free_port
from clipfleet.models import resolve_model
from clipfleet.models.runtime import lowest_cosine
from clipfleet.operators.cores import usable_cores
from clipfleet.producer import AsyncClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from bench.http_load import Send
    from bench.results import Figure
    from clipfleet.models.bundle import Bundle

    # How to speak to it, and the processes whose trees are all of it.
    Way = tuple[Callable[[], contextlib.AbstractAsyncContextManager[Send]], Sequence[int]]

ROOT = Path(__file__).parent.parent
MODEL = "ViT-B-32/random"
COMPARED, PICTURES = 8, 32
UP_S, DOWN_S, TIMEOUT_S = 180.0, 20.0, 120.0
# No reports to their makers; Ray's are the switches of its performance guide.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "BENTOML_DO_NOT_TRACK": "True",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_worker_niceness": "0",  # 15 by default: the load's own process would go first
}


@dataclass(frozen=True)
class Plan:
    """How long and how often."""

    rounds: int = 5
    closed: float = 4.0
    opened: float = 5.0


def run(
    *,
    model: str = MODEL,
    rounds: int = 5,
    only: str = "",
    seconds: float = math.inf,
    install: bool = False,
    quick: bool = False,
) -> list[Figure]:
    """Measure.

    Args:
        model: that all of them serve.
        rounds: of each.
        only: names, comma-separated.
        seconds: no round is begun that would not be done by then, as the others went.
        install: make what is missing.
        quick: one short round.
    """
    began = time.monotonic()
    plan = Plan(1, 3.0, 4.0) if quick else Plan(rounds)
    names = only.split(",") if only else [*OURS, *PEERS]
    unknown = set(names) - {*OURS, *PEERS}
    if unknown:
        raise ValueError(f"there is no {', '.join(sorted(unknown))}; there are {', '.join([*OURS, *PEERS])}")
    if install:
        for name in set(names) & set(PEERS):
            install_peer(name)
    bundle = resolve_model(model)
    pictures = [jpeg(number) for number in range(PICTURES)]
    found = {name: Found() for name in names}
    limits = []
    with contextlib.closing(Parts(bundle, BATCHES[1:4] if quick else BATCHES)) as parts:
        known = parts.vectors(pictures[:COMPARED])
        limit = PictureLimit(parts, pictures, 64)
        ready = time.monotonic()
        for number in range(plan.rounds):
            now = time.monotonic()
            if number and now - began + (now - ready) / number > seconds:
                break
            limits.append(limit.rate())
            for name in names if number % 2 else reversed(names):
                if not found[name].why:
                    _round(name, bundle, model, pictures, known, plan, found[name])
    return lines(found, tuple(limits))


def _round(name: str, bundle: Bundle, model: str, pictures: list[bytes], known: Any, plan: Plan, found: Found) -> None:
    """One server up, measured and down; what goes wrong with it is its line and not the end of the others."""
    try:
        with _ours(name, model) if name in OURS else _served(name, bundle) as way:
            asyncio.run(_measured(way, pictures, known, plan, found))
    except Exception as error:  # noqa: BLE001  (of four frameworks and their clients; each is told)
        found.why = f"{type(error).__name__}: {error}"


async def _measured(
    way: Way,
    pictures: list[bytes],
    known: Any,
    plan: Plan,
    found: Found,
) -> None:
    connect, pids = way
    async with connect() as send:
        vectors = await asyncio.gather(*(send(one) for one in pictures[: len(known)]))
        found.cosine = min(found.cosine, lowest_cosine(np.stack(vectors), known))
        cpu = cpu_of(pids)
        closed = await closed_loop(send, pictures, in_flight=IN_FLIGHT, seconds=plan.closed)
        found.cpu_ms.append(1000 * (cpu_of(pids) - cpu) / closed.answered)
        opened = await open_loop(send, pictures, rate=SHARE * closed.rate, seconds=plan.opened)
        found.saturation.append(closed.rate)
        found.opened.append(opened)


# Ours ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ours(name: str, model: str) -> Iterator[Way]:
    with fleets({name: ["--model", model]}) as started:
        fleet = started[name]

        @contextlib.asynccontextmanager
        async def way() -> AsyncIterator[Send]:
            async with AsyncClient(fleet.url, queue=fleet.queue, timeout=TIMEOUT_S) as client:

                async def send(picture: bytes) -> Any:
                    return np.asarray((await client.embed_image(picture)).vector)

                yield send

        yield way, fleet.pids


# Theirs -------------------------------------------------------------------------------------------------------------


def python_of(name: str) -> Path:
    """The Python of a peer's environment, whether it is there or not."""
    root = os.environ.get("CLIPFLEET_BENCH_ENVIRONMENTS")
    return (Path(root) if root else ROOT / ".venv-bench") / name / "bin" / "python"


def install_peer(name: str) -> None:
    """Make its environment, or bring it to what its requirements say.

    Raises:
        CalledProcessError: pip says why.
    """
    python = python_of(name)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    pinned = str(ROOT / "bench" / f"requirements-{name}.txt")
    subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", pinned], check=True)


@contextlib.contextmanager
def _served(name: str, bundle: Bundle) -> Iterator[Way]:
    """The server, ready; all of its processes are gone afterwards."""
    python = python_of(name)
    if not python.exists():
        raise FileNotFoundError(f"{name} is not installed: python -m bench.http_peers --install --only {name}")
    port = free_port()
    command = [str(python), "-m", f"bench.http_{name}"]
    if name == "bentoml":
        command = [str(python), "-m", "bentoml", "serve", "bench.http_bentoml:Embed", "--host", "127.0.0.1"]
        command += ["--port", str(port)]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "schemas", ROOT / "worker")))
    environment = os.environ | ENVIRONMENT
    environment |= {"PYTHONPATH": path, "BENCH_BUNDLE": str(bundle.path), "BENCH_PORT": str(port)}
    environment |= {"BENCH_PROCESSES": str(usable_cores())}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield (lambda: _http(name, port, server, log)), [server.pid]
        finally:
            _end(server)


@contextlib.asynccontextmanager
async def _http(name: str, port: int, server: subprocess.Popen[bytes], log: Any) -> AsyncIterator[Send]:
    """A client of it, once it answers."""
    import aiohttp

    url = f"http://127.0.0.1:{port}/embed"
    limits = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session:

        async def send(picture: bytes) -> Any:
            async with session.post(url, **_body(name, picture)) as response:
                data = await response.read()
                if response.status != 200:
                    raise RuntimeError(f"{response.status}: {data[:60]!r}")
                if response.content_type == "application/json":
                    return np.asarray(json.loads(data)[0], np.float32)
                return np.frombuffer(data, np.float32)

        await _ready(lambda: send(jpeg(0)), server, log)
        yield send


def _body(name: str, picture: bytes) -> dict[str, Any]:
    """Bytes as they are; BentoML takes files of a form."""
    if name != "bentoml":
        return {"data": picture, "headers": {"Content-Type": "application/octet-stream"}}
    import aiohttp

    form = aiohttp.FormData()
    form.add_field("pictures", picture, filename="picture.jpg", content_type="image/jpeg")
    return {"data": form}


async def _ready(ask: Callable[[], Awaitable[Any]], server: subprocess.Popen[bytes], log: Any) -> None:
    give_up = time.monotonic() + UP_S
    said = ""
    while server.poll() is None and time.monotonic() < give_up:
        try:
            await ask()
        except Exception as error:  # noqa: BLE001  (not listening, or not ready)
            said = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0.2)  # between two looks: a server that starts tells nobody
        else:
            return
    log.seek(0)
    end = log.read()[-400:].decode("utf-8", "replace").strip().replace("\n", " | ")
    what = (
        f"it ended with {server.returncode}" if server.poll() is not None else f"no answer within {UP_S:g} s ({said})"
    )
    raise RuntimeError(f"{what}; its log ends: {end}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """All that it started, politely and then surely: some of it has sessions of its own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(DOWN_S)
        _, alive = psutil.wait_procs(family, timeout=DOWN_S)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    server.kill()
    server.wait()


if __name__ == "__main__":
    carry_out(run, __doc__, model=MODEL, rounds=5, only="", seconds=math.inf, install=False)
