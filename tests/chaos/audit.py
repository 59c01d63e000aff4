"""The audit: a steady load, a random fault every few seconds, and the books checked at the end.

``python -m chaos.audit --minutes 10 --seed 7`` (``make chaos MINUTES=10``) prints the table and ends with 1 when the
books do not balance. The seed decides which faults come in which order; a thread's timing it does not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chaos.checks import at_rest, picture
from chaos.faults import FAULTS, happen
from chaos.scene import COLLECTION, KILLER, VARIETY, Scene, Sent
from clipfleet.store import Store, StoreConfig
from support.waiting import wait_until

if TYPE_CHECKING:
    import redis

# A worker whose supervisor was killed with it is struck off by another after a minute, looked for each half minute.
REST_S = 120.0
MEMORY_SLACK = 4 * 2**20  # allocator and AOF buffers


@dataclass
class Books:
    """What was found. ``wrong`` is empty when all is well."""

    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: int = 0
    memory: tuple[int, int] = (0, 0)
    rss: tuple[int, int] = (0, 0)
    log_lines_per_s: float = 0.0
    slowest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def check(self, good: object, text: str) -> None:
        if not good:
            self.wrong.append(text)


def reference(scene: Scene) -> dict[tuple[str, int], Any]:
    """The vectors of all texts and pictures, embedded before anything happens; every part has been used by then."""
    client = scene.producers[0].client
    for number in range(len(scene.workers) * 20):
        client.index_image(picture(number % VARIETY), id="warm", collection=COLLECTION)
    client.delete(ids=["warm"], collection=COLLECTION)
    texts = [client.embed_text(f"thing number {n}").vector for n in range(VARIETY)]
    images = [client.embed_image(picture(n)).vector for n in range(VARIETY)]
    named = [("embed_text", texts), ("index_image", images)]
    return {(kind, n): np.array(vector) for kind, vectors in named for n, vector in enumerate(vectors)}


def run(seconds: float, seed: int, *, every_s: tuple[float, float] = (1.0, 4.0), folder: Path) -> Books:
    """Play for ``seconds`` and return the books."""
    pick, books = random.Random(seed), Books(seconds=seconds)
    with Scene(folder, seed) as scene, scene.redis.client() as client:
        expected = reference(scene)
        books.memory = (client.info("memory")["used_memory"], 0)
        books.rss = (resident(scene), 0)
        for producer in scene.producers:
            producer.start()
        began = time.monotonic()
        deck: list[str] = []
        while time.monotonic() - began < seconds:
            scene.go_on_for(pick.uniform(*every_s))
            if not deck:  # shuffled like cards: each comes once before one comes twice
                deck = pick.sample(sorted(FAULTS), len(FAULTS))
            name = deck.pop()
            books.faults[name] += 1
            happen(name, scene, pick)
            scene.look_after()
        for producer in scene.producers:
            producer.stop()
        settle_down(scene, client, books)
        count_answers(scene, client, books, expected)
        count_rows(scene, books, expected)
        lines = sum(worker.log.count("\n") for worker in (*scene.workers, *scene.retired))
        books.log_lines_per_s = lines / (time.monotonic() - began) / len(scene.workers)
    books.check(books.log_lines_per_s < 1, f"{books.log_lines_per_s:.2f} log lines a second and worker")
    return books


def resident(scene: Scene) -> int:
    """Largest resident memory of a worker's processes, in bytes."""
    return max(
        sum(one.memory_info().rss for one in worker.group())
        for worker in scene.workers
        if worker.process.poll() is None
    )


def settle_down(scene: Scene, client: redis.Redis, books: Books) -> None:
    """Everybody is there again, and nothing is queued, leased, counted or left by anyone."""

    def all_there() -> bool:
        scene.look_after()
        return all(len(worker.names) == 1 for worker in scene.workers)

    wait_until(all_there, REST_S, "every worker back")
    try:
        at_rest(client, scene.keys, scene.workers, REST_S)
    except AssertionError as trouble:
        books.wrong.append(str(trouble))
    books.rss = (books.rss[0], resident(scene))


