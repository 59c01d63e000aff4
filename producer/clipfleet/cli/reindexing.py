"""``index --reindex``: into a new collection behind an alias, which stands for it once all is there.

The new collection's name is in the manifest before the first picture is sent, so that a killed run goes on with it.
Once the alias is switched, the manifest becomes that of ordinary runs into the alias::

    (nothing) --begin--> INTO = new, STOOD = old --index, reconcile--> BEFORE = old --switch--> STOOD = new
              --settle--> INTO, BEFORE, STOOD = ""

An alias that stands for neither STOOD nor INTO was switched by somebody else since, and is left as it is.
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Final

from clipfleet.cli.declaring import carried, declare, fields_of
from clipfleet.cli.index_arguments import check_patterns
from clipfleet.cli.index_manifest import CLAIM, CLAIMED, INTO, WHERE, forget_all
from clipfleet.cli.milvus import opened
from clipfleet.cli.queue import QueueView
from clipfleet.cli.reconciling import Verdict
from clipfleet.cli.run import usage
from clipfleet.index import Manifest, ManifestError
from clipfleet.schemas.errors import ClipfleetError, ErrorCode, RequestFailed
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from pathlib import Path

    from clipfleet.cli.indexing import Plan
    from clipfleet.cli.run import Run
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Report
    from clipfleet.store import CollectionInfo, Store

__all__ = ["Reindex", "begin", "check_names", "reindexing", "settle", "switch_run"]

_BEFORE: Final = "before"  # in the manifest: what the alias stood for before it was switched
_STOOD: Final = "stood"  # what the alias is known to have stood for last; "" = unknown
_NOTHING: Final = "-"  # no collection's name
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Reindex:
    """What is asked for.

    Attributes:
        alias: what searches name.
        into: the new collection's name; None = made.
        max_failed: the part of the pictures that may fail, 0 to 1.
        drop_old: whether the collection for which the alias stood is dropped.
        afterwards: the manifest of ordinary runs of the same sources into the alias; None = the same file.
    """

    alias: str
    into: str | None = None
    max_failed: float = 0.01
    drop_old: bool = False
    afterwards: Path | None = None


def reindexing(alias: str, into: str | None, max_failed: str | None, sources: list[str], *, drop_old: bool) -> Reindex:
    """What the flags ask for.

    Raises:
        CliError: usage error: they cannot be.
    """
    if into == alias:
        raise usage(f"--into {into}: --collection is the alias, and the new collection has a name of its own")
    if drop_old:
        check_patterns("--drop-old", sources)
    return Reindex(alias, into, _part_of_one(max_failed or "1%"), drop_old)


def _part_of_one(text: str) -> float:
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise usage(f"--max-failed {text}: a part of all, such as 0.5% or 0.005")
    return part


def begin(run: Run, settings: Settings, plan: Plan, asked: Reindex, manifest: Manifest) -> Plan:
    """The plan with the new collection, made with the columns of the old one and those that are asked for.

    Raises:
        CliError: the alias' name is a collection's; the new collection's name is taken, or claimed by another run.
        RequestFailed, StoreUnavailable: Milvus, or what the fleet is, stands against it.
    """
    begun = manifest.told(INTO)
    new = begun or asked.into or _made_name(asked.alias)
    # Before anybody looks whether it is there: of two who begin it at once the second finds the claim, or the rows.
    _claim(run, settings, manifest, new, begun=bool(begun))
    with opened(settings) as store:
        try:
            old = check_names(store, asked, begun)
        except ClipfleetError:
            if not begun:
                _let_go(settings, manifest, new)
            raise
        if begun:
            run.out.note(f"going on with the new collection {begun!r} (--fresh begins another one)")
        else:
            if manifest.counts():
                # Of an earlier reindexing, which has come to its end: nothing of that is in this one's collection.
                forget_all(manifest)
            manifest.tell(INTO, new)
            manifest.tell(_STOOD, _NOTHING if old is None else old.name)
            manifest.flush()
        plan = replace(plan, fields=carried(old, plan.fields))
        if fields := fields_of(plan.fields):
            declare(store, settings, new, fields)
    stands = "which is not there yet" if old is None else f"which stands for {old.name!r} until then"
    run.out.note(f"reindexing into {new!r}, for the alias {asked.alias!r}, {stands}")
    return replace(plan, sending=replace(plan.sending, collection=new))


def _claim(run: Run, settings: Settings, manifest: Manifest, new: str, *, begun: bool) -> None:
    """Keep others out of the new collection; see ``claims``.

    Raises:
        CliError: usage error: another run is at it.
    """
    by = manifest.told(CLAIM) or secrets.token_hex(10)
    manifest.tell(CLAIM, by)
    manifest.flush()
    given_up = manifest.told(CLAIMED)
    about = f"the run with the manifest {manifest.path.absolute()} on {socket.gethostname()}"
    with QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view:
        holder = view.claim(new, by=by, about=about)
        key = view.claim_key(new)
    if given_up not in {"", new}:
        _let_go(settings, manifest, given_up)
    if holder is None:
        run.out.note(f"this Redis lets nobody see that this run is at {new!r}: begin no other one into it meanwhile")
    elif holder and begun:
        raise usage(f"{holder} has begun {new!r} as well, since this one was stopped", "Give this one up with --fresh.")
    elif holder:
        raise usage(
            f"--into {new}: {holder} has begun it already",
            "Name another collection, one for each run. A run that never comes back keeps it for a day after it was"
            f" last begun, unless somebody deletes the key {key} from Redis.",
        )
    manifest.tell(CLAIMED, new)
    manifest.flush()


def _let_go(settings: Settings, manifest: Manifest, new: str) -> None:
    with (
        suppress(ClipfleetError),  # it ends by itself
        QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view,
    ):
        view.let_go(new, by=manifest.told(CLAIM))


def check_names(store: Store, asked: Reindex, begun: str) -> CollectionInfo | None:
    """What the alias stands for, if the names can be what they are asked to be.

    Args:
        store: asked for them.
        asked: what was asked for.
        begun: the new collection of an earlier run that has not come to its end; empty = there is none.

    Raises:
        CliError: usage error: the alias' name is a collection's; the new collection's name is taken.
        StoreUnavailable: not now.
    """
    old = store.describe(asked.alias)
    if old is not None and old.name == asked.alias:
        raise _no_alias(asked.alias)
    if begun and asked.into not in {None, begun}:
        raise usage(
            f"--into {asked.into}: an earlier run, which has not come to its end, has begun {begun!r}",
            f"Go on with --into {begun} or without --into, or give it up with --fresh.",
        )
    if not begun and asked.into is not None and store.describe(asked.into) is not None:
        raise usage(f"--into {asked.into}: there is such a collection or alias already", "Name one that is not there.")
    return old


def _no_alias(name: str) -> ClipfleetError:
    live = f"{name[:123]}_live"
    return usage(
        f"{name!r} is a collection itself, and Milvus gives no alias the name of one: it cannot be switched",
        f"Take a name that none has, and search by it from then on:  clipfleet index SOURCE... --reindex --collection"
        f" {live}   then   clipfleet search ... --collection {live}",
    )


def _made_name(alias: str) -> str:
    day = datetime.now(UTC).strftime("%Y%m%d")
    return f"{alias[:110]}_{day}_{secrets.token_hex(3)}"


def switch_run(
    settings: Settings,
    plan: Plan,
    asked: Reindex,
    manifest: Manifest,
    report: Report,
    found: Verdict | None,
    unseen: str = "",
) -> Verdict:
    """Let the alias stand for the new collection, unless something stands against it.

    Args:
        settings: of the fleet.
        plan: with the new collection.
        asked: what was asked for.
        manifest: of the run.
        report: of the run.
        found: by reconciling.
        unseen: why nobody knows how many pictures there are; see ``clipfleet.index.sync.Unseen``.
    """
    new = plan.sending.collection
    if doubt := _doubt(asked, report, found, unseen):
        return Verdict(False, f"NOT switched: {asked.alias!r} is as it was, since {doubt}")
    try:
        with opened(settings) as store:
            old, other = _switched(store, asked.alias, new, manifest)
            _let_go(settings, manifest, new)  # from here on it is the collection that is there
            if other:
                return Verdict(
                    False,
                    f"NOT switched: somebody has let {asked.alias!r} stand for {other} since this run"
                    " began; leave it so, or begin another one with --fresh",
                )
            text = f"{asked.alias!r} stands for {new!r} now"
            if not old:
                return Verdict(True, text)
            if not asked.drop_old:
                return Verdict(True, f"{text}; {old!r} is kept ({_rows(store, old)}, the new one {_rows(store, new)})")
            return Verdict(True, f"{text}; {_dropped(store, old)}")
    except ClipfleetError as error:
        return Verdict(False, f"NOT finished: {error}; run it again")


def _doubt(asked: Reindex, report: Report, found: Verdict | None, unseen: str) -> str:
    failed = report.failed.total()
    if report.stopped:
        return f"the run ended early: {report.stopped}; run it again"
    if not report.indexed + report.earlier:
        return "nothing is indexed"
    if mixed := report.failed[ErrorCode.MODEL_MISMATCH]:
        return (
            f"{mixed:,} came from workers of another model than those before, whose the new collection is: give it up"
            " with --fresh, and all is made by the model of now"
        )
    if failed > asked.max_failed * report.found:
        return (
            f"{failed:,} of {report.found:,} failed, which is more than {asked.max_failed:.2%}: mend them and run it"
            " again (--retry-failed for those that failed of themselves), or allow more with --max-failed"
        )
    if (report.incomplete or unseen) and asked.max_failed < 1:
        what = (
            f"{counted(len(report.incomplete), 'source is', 'sources are')} incomplete"
            if report.incomplete
            else f"of {unseen}"
        )
        return (
            f"{what}, and nobody knows how many pictures are missing: mend that and run it again, or allow it with"
            " --max-failed 100%"
        )
    whole = found is not None and found.agrees
    return "" if whole else "the new collection does not hold all that was indexed: run it again"


def _switched(store: Store, alias: str, new: str, manifest: Manifest) -> tuple[str, str]:
    """Switch; what the alias stood for before, and what it was given by somebody else, where it is left alone.

    A run that was killed after its switch finds the first in the manifest.
    """
    from clipfleet.store import retrying  # noqa: PLC0415  imports numpy

    def switch() -> tuple[str, str]:
        found = store.describe(alias)
        stands = _NOTHING if found is None else found.name
        if stands != new:
            if manifest.told(_STOOD) not in {"", stands}:
                return "", "nothing" if found is None else repr(stands)
            manifest.tell(_BEFORE, "" if found is None else stands)
            manifest.flush()
            store.switch(alias, new)
        manifest.tell(_STOOD, new)
        manifest.flush()
        return manifest.told(_BEFORE), ""

    return retrying(switch, deadline=time.monotonic() + _PATIENCE_S, stop=Event())


def _dropped(store: Store, old: str) -> str:
    try:
        store.drop(old)
    except RequestFailed as error:
        if error.code is not ErrorCode.BAD_REQUEST:
            raise
        # It is another alias' as well: who searches by that one is no party to this.
        return f"{old!r} is kept: {error.message}"
    return f"{old!r} was dropped"


def _rows(store: Store, name: str) -> str:
    try:
        return counted(store.count(name), "row")
    except RequestFailed:
        return "gone"


def settle(run: Run, asked: Reindex, path: Path) -> None:
    """After the switch: what the manifest knows is known of the alias' collection, for runs without ``--reindex``."""
    try:
        with Manifest(path) as manifest:
            for noted in (INTO, _BEFORE, _STOOD):
                manifest.tell(noted, "")
            if manifest.told(WHERE):
                manifest.tell(WHERE, f"collection {asked.alias}")
        if asked.afterwards is not None:
            # Nobody holds it, and what a killed run has left beside it is gone, once it was open here.
            with Manifest(asked.afterwards):
                pass
            path.replace(asked.afterwards)
    except (ManifestError, OSError) as error:
        run.out.note(f"the next run without --reindex sends all once more: {error}")
