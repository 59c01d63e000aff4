"""The manifest of one indexing run of the command line: opened, and asked whether it is this run's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError
from clipfleet.cli.run import usage
from clipfleet.index import Manifest, ManifestError, ManifestHeld

if TYPE_CHECKING:
    from contextlib import ExitStack

    from clipfleet.cli.indexing import Plan
    from clipfleet.cli.run import Run

__all__ = ["open_manifest"]

_WHERE, _CORPUS = "where", "corpus"
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
        if plan.named or plan.sync or plan.dedupe or plan.files is not None:
            raise
        run.out.note(f"{error}; this run cannot be resumed (--manifest FILE names another place)")
        return None
    if plan.fresh:
        manifest.clear()
    known = manifest.counts().total()
    if plan.named:
        _check(manifest, plan, known)
    if known:
        run.out.note(f"going on with {manifest.path}: {known:,} items are known from before (--fresh forgets them)")
    return manifest


def _check(manifest: Manifest, plan: Plan, known: int) -> None:
    """What is done elsewhere would not be sent to here; and others' pictures would be taken for gone."""
    where = f"collection {plan.sending.collection}" if plan.files is None else f"files in {plan.files.out.absolute()}"
    before = manifest.told(_WHERE)
    if before not in {"", where}:
        raise usage(f"{manifest.path} is the manifest of {before}, and not of {where}", "Name another with --manifest.")
    corpus = manifest.told(_CORPUS)
    if corpus != plan.corpus and (corpus or known):
        if plan.sync:
            raise usage(
                f"--sync: {manifest.path} knows pictures of other sources, too, whose rows would be deleted",
                "Name another with --manifest, one for each corpus.",
            )
        corpus = _SEVERAL
    manifest.tell(_WHERE, where)
    manifest.tell(_CORPUS, corpus or plan.corpus)
    manifest.flush()
