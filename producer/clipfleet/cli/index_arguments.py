"""What some flags of ``clipfleet index`` mean, and which of them cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.cli.run import usage
from clipfleet.index import Part, Send, SourceError
from clipfleet.index.part import by_file
from clipfleet.index.shrink import SHRINK_PX, can_shrink
from clipfleet.index.sources.folder import is_pattern
from clipfleet.index.sources.remote import is_remote

if TYPE_CHECKING:
    from clipfleet.index import Source

__all__ = ["check_patterns", "check_sync", "how_to_send", "part_of_n", "shrink_px"]


def check_sync(
    sources: list[str], opened: list[Source], part: Part | None, *, forgets: bool, told_of_dedupe: bool
) -> None:
    """Refuse what would have rows deleted whose pictures are there, and what ``--sync`` has no answer to.

    Args:
        sources: as they were given.
        opened: the same, opened.
        part: that of this host.
        forgets: whether there is no manifest of earlier runs, or of no collection.
        told_of_dedupe: whether a dry run is to tell which duplicates take the places of what has left.
    """
    if forgets:
        raise usage("--sync goes with neither --to nor --fresh")
    if told_of_dedupe:
        # Whose kept picture leaves takes its place, and which of several that is comes out when it is sent.
        raise usage("--sync --dry-run does not go with --dedupe: which duplicates would be sent is not known before")
    if part is not None and any(map(by_file, opened)):
        # One host would delete what another one has just indexed.
        raise usage("--sync goes with --shard for folders and tables alone: other hosts take what a new file displaces")
    check_patterns("--sync", sources)


def check_patterns(flag: str, sources: list[str]) -> None:
    """Refuse what nobody knows to be whole: fsspec's glob leaves out what it cannot list, and says nothing."""
    if any(is_remote(source) and is_pattern(source) for source in sources):
        raise usage(f"{flag}: of a pattern in a store some may be missing unsaid; name the folder instead")


def part_of_n(text: str) -> Part:
    """``--shard I/N``."""
    try:
        return Part.parse(text)
    except SourceError as error:
        raise usage(f"--shard {error}") from None


def shrink_px(asked: int | None) -> int:
    """``--shrink``: pixels of the shorter side, where this machine can do it; 0 = none."""
    if can_shrink():
        return SHRINK_PX if asked is None else asked
    if asked:
        raise usage("--shrink needs Pillow", 'pip install "clipfleet[index]"')
    return 0


def how_to_send(send: str | None, given: list[str]) -> tuple[Send | None, dict[str, Path]]:
    """``--send``, and the folders of ``--root NAME=DIR`` by their names."""
    if send not in {None, *Send}:
        raise usage(f"--send {send}: one of {', '.join(Send)}")
    roots: dict[str, Path] = {}
    for each in given:
        name, equals, folder = each.partition("=")
        if not name or not equals or "/" in name or ":" in name or not Path(folder).is_dir():
            raise usage(f"--root {each}: NAME=DIR, where DIR is a folder of this machine")
        roots[name] = Path(folder)
    if (send == Send.PATH) != bool(roots):
        raise usage("--send path and --root NAME=DIR go together")
    return (None if send is None else Send(send)), roots
