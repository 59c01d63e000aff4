"""A source that may wait for something of its own, asked in a thread beside the one that takes results out."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.producer.requests import NewRequest

__all__ = ["Answer", "Asked"]


@dataclass(slots=True)
class Answer:
    """What a source gave.

    Attributes:
        request: the next one; None where there is none.
        error: what it raised; None where it has come to its end.
    """

    request: NewRequest | None = None
    error: BaseException | None = None


class Asked:
    """Asks for the next request when told to, one at a time, so that no more is taken than there is room for.

    Attributes:
        exhausted: whether the source has come to its end.

    Args:
        source: used, and in the end closed, by the thread alone; a generator that is at work cannot be closed.
        tell: given each answer, in the thread.
    """

    def __init__(self, source: Iterator[NewRequest], tell: Callable[[Answer], None]) -> None:
        self.exhausted = False
        self._source = source
        self._tell = tell
        self._under_way = self._left = False
        self._wanted = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="clipfleet-source", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask for the next one, unless that is under way or there is none."""
        if not self._under_way and not self.exhausted:
            self._under_way = True
            self._wanted.release()

    def answered(self, answer: Answer) -> NewRequest | None:
        """Take an answer; raises what the source raised."""
        self._under_way = False
        self.exhausted = answer.request is None
        if answer.error is not None:
            raise answer.error
        return answer.request

    def leave(self) -> None:
        """Nothing more is wanted: the thread ends when the source lets go of it."""
        self._left = True
        self._wanted.release()

    def _run(self) -> None:
        while self._wanted.acquire() and not self._left:
            try:
                answer = Answer(next(self._source))
            except StopIteration:
                answer = Answer()
            except BaseException as error:  # noqa: BLE001 - the caller's own, which is raised where it is waited for
                answer = Answer(error=error)
            self._tell(answer)
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
