"""Several producer processes: reading, shrinking and sending are what one process cannot do fast enough.

The parent finds the items, remembers them, and hands them out in chunks; each child has a client of its own::

    parent --(number, sending, items)--> child --(number, answers, seconds)--> parent

A child ends with its pipe, so with its parent, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

from clipfleet.schemas.errors import ClipfleetError, RequestFailed, error_for
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.context import SpawnProcess

    from clipfleet.index.meter import Meter
    from clipfleet.index.sending import Sending
    from clipfleet.index.sources import Item
    from clipfleet.producer import Client
    from clipfleet.producer.requests import NewRequest

__all__ = ["UNSENT", "Processes", "ProducerDied"]

_CHUNK_ITEMS: Final = 64
_CHUNK_BYTES: Final = 8 << 20
# Two at work, so that none waits while the other's last answers come, and one behind them.
_AT_WORK: Final = 2
_PER_CHILD: Final = 3
_MOST_GIVEN: Final = 16
_END_S: Final = 10.0
# Among an answer's notes: the item was not sent, since it could not be read.
UNSENT: Final = "unsent"

# (error code, message, retryable) or None; the vector's map or None; the model; timing; notes
_Answer: TypeAlias = "tuple[tuple[str, str, bool] | None, Any, str, dict[str, float], dict[str, Any]]"


class ProducerDied(ClipfleetError):
    """A producer process ended before its work was done; the same run goes on with its manifest."""


@dataclass(slots=True)
class _Child:
    process: SpawnProcess
    pipe: Connection
    chunks: int = 0


class Processes:
    """Producer processes in place of a client, for ``index_sources``; a context manager.

    They are started afresh ("spawn"): a script that makes some does so below ``if __name__ == "__main__"``.

    Args:
        count: how many.
        url: Redis.
        options: the other arguments of each process's ``Client``.
    """

    def __init__(self, count: int, url: str, **options: Any) -> None:
        self._count = count
        self._client = (url, options)
        self._children: list[_Child] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for number in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, *self._client), name=f"index-{number}", daemon=True)
            process.start()
            theirs.close()
            self._children.append(_Child(process, ours))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for child in self._children:
            with suppress(OSError):
                if kind is None:
                    child.pipe.send(None)
                else:
                    child.pipe.close()
        for child in self._children:
            child.process.join(_END_S)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
            child.pipe.close()
        self._children.clear()

    def map(self, items: Iterable[Item], sending: Sending, meter: Meter) -> Iterator[Result]:
        """The answer to each item, in their order; its notes hold ``UNSENT`` where it could not be read.

        Raises:
            ProducerDied: a process has ended.
        """
        chunks = enumerate(_chunks(items))
        finished: dict[int, list[_Answer]] = {}
        given: deque[int] = deque()
        exhausted = False
        while given or not exhausted:
            # However long the first one takes, not everything waits in memory behind it.
            while not exhausted and len(given) < _MOST_GIVEN * self._count and (child := self._free()) is not None:
                number, chunk = next(chunks, (0, None))
                exhausted = chunk is None
                if chunk is not None:
                    given.append(number)
                    self._give(child, (number, sending, chunk))
            if given and given[0] not in finished:
                self._collect(finished, meter)
            while given and given[0] in finished:
                yield from map(_result, finished.pop(given.popleft()))

    def _free(self) -> _Child | None:
        child = min(self._children, key=lambda each: each.chunks)
        return child if child.chunks < _PER_CHILD else None

    def _give(self, child: _Child, message: object) -> None:
        try:
            child.pipe.send(message)
        except OSError:
            raise _died(child) from None
        child.chunks += 1

    def _collect(self, finished: dict[int, list[_Answer]], meter: Meter) -> None:
        by_pipe = {child.pipe: child for child in self._children}
        for ready in wait(list(by_pipe)):
            child = by_pipe[cast("Connection", ready)]
            try:
                number, answers, seconds = child.pipe.recv()
            except (EOFError, OSError):
                raise _died(child) from None
            child.chunks -= 1
            finished[number] = answers
            meter.made(seconds / len(self._children))


def _died(child: _Child) -> ProducerDied:
    child.process.join(1.0)
    return ProducerDied(f"producer process {child.process.pid} has ended with exit code {child.process.exitcode}")


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(item.picture) if isinstance(item.picture, bytes) else 0
        if len(chunk) >= _CHUNK_ITEMS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _result(answer: _Answer) -> Result:
    failed, vector, model, timing, notes = answer
    error = None if failed is None else error_for(failed[0], failed[1], retryable=failed[2])
    outputs = {} if vector is None else {"vector": vector}
    return Result("", ok=error is None, outputs=outputs, error=error, model=model, notes=notes, timing=timing)


def _serve(pipe: Connection, url: str, options: dict[str, Any]) -> None:
    """A child's life: chunks come while others are at work, so that the parent never waits to give one."""
    from clipfleet.producer import Client  # noqa: PLC0415

    # Ctrl-C goes to all of a terminal's processes, and the parent says what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    todo: SimpleQueue[Any] = SimpleQueue()
    answers = threading.Lock()
    with Client(url, **options) as client:
        threads = [threading.Thread(target=_work, args=(client, todo, pipe, answers)) for _ in range(_AT_WORK)]
        for thread in threads:
            thread.start()
        try:
            while (message := pipe.recv()) is not None:
                todo.put(message)
        except (EOFError, OSError):
            # Nobody wants answers any more: what is on its way is the manifest's to send again.
            os._exit(1)
        for _ in threads:
            todo.put(None)
        for thread in threads:
            thread.join()


def _work(client: Client, todo: SimpleQueue[Any], pipe: Connection, answers: threading.Lock) -> None:
    try:
        while (message := todo.get()) is not None:
            number, sending, items = message
            found, seconds = _carry_out(client, sending, items)
            with answers:
                pipe.send((number, found, seconds))
    except OSError:
        os._exit(1)
    except BaseException:  # noqa: BLE001 - a thread that ended in silence would be waited for for ever
        traceback.print_exc()
        os._exit(1)


def _carry_out(client: Client, sending: Sending, items: Sequence[Item]) -> tuple[list[_Answer], float]:
    """The answers to items, in their order; and how long it took to read and shrink them, in seconds."""
    found: list[_Answer | None] = []
    seconds = 0.0

    def requests() -> Iterator[NewRequest]:
        nonlocal seconds
        for item in items:
            began = time.monotonic()
            try:
                request = sending.request(item)
            except RequestFailed as error:
                found.append((_parts(error), None, "", {}, {UNSENT: True}))
                continue
            found.append(None)
            seconds += time.monotonic() - began
            yield request

    results = list(client.map(requests(), max_in_flight=len(items)))
    left = iter(results)
    return [_answer(next(left)) if each is None else each for each in found], seconds


def _answer(result: Result) -> _Answer:
    failed = None if result.error is None else _parts(result.error)
    return failed, result.outputs.get("vector"), result.model, result.timing, result.notes


def _parts(error: RequestFailed) -> tuple[str, str, bool]:
    return error.code.value, error.message, error.retryable
