"""Rows taken out by the fleet: page after page, so that neither a request nor Milvus has to hold them all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.filter_keys import kinds_of, meets_all, tell_unfit
from clipfleet.cli.run import usage
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clipfleet.cli.items import Item
    from clipfleet.cli.run import Run
    from clipfleet.cli.settings import Settings
    from clipfleet.producer import Client
    from clipfleet.producer.requests import NewRequest
    from clipfleet.schemas.result import Result

__all__ = ["by_filter", "by_ids"]

_IDS_AT_ONCE: Final = 250
_ROWS_AT_ONCE: Final = 16_384  # what one look-up of Milvus can give
_MOST_ID_BYTES: Final = 1_024  # no store takes longer ones
_SHOWN: Final = 10


def by_filter(run: Run, settings: Settings, collection: str, where: str, *, yes: bool, dry_run: bool) -> int:
    """Delete what a filter fits; the exit code.

    Raises:
        RequestFailed: the filter cannot be read, there is no such collection, nobody is there, Milvus is away.
    """
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.cli.progress import Progress  # noqa: PLC0415
    from clipfleet.producer import requests  # noqa: PLC0415

    def count(expression: str) -> NewRequest:
        return requests.delete(filter=expression, collection=collection, dry_run=True)

    told = _first(settings, count(where))
    with connect(settings, lane="bulk", wait_for_worker=True) as client:
        matched = int(told.outputs["matched"])
        fit = "matches" if matched == 1 else "match"
        deleted = 0
        asked = {} if matched and meets_all(where) else kinds_of(where)
        wrong = tell_unfit(run.out, client, collection, asked, by=count)
        if matched and yes and wrong and not dry_run:
            # Behind a "!=" it fits every row, and there is nobody who could think better of it.
            text = f"--filter: {counted(matched, 'row')} of {collection!r} {fit}, though {' and '.join(wrong)}"
            every = 'id != "" fits each row'
            raise usage(text, f"Leave out what asks for it, if they are to go ({every}); nothing was deleted.")
        if matched and not (yes or dry_run or run.out.can_ask):
            text = f"--filter: {counted(matched, 'row')} of {collection!r} {fit}, and there is no terminal to ask on"
            raise usage(text, "Give --yes to delete them; nothing was deleted.")
        if matched and not dry_run:
            if not yes and not run.out.ask(f"delete {counted(matched, 'row')} of {collection!r}?"):
                raise CliError("nothing was deleted")
            if yes:
                run.out.note(f"{counted(matched, 'row')} of {collection!r} {fit}")
            with Progress(run.out, "deleting", lambda: range(matched)) as progress:
                for page in _pages(client, collection, where):
                    deleted += page
                    progress.advance(failed=False, by=page)
    if run.out.json_lines:
        run.out.json({"input": where, "ok": True, "matched": matched, "deleted": deleted})
    elif dry_run:
        run.out.line(f"{counted(matched, 'row')} of {collection!r} would be deleted")
    else:
        run.out.line(f"{counted(deleted, 'row')} of {collection!r} deleted")
    return Exit.OK


def _pages(client: Client, collection: str, where: str) -> Iterator[int]:
    from clipfleet.producer import requests  # noqa: PLC0415

    deleted = _ROWS_AT_ONCE
    total = 0
    while deleted == _ROWS_AT_ONCE:
        try:
            answer = _one(client, requests.delete(filter=where, collection=collection, limit=_ROWS_AT_ONCE))
        except RequestFailed as error:
            done = f"{counted(total, 'row')} had been deleted before; the same command deletes the rest"
            raise error_for(error.code, f"{error.message}; {done}", retryable=error.retryable) from None
        deleted = int(answer.outputs["deleted"])
        total += deleted
        yield deleted


def _first(settings: Settings, request: NewRequest) -> Result:
    """The result of the first request: where nobody lives to take it, that is said at once.

    Those after it wait for a worker that is being restarted. Not by looking for workers: a producer may not.
    """
    from clipfleet.cli.client import connect  # noqa: PLC0415

    with connect(settings, lane="bulk") as client:
        return _one(client, request)


def _one(client: Client, request: NewRequest) -> Result:
    """The result of one request; a full queue is waited for."""
    (result,) = client.map([request])
    if result.error is not None:
        raise result.error
    return result


def by_ids(run: Run, settings: Settings, collection: str, arguments: Sequence[str], *, dry_run: bool) -> int:
    """Delete the rows with these ids, ``-`` standing for the lines of stdin; the exit code."""
    from clipfleet.cli.client import connect  # noqa: PLC0415
    from clipfleet.cli.items import Tally, groups_of, text_items  # noqa: PLC0415
    from clipfleet.cli.progress import Progress  # noqa: PLC0415
    from clipfleet.producer import requests  # noqa: PLC0415

    tally = Tally(run.out)
    told = _Told(run, collection, dry_run=dry_run)
    known = () if "-" in arguments else arguments
    _first(settings, requests.echo(None))
    with (
        connect(settings, lane="bulk", wait_for_worker=True) as client,
        Progress(run.out, "deleting", lambda: known) as progress,
    ):
        for group in groups_of(arguments) or ():
            # Every line has an end, and a file's last one often two; an argument that is empty is meant.
            items = text_items(each for each in group if each != b"")
            for one in _answers(client, collection, items, dry_run=dry_run):
                tally.add(one.error)
                progress.advance(failed=one.error is not None)
                told.add(one)
    told.end()
    return tally.end()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What became of one id.

    Attributes:
        id: as it was given, printable.
        found: whether it had a row.
        error: why nobody knows; None when all is well.
    """

    id: str
    found: bool
    error: RequestFailed | None = None


