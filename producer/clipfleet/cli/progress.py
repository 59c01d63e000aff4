"""How far a long run is: a bar on a terminal, JSON log lines elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from clipfleet.cli.output import Output

__all__ = ["Progress"]

_LOG_EVERY_S: Final = 5.0


class Progress:
    """Progress of one run over items; a context manager.

    Args:
        out: where to.
        what: what is being done: ``indexing``.
        bottleneck: what it waits for at the moment; empty where that is not known.
        count: yields once for each item there will be; walked in a thread of its own, so that the total (and with it
            the time left) is known soon without anybody waiting for it.
    """

    def __init__(
        self,
        out: Output,
        what: str,
        count: Callable[[], Iterable[object]],
        bottleneck: Callable[[], str] = lambda: "",
    ) -> None:
        self._out = out
        self._bottleneck = bottleneck
        self._what = what
        self._count = count
        self._done = self._failed = self._earlier = 0
        self._total: int | None = None
        self._began = self._logged = time.monotonic()
        self._stop = threading.Event()
        self._counter = threading.Thread(target=self._count_all, name="count", daemon=True)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._bar, self._task = self._out.bar(self._what)
            self._bar.start()
        self._counter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._counter.join()
        if self._bar is not None:
            self._bar.stop()

    def advance(self, *, failed: bool, earlier: bool = False, by: int = 1) -> None:
        """``by`` more items are done; ``earlier``: by an earlier run, which says nothing of this one's rate."""
        self._done += 0 if earlier else by
        self._earlier += by if earlier else 0
        self._failed += by if failed else 0
        now = time.monotonic()
        if self._bar is not None and self._task is not None:
            rate = self._done / max(now - self._began, 1e-9)
            self._bar.update(
                self._task,
                description=self._named(),
                completed=self._done + self._earlier,
                total=self._total,
                failed=self._failed,
                rate=rate,
            )
        elif now - self._logged >= _LOG_EVERY_S:
            self._logged = now
            self._out.log().info(self._what, **self._figures(now))

    def _figures(self, now: float) -> dict[str, Any]:
        rate = self._done / max(now - self._began, 1e-9)
        figures: dict[str, Any] = {"done": self._done, "failed": self._failed, "per_second": round(rate, 1)}
        if slowest := self._bottleneck():
            figures["bottleneck"] = slowest
        if self._earlier:
            figures["earlier"] = self._earlier
        if self._total is not None and self._done:
            left = max(0, self._total - self._done - self._earlier)
            figures |= {"total": self._total, "left_s": round(left / rate, 1)}
        return figures

    def _named(self) -> str:
        slowest = self._bottleneck()
        return f"{self._what} (waits for the {slowest})" if slowest else self._what

    def _count_all(self) -> None:
        total = 0
        try:
            for _ in self._count():
                total += 1
                if self._stop.is_set():
                    return
        except OSError:
            # The run meets the same trouble and reports it; without a total there is only no time left to show.
            return
        self._total = total
