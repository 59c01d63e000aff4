"""One request on its way, as the core sees it.

::

    WAITING ──▶ CALLING ──▶ ACCEPTED ──▶ DONE
       │           │                      ▲
       └───────────┴── refused, cancelled, expired, no Redis, or its result came first
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    from clipfleet.schemas.errors import RequestFailed
    from clipfleet.schemas.keys import Lane

__all__ = ["Pending", "Stage"]


class Stage(IntEnum):
    """How far a request has come."""

    WAITING = 0  # not in any admit call
    CALLING = 1  # in an admit call whose answer is not known: it may be in the queue
    ACCEPTED = 2  # in the queue
    DONE = 3  # ``ending`` is set


# Looked at for each request: a member costs more than a name.
_WAITING, _CALLING, _DONE = Stage.WAITING, Stage.CALLING, Stage.DONE


class Pending:
    """A request, its deadline and, in the end, its result. Faces add how somebody waits for it.

    Attributes:
        id: the request's id.
        lane: which lane it goes to.
        payload: msgpack of the request; dropped when no call needs it any more.
        submitted: when, by the monotonic clock, in s.
        deadline: until when, by the monotonic clock, in s.
        inbox: whether its result comes to this client's inbox (else to a key of its own).
        stage: how far it has come.
        ending: how it ended.
        watched: somebody waits for ACCEPTED.
        found: it was submitted elsewhere, if ever: this client knows nothing of it but its id.
    """

    __slots__ = ("deadline", "ending", "found", "id", "inbox", "lane", "payload", "stage", "submitted", "watched")

    def __init__(
        self,
        request_id: str,
        lane: Lane,
        payload: bytes,
        submitted: float,
        deadline: float,
        inbox: bool,  # noqa: FBT001 - by name it would be a dict for every request
    ) -> None:
        self.id = request_id
        self.lane = lane
        self.payload = payload
        self.submitted = submitted
        self.deadline = deadline
        self.inbox = inbox
        self.stage = _WAITING
        self.ending: Result | None = None
        self.watched = False
        self.found = False

    def known_by_id(self) -> None:
        """It was submitted elsewhere: nothing is to be sent, and its result may be there or come."""
        self.found, self.stage = True, Stage.ACCEPTED

    def ended(self, result: Result) -> None:
        """Set the result; whoever waits is told by ``notify`` when the whole batch has been read."""
        self.ending = result
        if self.stage is not _CALLING:  # else its call may have to be sent again, whole
            self.payload = b""
        self.stage = _DONE

    def failed(self, error: RequestFailed) -> None:
        """End with ``error``."""
        error.request_id = self.id
        self.ended(Result(self.id, ok=False, error=error))

    def notify(self) -> None:
        """Called once when DONE and, if ``watched``, once when ACCEPTED."""
