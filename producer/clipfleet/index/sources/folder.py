"""Folders of pictures, single files, and patterns of both."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.index.files import printable
from clipfleet.index.sources.item import Failure, Hides, Item, Skip
from clipfleet.index.sources.seen import Met
from clipfleet.index.walk import Found, has_suffix, walk, walk_below
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clipfleet.index.sources.item import Event
    from clipfleet.index.sources.seen import Seen

__all__ = ["Folders", "Glob", "is_pattern", "matches"]

_MAGIC: Final = re.compile(r"[*?]|\[[^\]]+\]")


class Folders:
    """Folders and single files: as ``walk`` finds them."""

    about = ""

    def __init__(self, paths: Sequence[Path], *, alone: bool = True) -> None:
        """Take the folders.

        Args:
            paths: folders and files.
            alone: there is this one alone: a file system holds no path twice, so that ids need not be kept.
        """
        self._paths = paths
        self._alone = alone

    def events(self, seen: Seen) -> Iterator[Event]:
        """A picture for each file that is one by its name."""
        empty: list[Path] = []
        yield from _events(
            lambda on_skipped: walk(self._paths, on_skipped=on_skipped, on_empty=empty.append),
            seen,
            alone=self._alone,
        )
        for path in empty:
            yield Skip(Skip.EMPTY, 0, printable(str(path)))

    def count(self) -> Iterator[object]:
        """Each file."""
        return walk(self._paths)


class Glob:
    """Files by a pattern: ``*`` and ``?`` within a name, ``[a-z]``, ``**`` for any folders.

    What matches is taken as if it were named itself; of a folder that matches, the pictures. Where the pattern ends in
    ``*`` only names with a picture's suffix are taken. Ids are relative to the folder before the first such sign.
    """

    def __init__(self, pattern: str) -> None:
        """Take the pattern.

        Raises:
            FileNotFoundError: the folder in which it begins does not exist.
        """
        self._pattern = pattern
        fixed, self._parts = _split(pattern)
        if self._parts[-1] == "**":
            self._parts.append("*")
        self._base = Path(fixed)
        if not self._base.is_dir():
            raise FileNotFoundError(pattern)
        self._prefix = "" if self._base == Path() else os.path.join(self._base, "")  # noqa: PTH118 - a Path has no end
        self._exact = not self._parts[-1].endswith("*")
        self._whole = re.compile("".join(map(_regex, self._parts)).removesuffix("/"), re.DOTALL)
        self._names = [re.compile(_regex(part).removesuffix("/"), re.DOTALL) for part in self._plain_parts()]

    @property
    def about(self) -> str:
        """Which kind it was taken for."""
        return f"{self._pattern}: a pattern; ids are relative to {printable(str(self._base))}"

    def events(self, seen: Seen) -> Iterator[Event]:
        """A picture for each file that matches."""
        yield from _events(self.found, seen)

    def count(self) -> Iterator[object]:
        """Each file that matches."""
        return self.found(None)

    def found(self, on_skipped: Callable[[Path], None] | None) -> Iterator[Found]:
        """The files that match."""
        # What does not match is not told: the user has not asked for it.
        del on_skipped
        return walk_below(self._base, self._takes)

    def _plain_parts(self) -> list[str]:
        return self._parts[: self._parts.index("**")] if "**" in self._parts else self._parts

    def _takes(self, path: str, is_folder: bool) -> bool:  # noqa: FBT001 - the walk's callback
        names = path.removeprefix(self._prefix).removeprefix("./").split("/")
        if is_folder:
            # Only where something may match: a pattern such as ``*.jpg`` must not walk all that is below.
            return all(known.fullmatch(name) for known, name in zip(self._names, names, strict=False))
        if self._whole.fullmatch("/".join(names)):
            return self._exact or has_suffix(names[-1])
        return has_suffix(names[-1]) and any(
            self._whole.fullmatch("/".join(names[:depth])) for depth in range(1, len(names))
        )


def is_pattern(text: str) -> bool:
    """Whether a source is a pattern rather than a name."""
    return _MAGIC.search(text) is not None


def matches(pattern: str, *, closed: bool = False) -> list[Path]:
    """The files that a pattern of shards or tables stands for, sorted: they are few, and their order is kept.

    Args:
        pattern: of their names.
        closed: whether folders that cannot be searched are among them: whoever opens one learns why, and that something
            may be missing.

    Raises:
        FileNotFoundError: none.
    """
    found = sorted(each.path for each in Glob(pattern).found(None) if closed or each.error is None)
    if not found:
        raise FileNotFoundError(pattern)
    return found


def _events(
    walking: Callable[[Callable[[Path], None]], Iterable[Found]], seen: Seen, *, alone: bool = False
) -> Iterator[Event]:
    skipped = 0

    def skip(_path: Path) -> None:
        nonlocal skipped
        skipped += 1

    for found in walking(skip):
        label = printable(str(found.path))
        if found.error is not None:
            yield Failure(found.id, label, found.error, hides=Hides.BELOW if found.below else Hides.ITSELF)
        elif (met := Met.NEW if alone and "\\" not in found.id else _met(seen, found)) is not Met.NEW:
            error = error_for(ErrorCode.BAD_REQUEST, "another picture has the same id")
            yield Skip(Skip.DUPLICATE) if met is Met.SAME else Failure(found.id, label, error)
        else:
            yield Item(found.id, label, found.path, {"path": found.id, "name": printable(found.path.name)})
    if skipped:
        yield Skip(Skip.OTHER, skipped)


def _met(seen: Seen, found: Found) -> Met:
    # Of a folder alone too, where a name has a backslash: that of bytes outside UTF-8 may be spelled by another one.
    return seen.add(found.id, os.fsencode(os.path.realpath(found.path)))


def _split(pattern: str) -> tuple[str, list[str]]:
    """The folder before the first part with a sign, and the parts from there."""
    parts = pattern.split("/")
    first = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    fixed = "/".join(parts[:first])
    return fixed or ("/" if pattern.startswith("/") else "."), [part for part in parts[first:] if part not in {"", "."}]


def _regex(part: str) -> str:
    """One part of a pattern, and the slash after it."""
    if part == "**":
        return r"(?:[^/]+/)*"
    text = ""
    at = 0
    for found in re.finditer(r"\*+|\?|\[(!?)([^\]]+)\]", part):
        text += re.escape(part[at : found.start()])
        if found[2]:
            chosen = re.sub(r"[\\^\[&~|]", r"\\\g<0>", found[2])
            text += f"[{'^/' if found[1] else ''}{chosen}]"
        else:
            text += "[^/]" if found[0] == "?" else "[^/]*"
        at = found.end()
    return text + re.escape(part[at:]) + "/"
