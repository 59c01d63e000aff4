"""The manifest of one indexing run of the command line: opened, and asked whether it is this run's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError
from clipfleet.cli.run import usage
from clipfleet.index import Manifest, ManifestError, ManifestHeld, manifest_name
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from contextlib import ExitStack

    from clipfleet.cli.indexing import Plan
    from clipfleet.cli.run import Run
    from clipfleet.index import Columns

__all__ = [
    "CLAIM",
    "CLAIMED",
    "INTO",
    "WHERE",
    "check_corpus",
    "check_place",
    "corpus_of",
    "default_manifest",
    "forget_all",
    "open_manifest",
]

# What is noted in it: where a named one's rows go, of which sources, and into which new collection one reindexes.
WHERE: Final = "where"
INTO: Final = "into"
CLAIM: Final = "claim"  # by what a run knows its claim on that collection again; the manifest's own for ever
CLAIMED: Final = "claimed"  # the collection that it has claimed last, which it may have given up since
_CORPUS: Final = "corpus"
_SEVERAL: Final = "several"


def open_manifest(run: Run, plan: Plan, stack: ExitStack) -> Manifest | None:
    """The manifest, held until ``stack`` ends; None where the run goes without one.

    Raises:
        CliError: another run holds it; it is another collection's, or with ``--sync`` other sources', too.
        ManifestError: it cannot be used, and there is no going without.
    """
    if plan.manifest is None:
        return None
    try:
        manifest = stack.enter_context(Manifest(plan.manifest))
    except ManifestHeld as error:
        raise CliError(str(error), hint="Wait for it, or stop it: the same command then goes on.") from None
    except ManifestError as error:
        if plan.named or plan.sync or plan.dedupe or plan.files is not None or plan.reindex is not None:
            raise
        run.out.note(f"{error}; this run cannot be resumed (--manifest FILE names another place)")
        return None
    if plan.fresh:
        if left := manifest.told(INTO):
            run.out.note(f"the collection {left!r}, which an earlier run has begun, is left as it is")
        forget_all(manifest)
    known = manifest.counts().total()
    if plan.named:
        _check(manifest, plan)
    if known:
        items = counted(known, "item is", "items are")
        run.out.note(f"going on with {manifest.path}: {items} known from before (--fresh forgets that)")
    return manifest


def forget_all(manifest: Manifest) -> None:
    """Forget everything but by what its claims are known: else it would stand in its own way."""
    kept = {noted: told for noted in (CLAIM, CLAIMED) if (told := manifest.told(noted))}
    manifest.clear()
    for noted, told in kept.items():
        manifest.tell(noted, told)
    manifest.flush()


def check_place(manifest: Manifest, plan: Plan) -> str:
    """Where the rows of a manifest go, as it is noted there.

    Raises:
        CliError: usage error: it is another place's, and what is done there would not be sent to here.
    """
    where = f"collection {plan.sending.collection}" if plan.files is None else f"files in {plan.files.out.absolute()}"
    if plan.reindex is not None:
        where = f"a new collection for {plan.reindex.alias}"
    before = manifest.told(WHERE)
    if before not in {"", where}:
        raise usage(f"{manifest.path} is the manifest of {before}, and not of {where}", "Name another with --manifest.")
    return where


def _check(manifest: Manifest, plan: Plan) -> None:
    """What is done elsewhere would not be sent to here; and others' pictures would be taken for gone."""
    where = check_place(manifest, plan)
    corpus = check_corpus(manifest, plan)
    manifest.tell(WHERE, where)
    manifest.tell(_CORPUS, corpus)
    manifest.flush()


def check_corpus(manifest: Manifest, plan: Plan) -> str:
    """Of which sources a manifest is with this plan, as it is noted there.

    Raises:
        CliError: usage error: with ``--sync`` others' pictures would be taken for gone.
    """
    corpus = manifest.told(_CORPUS)
    if corpus == plan.corpus or not (corpus or manifest.counts()):
        return plan.corpus
    if plan.sync:
        raise usage(
            f"--sync: {manifest.path} knows pictures of other sources, too, whose rows would be deleted",
            "Name another with --manifest, one for each corpus.",
        )
    return _SEVERAL


def corpus_of(sources: list[str], columns: Columns, shard: str | None) -> list[object]:
    """The same for the same sources and options that pick items; how they travel changes nothing."""
    places = [os.path.abspath(source) for source in sources]  # noqa: PTH100 - Path drops what a pattern ends in
    root = None if columns.root is None else str(columns.root.absolute())
    return [places, [columns.url, columns.path, columns.id, root], shard]


def default_manifest(run: Run, collection: str, corpus: list[object]) -> Path:
    """Where the manifest is when nobody names one: the same for the same fleet and corpus."""
    from clipfleet.cli.local import FOLDER, find_live  # noqa: PLC0415
    from clipfleet.cli.settings import load, redacted  # noqa: PLC0415

    asked = load(run.flags)
    # A local fleet is at other ports each time it starts.
    live = run.flags.local or (asked.source == "the default" and find_live(Path.cwd()) is not None)
    fleet = ["local"] if live else [redacted(asked.redis_url), asked.queue, asked.prefix]
    return Path(FOLDER) / "index" / manifest_name(collection, fleet, *corpus)
