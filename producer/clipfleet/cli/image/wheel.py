"""Wheels made of what is installed here, byte for byte the same each time.

What runs here is what is shipped: no build tool is asked, so none is needed, and an unreleased change is in it. Files
are stored, not compressed, since two zlibs may compress differently.
Source: the binary distribution format, https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.metadata import Distribution

__all__ = ["is_editable", "is_local", "our_files", "wheel_of", "write_wheel"]

# The installer's own notes, written anew where the wheel is installed.
_NOTES = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say


def is_local(dist: Distribution) -> bool:
    """Whether it came from a folder, an archive or a repository: no registry has it under its version."""
    return dist.read_text("direct_url.json") is not None


def is_editable(dist: Distribution) -> bool:
    """Whether its modules lie where they are written."""
    direct = json.loads(dist.read_text("direct_url.json") or "{}")
    return bool(direct.get("dir_info", {}).get("editable", False))


def wheel_of(dist: Distribution, folder: Path) -> Path:
    """Pack an installed distribution into ``folder`` again; scripts other than its entry points are lost.

    Raises:
        CliError: its files are not known.
    """
    name, version = dist.metadata["Name"], dist.version
    files = {
        str(file): Path(str(dist.locate_file(file))).read_bytes()
        for file in dist.files or ()
        if file.parts[0] != ".." and file.suffix != ".pyc" and not _is_note(file.parts)
    }
    if not any(".dist-info" not in path for path in files):
        raise CliError(f"the files of {name} {version} are not known here; install it from a wheel")
    return write_wheel(name, version, dist, files, folder)


def write_wheel(name: str, version: str, dist: Distribution, files: Mapping[str, bytes], folder: Path) -> Path:
    """Write ``files`` as the wheel of ``dist``; returns where."""
    stem = f"{name.replace('-', '_').replace('.', '_').lower()}-{version}"
    # Case and separators of the folder's name are the build tool's choice: it is kept as it is.
    info = next((path.partition("/")[0] for path in files if ".dist-info/" in path), f"{stem}.dist-info")
    target = folder / f"{stem}-{_tags(dist)}.whl"
    lines = [f"{path},{_digest(data)},{len(data)}" for path, data in sorted(files.items())]
    record = "\n".join([*lines, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path, data in [*sorted(files.items()), (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return target


def our_files() -> dict[str, bytes]:
    """Every file of the clipfleet that runs here, by its path in a wheel, with its description."""
    dist = distribution("clipfleet")
    files: dict[str, bytes] = {}
    for place in _portions(dist):
        for path in sorted(place.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                files[f"clipfleet/{path.relative_to(place.parent)}"] = path.read_bytes()
    info = f"clipfleet-{dist.version}.dist-info"
    for file in dist.files or ():
        if file.parts[0].endswith(".dist-info") and not _is_note(file.parts):
            files["/".join([info, *file.parts[1:]])] = Path(str(dist.locate_file(file))).read_bytes()
    return files


def _portions(dist: Distribution) -> Iterator[Path]:
    """The folders ``clipfleet/X`` that ``import clipfleet.X`` finds, and none that another distribution brought."""
    import clipfleet  # noqa: PLC0415  a namespace: its path is known only here

    listed = {file.parts[1] for file in dist.files or () if file.parts[0] == "clipfleet" and len(file.parts) > 1}
    seen: set[str] = set()
    for root in map(Path, clipfleet.__path__):
        for place in sorted(root.iterdir()):
            is_package = (place / "__init__.py").is_file()
            if is_package and place.name not in seen and (not listed or place.name in listed):
                seen.add(place.name)
                yield place


def _is_note(parts: tuple[str, ...]) -> bool:
    return len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] in _NOTES


def _tags(dist: Distribution) -> str:
    lines = [line for line in (dist.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    tags = [line.partition(":")[2].strip().split("-") for line in lines] or [["py3", "none", "any"]]
    return "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
