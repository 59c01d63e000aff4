"""``index --dedupe``: what is sent after all, and where the duplicates are listed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from clipfleet.cli.errors import CliError

if TYPE_CHECKING:
    from clipfleet.index import Manifest

__all__ = ["list_duplicates"]


def list_duplicates(manifest: Manifest) -> str:
    """Write each duplicate and the id under which its picture is, as JSON lines beside the manifest; where.

    Raises:
        CliError: it cannot be written.
    """
    path = manifest.path.with_suffix(".duplicates.jsonl")
    try:
        with path.open("w", encoding="utf-8") as file:
            for page in manifest.duplicates.listed():
                file.writelines(json.dumps({"id": id_, "same_as": kept}) + "\n" for id_, kept in page)
    except OSError as error:
        raise CliError(f"{path}: cannot be written: {error.strerror}") from None
    return str(path)
