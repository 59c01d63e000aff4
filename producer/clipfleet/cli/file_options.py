"""The options of commands that write part files: ``index --to`` and ``export``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["OUT", "TO", "Dtype", "Kind", "Rows", "Vectors"]


class Kind(StrEnum):
    """What the files look like."""

    PARQUET = "parquet"
    NPY = "npy"


class Dtype(StrEnum):
    """What vectors in them are made of."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


TO = typer.Option(
    "--to",
    help="Vectors into part files below --out. npy: clip-retrieval's layout; parquet: id, vector, metadata.",
    show_default=False,
)
OUT = typer.Option(
    "--out", metavar="DIR", help="Where to; a folder that was begun is gone on with.", show_default=False
)
Rows = Annotated[int, typer.Option("--rows-per-part", min=1, metavar="N", help="Rows of one part file.")]
Vectors = Annotated[
    Dtype,
    typer.Option("--dtype", help="Of vectors in files; float16 is half as large, and at most 3e-8 of cosine away."),
]
