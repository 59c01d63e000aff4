"""The models of an image: exported here, so that the image needs neither torch nor a network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from clipfleet.cli.errors import CliError

if TYPE_CHECKING:
    from clipfleet.cli.image.contents import Contents

__all__ = ["add_model", "in_image"]


def add_model(name: str, folder: Path, contents: Contents) -> str:
    """Take the bundle of ``name`` along, verified; returns its fingerprint.

    The demo model is in the wheel, a bundle's directory lies beside the module, and what was exported into the cache is
    copied into ``folder``, the image's cache.

    Raises:
        CliError: it is not exported, or would not be found in the image.
        ModelError: its name means nothing, or its files are broken.
    """
    from clipfleet.models import find_bundle, load_bundle, parse_name  # noqa: PLC0415  needs the [worker] extra

    parsed = parse_name(name)
    if parsed.kind in {"checkpoint", "local-dir"}:
        raise CliError(
            f"the model {name} is a checkpoint of this machine, and an image gets exported models alone",
            hint=f"Name what this writes: clipfleet model export {name} --out models/mine",
        )
    found = find_bundle(name)
    if found is None:
        raise CliError(f"the model {name} is not exported yet", hint=f"clipfleet model export {name}")
    bundle = load_bundle(found)
    if parsed.kind == "bundle":
        contents.add_file(Path(name))
    elif parsed.kind != "demo":
        shutil.copytree(found, folder / found.name, copy_function=shutil.copy)
    return bundle.config.fingerprint


def in_image(name: str, contents: Contents) -> str:
    """What a model that ``add_model`` took is called in the image."""
    from clipfleet.models import parse_name  # noqa: PLC0415

    return f"/app/{contents.place_of(Path(name))}" if parse_name(name).kind == "bundle" else name