def count_answers(scene: Scene, client: redis.Redis, books: Books, expected: dict[tuple[str, int], Any]) -> None:
    """Accepted = answered, none twice, each with its own content."""
    for producer in scene.producers:
        for one in producer.sent:
            books.outcomes[one.kind, one.outcome] += 1
            allowed = {"poisoned"} if one.kind == KILLER else {"ok"}
            # A full Redis refuses; such a request was never accepted, and its caller knows.
            books.check(one.outcome in allowed | {"queue_full"}, f"{one.job.id} ended as {one.outcome}")
            if one.result is not None:
                books.slowest_s = max(books.slowest_s, one.result.timing.get("age", 0) / 1000)
                check_content(books, one, expected)
            if producer.by_key:
                copies = client.llen(scene.keys.result(one.job.id))
                books.check(copies == (one.outcome != "queue_full"), f"{one.job.id} has {copies} results")
                client.delete(scene.keys.result(one.job.id))
    for inbox in client.scan_iter(match=f"{scene.keys.base}inbox:*"):
        client.delete(inbox)  # of killed clients: they go by themselves within a minute
    for call in client.scan_iter(match=f"{scene.keys.base}call:*"):
        client.delete(call)
    client.delete(scene.keys.dead)
    books.memory = (books.memory[0], client.info("memory")["used_memory"])
    books.check(books.memory[1] <= books.memory[0] + MEMORY_SLACK, f"Redis holds {books.memory[1]} bytes at rest")


def check_content(books: Books, one: Sent, expected: dict[tuple[str, int], Any]) -> None:
    assert one.result is not None
    if one.kind == "echo":
        books.check(one.result.outputs["data"] == one.number, f"{one.job.id} got another's answer")
    if one.kind == "embed_text":
        vector = expected["embed_text", one.number % VARIETY]
        books.check(np.allclose(one.result.vector, vector, atol=1e-4), f"{one.job.id} got another's vector")


def count_rows(scene: Scene, books: Books, expected: dict[tuple[str, int], Any]) -> None:
    """Stored rows = index requests answered ok, with their content, read at Strong."""
    indexed = [
        one for each in scene.producers for one in each.sent if one.kind == "index_image" and one.outcome == "ok"
    ]
    store = Store(StoreConfig(scene.lite.uri))
    books.rows = store.count(COLLECTION)
    books.check(books.rows == len(indexed), f"{books.rows} rows for {len(indexed)} requests answered ok")
    for start in range(0, len(indexed), 500):
        part = indexed[start : start + 500]
        for one, row in zip(part, store.get(COLLECTION, [each.job.id for each in part]), strict=True):
            vector = expected["index_image", one.number % VARIETY]
            same = row is not None and row.metadata == {"n": one.number} and np.allclose(row.vector, vector, atol=1e-4)
            books.check(same, f"the row of {one.job.id} is {'missing' if row is None else 'another'}")
    store.close()


def table(books: Books, seed: int) -> str:
    """The books, in Markdown."""
    lines = [f"{books.seconds / 60:g} minutes, seed {seed}, {sum(books.faults.values())} faults", ""]
    lines += ["| fault | times | loss allowed |", "|---|---|---|"]
    lines += [f"| {name} | {books.faults[name]} | none |" for name in FAULTS]
    lines += ["", "| requests | ended as | number |", "|---|---|---|"]
    lines += [f"| {kind} | {outcome} | {number} |" for (kind, outcome), number in sorted(books.outcomes.items())]
    answered = sum(number for (_, outcome), number in books.outcomes.items() if outcome != "queue_full")
    sent = sum(books.outcomes.values())
    mib = 2**20
    lines += [
        "",
        "| books | |",
        "|---|---|",
        f"| sent; refused (queue_full while Redis was full); accepted | {sent}; {sent - answered}; {answered} |",
        f"| accepted and answered | {answered} |",
        f"| rows stored, all with the content of their request | {books.rows} |",
        f"| Redis at rest, before and after | {books.memory[0] / mib:.1f} and {books.memory[1] / mib:.1f} MiB |",
        f"| largest worker, before and after | {books.rss[0] / mib:.0f} and {books.rss[1] / mib:.0f} MiB |",
        f"| log | {books.log_lines_per_s:.2f} lines a second and worker |",
        f"| oldest request when it was answered | {books.slowest_s:.1f} s |",
        f"| what does not balance | {len(books.wrong) or 'nothing'} |",
        *(f"| | {one} |" for one in books.wrong[:20]),
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the audit as told on the command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos.audit", description="faults injected on purpose")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10_000)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="clipfleet-audit-") as folder:
        books = run(options.minutes * 60, options.seed, folder=Path(folder))
    print(table(books, options.seed))
    return 1 if books.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