def _answers(client: Client, collection: str, items: Iterable[Item], *, dry_run: bool) -> Iterator[_Answer]:
    """What became of each id, in order."""
    from clipfleet.producer import requests  # noqa: PLC0415

    order: deque[list[Item]] = deque()

    def made() -> Iterator[NewRequest]:
        for page in _paged(items):
            order.append(page)
            ids = [item.value for item in page if isinstance(item.value, str) and _problem(item) is None]
            yield requests.delete(ids=ids, collection=collection, dry_run=dry_run, return_missing=True)

    for result in client.map(made(), max_in_flight=4, ordered=True):
        missing = set(result.outputs.get("missing") or ())
        for item in order.popleft():
            error = _problem(item) or result.error
            yield _Answer(item.label, error is None and item.value not in missing, error)


def _paged(items: Iterable[Item]) -> Iterator[list[Item]]:
    page: list[Item] = []
    for item in items:
        page.append(item)
        if len(page) == _IDS_AT_ONCE:
            yield page
            page = []
    if page:
        yield page


def _problem(item: Item) -> RequestFailed | None:
    """Why an id can be none; it would be refused together with all others of its request."""
    if isinstance(item.value, RequestFailed):
        return item.value
    size = len(item.value.encode() if isinstance(item.value, str) else item.value)
    if 0 < size <= _MOST_ID_BYTES:
        return None
    text = f"an id has 1 to {_MOST_ID_BYTES:,} bytes of UTF-8, this one {size:,}"
    return error_for(ErrorCode.BAD_REQUEST, text)


class _Told:
    """Says what became of the ids."""

    def __init__(self, run: Run, collection: str, *, dry_run: bool) -> None:
        self._out = run.out
        self._collection = collection
        self._dry_run = dry_run
        self._found = self._missing = self._failed = 0

    def add(self, one: _Answer) -> None:
        """One more."""
        from clipfleet.cli.commands.embed import failure_json  # noqa: PLC0415

        if one.error is not None:
            self._failed += 1
        elif one.found:
            self._found += 1
        else:
            self._missing += 1
        if self._out.json_lines:
            if one.error is not None:
                self._out.json({"input": one.id, "ok": False, "error": failure_json(one.error)})
            else:
                deleted = one.found and not self._dry_run
                self._out.json({"input": one.id, "ok": True, "found": one.found, "deleted": deleted})
        elif one.error is not None and self._failed <= _SHOWN:
            self._out.failed(one.id, one.error)
        elif one.error is None and not one.found and self._missing <= _SHOWN:
            self._out.note(f"{one.id}: there was no such row")

    def end(self) -> None:
        """Say how many."""
        if self._out.json_lines:
            return
        hidden = max(0, self._missing - _SHOWN) + max(0, self._failed - _SHOWN)
        if hidden:
            self._out.note(f"and {hidden:,} more; --json names them all")
        what = "would be deleted" if self._dry_run else "deleted"
        missing = f"; {self._missing:,} of the ids had none" if self._missing else ""
        failed = f"; {self._failed:,} failed" if self._failed else ""
        self._out.line(f"{counted(self._found, 'row')} of {self._collection!r} {what}{missing}{failed}")
