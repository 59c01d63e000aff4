"""What lies in an image's ``/app``: the pipeline's modules, and files where its code looks for them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.cli.image.modules import Taken

__all__ = ["Contents"]


@dataclass(frozen=True, slots=True)
class Contents:
    """The folder ``app`` of a build context.

    Attributes:
        folder: where it is written.
        roots: the folders that its modules are imported from here: each is ``/app`` in the image.
        taken: what was taken from where, for people.
    """

    folder: Path
    roots: list[Path]
    taken: list[tuple[str, str]] = field(default_factory=list)

    def add_module(self, module: Taken) -> None:
        """Take a module's file, or a package's folder with all that is in it but what is hidden or compiled."""
        count = self._copy(module.path, Path(module.path.name))
        what = f"{module.path} ({count} files)" if module.path.is_dir() else str(module.path)
        self.taken.append(("module", what))

    def add_file(self, path: Path) -> None:
        """Take a file or a folder that an operator or a flag names.

        Raises:
            CliError: it is not there, or lies where the code would not find it in the image.
        """
        if not path.exists():
            raise CliError(f"{path} is not there: the pipeline's image would lack it")
        place = self.place_of(path)
        if not (self.folder / place).exists():
            self._copy(path, place)
            self.taken.append(("file", str(path)))

    def place_of(self, path: Path) -> Path:
        """Where below ``/app`` the code that says ``path`` looks: relative to the current folder, or beside a module.

        Raises:
            CliError: nowhere.
        """
        absolute = path.absolute()
        roots = self.roots if path.is_absolute() else [Path.cwd()]
        for root in roots:
            if absolute.is_relative_to(root) and ".." not in absolute.relative_to(root).parts:
                return absolute.relative_to(root)
        raise CliError(
            f"{path} lies outside of the pipeline's folder, and would be looked for there in the image, too",
            hint="Put it below the folder of the module, and name it relative to that: Path(__file__).parent / ...",
        )

    def _copy(self, source: Path, place: Path) -> int:
        count = 0
        for file in _files(source):
            target = self.folder / place / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and target.read_bytes() != file.read_bytes():
                raise CliError(f"two different files would be /app/{target.relative_to(self.folder)}: one is {file}")
            shutil.copy(file, target)
            count += 1
        return count


def _files(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    for path in sorted(source.rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(source).parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            yield path
