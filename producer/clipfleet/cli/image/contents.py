"""What lies in an image's ``/app``: the pipeline's modules, and files where its code looks for them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.cli.image.modules import Taken

__all__ = ["Contents"]

# RFC 7468, and OpenSSH's and PGP's own. Some tools write the key's attributes above it.
_PRIVATE_KEY: Final = re.compile(rb"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----", re.MULTILINE)
_HEAD: Final = 4096


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
        what = f"{module.path} ({counted(count, 'file')})" if module.path.is_dir() else str(module.path)
        self.taken.append(("module", what))

    def add_file(self, path: Path) -> None:
        """Take a file or a folder that an operator or a flag names.

        Raises:
            CliError: it is not there, lies where the code would not find it in the image, or holds secrets.
        """
        if not path.exists():
            raise CliError(f"{path} is not there: the pipeline's image would lack it")
        self._copy(path, self.place_of(path))
        if ("file", str(path)) not in self.taken:
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
            _refuse_secret(file)
            target = self.folder / place / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and target.read_bytes() != file.read_bytes():
                raise CliError(f"two different files would be /app/{target.relative_to(self.folder)}: one is {file}")
            shutil.copy(file, target)
            count += 1
        return count


def _refuse_secret(file: Path) -> None:
    """An image is pulled by many, and what was once in a layer stays there."""
    with file.open("rb") as opened:
        is_key = _PRIVATE_KEY.search(opened.read(_HEAD)) is not None
    if is_key or file.suffix == ".env":
        what = "a private key" if is_key else "an environment"
        raise CliError(
            f"{file} holds {what}, which all who have the image could read",
            hint="Move it out of the folder, and hand it to the container where it runs.",
        )


def _files(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    for path in sorted(source.rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(source).parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            yield path
