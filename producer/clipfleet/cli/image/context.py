"""The build context of a pipeline's image: a folder that holds all that goes into it. The same inputs, the same bytes.

::

    Dockerfile  requirements.txt  wheels/clipfleet-….whl  app/<the pipeline's modules and files>  models/<bundles>
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.image.contents import Contents
from clipfleet.cli.image.dockerfile import MARK, base_image, dockerfile
from clipfleet.cli.image.models import add_model, in_image
from clipfleet.cli.image.modules import is_installed, trace
from clipfleet.cli.image.needs import needs_of
from clipfleet.cli.image.packages import find_packages, requirements_text, runtime_extra
from clipfleet.cli.image.wheel import our_files, wheel_of, write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clipfleet.cli.image.modules import Modules
    from clipfleet.cli.image.packages import Packages
    from clipfleet.pipeline import Pipeline

__all__ = ["Built", "build_context", "parse_tag"]

_TAG: Final = re.compile(
    r"((?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]*))?"
)
# 1980, as in the wheel.
_MTIME: Final = 315_532_800


@dataclass(frozen=True, slots=True)
class Built:
    """A build context.

    Attributes:
        path: where it is.
        tag: of its image.
        fingerprint: SHA-256 of everything in it.
        taken: what was taken from where, for people.
    """

    path: Path
    tag: str
    fingerprint: str
    taken: list[tuple[str, str]] = field(default_factory=list)


def parse_tag(tag: str) -> tuple[str, str]:
    """Name and version of ``name:version``.

    Raises:
        CliError: it is none; the version must be said, since ``latest`` is what nobody can go back to.
    """
    match = _TAG.fullmatch(tag)
    if match is None or match[2] is None:
        raise CliError(f"--tag takes name:version in lower case, such as objects:v1, not {tag!r}", exit_code=Exit.USAGE)
    return match[1], match[2]


def build_context(
    pipeline: Pipeline,
    target: str,
    tag: str,
    out: Path,
    *,
    base: str | None = None,
    model: str | None = None,
    include: Sequence[Path] = (),
) -> Built:
    """Write the build context of ``pipeline`` into the folder ``out``, whole or not at all.

    Args:
        pipeline: what ``target`` names.
        target: ``module:name``, as ``clipfleet worker --pipeline`` takes it.
        tag: ``name:version`` of the image.
        out: a folder that is not there, or was written by this before.
        base: the image to stand on; None: the official slim one of this Python.
        model: for the stages that name none; None: the demo model.
        include: more files and folders, by paths relative to here.

    Raises:
        CliError: the tag is none, or something that the pipeline needs cannot be shipped: the text names it.
    """
    parse_tag(tag)
    needs = needs_of(pipeline)
    modules = trace([target.partition(":")[0], *needs.modules])
    extra = runtime_extra()
    packages = find_packages(extra, modules.distributions)
    _check_place(out, [*(taken.path for taken in modules.taken.values()), *include])
    with _staging(out) as folder:
        contents = _write_app(folder, modules, [*include, *needs.files])
        (folder / "models").mkdir()
        named = dict.fromkeys([*needs.models, *([model] if model else [])])
        models = {name: add_model(name, folder / "models", contents) for name in named}
        packed = _write_packages(folder, packages)
        variables = {"CLIPFLEET_MODEL": in_image(model, contents)} if model else {}
        fingerprint = _write_dockerfile(folder, target, tag, base or base_image(), extra, variables, models)
        _settle(folder)
        _swap(folder, out)
    taken = [
        *contents.taken,
        ("packages", f"clipfleet[{extra},cli] and {len(packages.pins)} others as installed here"),
        *(("wheel", path.name) for path in packed),
        *(("model", f"{name} ({digest[:12]})") for name, digest in models.items()),
    ]
    return Built(out, tag, fingerprint, taken)


def _check_place(out: Path, folders: Sequence[Path]) -> None:
    for folder in folders:
        if out.resolve().is_relative_to(folder.resolve()):
            raise CliError(
                f"{out} lies in {folder}, which is taken whole: it would be in itself", hint="Choose another -o."
            )


def _write_app(folder: Path, modules: Modules, files: Sequence[Path]) -> Contents:
    contents = Contents(folder / "app", [taken.root for taken in modules.taken.values()])
    contents.folder.mkdir()
    for _, taken in sorted(modules.taken.items()):
        contents.add_module(taken)
    for file in files:
        # What a package brought comes with that package.
        if not is_installed(file):
            contents.add_file(file)
    return contents


def _write_packages(folder: Path, packages: Packages) -> list[Path]:
    """Requirements and wheels; returns the wheels."""
    (folder / "requirements.txt").write_text(requirements_text(packages), encoding="utf-8")
    wheels = folder / "wheels"
    wheels.mkdir()
    ours = distribution("clipfleet")
    return [
        write_wheel("clipfleet", ours.version, ours, our_files(), wheels),
        *(wheel_of(dist, wheels) for dist in packages.packed),
    ]


def _write_dockerfile(
    folder: Path, target: str, tag: str, base: str, extra: str, variables: dict[str, str], models: dict[str, str]
) -> str:
    name, version = parse_tag(tag)
    labels = {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.version": version,
        "clipfleet.pipeline": target,
        "clipfleet.version": distribution("clipfleet").version,
        **({"clipfleet.models": " ".join(f"{one}={digest[:12]}" for one, digest in models.items())} if models else {}),
    }
    command = ["clipfleet", "worker", "--pipeline", target]

    def write(**more: str) -> None:
        text = dockerfile(
            tag=tag, base=base, extra=extra, labels={**labels, **more}, variables=variables, command=command
        )
        (folder / "Dockerfile").write_text(text, encoding="utf-8")

    write()
    fingerprint = _digest(folder)
    write(**{"clipfleet.fingerprint": fingerprint})
    return fingerprint


def _digest(folder: Path) -> str:
    """SHA-256 over the names and the contents of all files."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                inner = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(json.dumps([str(path.relative_to(folder)), inner]).encode())
    return whole.hexdigest()


def _settle(folder: Path) -> None:
    """Rights and times that say nothing of this machine or hour: they are part of an image's layers."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        runs = path.is_dir() or os.access(path, os.X_OK)
        path.chmod(0o755 if runs else 0o644)
        os.utime(path, (_MTIME, _MTIME))


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    if out.exists() and not _is_ours(out):
        raise CliError(f"{out} is there and was not written by this command", hint="Name another folder with -o.")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(out: Path) -> bool:
    file = out / "Dockerfile"
    if out.is_dir() and not any(out.iterdir()):
        return True
    return file.is_file() and file.read_text(encoding="utf-8", errors="replace").startswith(MARK)


def _swap(folder: Path, out: Path) -> None:
    if out.exists():
        shutil.rmtree(out)
    folder.rename(out)
