"""``reduce_dim``: shorter vectors by principal components, fitted on your own.

``clipfleet operators fit-pca VECTORS.npy --to 64 --model NAME -o pca.npz`` writes the file:

================ ============ ======================================================================================
``components``   f4 [k, d]    the directions, best first; each of length 1, its largest number positive
``mean``         f4 [d]       what is subtracted first
``explained``    f4 [k]       which part of the variance each keeps
``fingerprint``  text         of the model whose vectors they are; empty where nobody said
================ ============ ======================================================================================

Vectors of one model mean nothing by another's components, and vectors that were reduced by two files do not belong into
one collection: so a file knows its model, and has a fingerprint of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.operators._values import as_vector, unit
from clipfleet.operators.operator import Operator, Place
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Pca", "ReduceDim", "fit_pca", "load_pca", "save_pca"]

_VERSION = b"clipfleet pca 1\n"
_HEX = re.compile(r"(?:[0-9a-f]{64})?")
_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Pca:
    """Fitted components; see the module.

    Attributes:
        components: float32 [k, d].
        mean: float32 [d].
        explained: float32 [k].
        model: fingerprint of the model whose vectors they are; empty where nobody said.
    """

    components: NDArray[np.float32]
    mean: NDArray[np.float32]
    explained: NDArray[np.float32]
    model: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits that two fits share exactly when their results may be mixed."""
        digest = hashlib.sha256(_VERSION + f"{self.model} {list(self.components.shape)}\n".encode())
        for array in (self.components, self.mean):
            digest.update(array.astype("<f4", order="C").tobytes())
        return digest.hexdigest()

    def reduce(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """[d] to [k]."""
        return self.components.astype(np.float64) @ (vector - self.mean)


@dataclass(frozen=True)
class ReduceDim(Operator):
    """Shorten a vector by a fitted file; the result has length 1 again, since it is for search by cosine.

    Attributes:
        file: written by ``clipfleet operators fit-pca``.
        model: of the vectors; None: the pipeline's. Its fingerprint must be the file's, where the file has one.
    """

    name = "reduce_dim"
    task = "vector -> vector"

    file: str | os.PathLike[str]
    model: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", os.fspath(self.file))

    @cached_property
    def fingerprint(self) -> str:
        """Of the fitted file: what tells collections of differently reduced vectors apart.

        Raises:
            ValueError: the file cannot be read.
        """
        return load_pca(self.file).fingerprint

    def open(self, place: Place) -> Callable[..., Any]:
        """Numbers [d] to float32 [k] of length 1.

        The function raises ``bad_shape`` for a vector of another dimension, for what is not finite, and for the very
        mean of all vectors, which has no direction.

        Raises:
            ValueError: the file cannot be read, or is of another model.
        """
        pca = load_pca(self.file)
        if pca.model:
            served = place.load(self.model).runtime.bundle.config
            if served.fingerprint != pca.model:
                raise ValueError(
                    f"{self.file} was fitted on vectors of the model {pca.model[:12]}, and this is {served.name},"
                    f" {served.fingerprint[:12]}"
                )
        dimension = len(pca.mean)
        return lambda vector: unit(pca.reduce(as_vector(vector, dimension)))


def fit_pca(vectors: NDArray[Any], to: int, *, model: str = "") -> Pca:
    """Find the ``to`` directions in which vectors differ most.

    Args:
        vectors: [n, d]; may be a memory map, it is read twice, a few thousand rows at a time.
        to: how many; fewer than d, and fewer than n.
        model: fingerprint of the model whose vectors they are.

    Raises:
        ValueError: not of that shape, not finite, all the same, or too few for ``to``.
    """
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise ValueError(f"vectors are floats of shape [n, d], not {vectors.dtype} {list(vectors.shape)}")
    count, dimension = vectors.shape
    if not 1 <= to < dimension:
        raise ValueError(f"vectors of {dimension} numbers can be reduced to 1 to {dimension - 1}, not to {to}")
    if count <= to:
        raise ValueError(
            f"{counted(count, 'vector')} cannot tell {counted(to, 'direction')}; give at least {to + 1}, better ten"
            " times as many"
        )
    parts = [slice(start, start + _ROWS) for start in range(0, count, _ROWS)]
    mean = np.zeros(dimension)
    for part in parts:
        mean += vectors[part].astype(np.float64).sum(axis=0) / count
    if not np.isfinite(mean).all():
        raise ValueError("the vectors hold numbers that are not finite")
    spread = np.zeros((dimension, dimension))
    for part in parts:
        centred = vectors[part].astype(np.float64) - mean
        spread += centred.T @ centred
    values, directions = np.linalg.eigh(spread / (count - 1))
    total = float(np.trace(spread)) / (count - 1)
    if not total > 0:
        raise ValueError("the vectors are all the same")
    components = directions[:, ::-1][:, :to].T
    # An eigenvector's sign is arbitrary, and another machine's library may choose the other one.
    signs = np.sign(components[np.arange(to), np.abs(components).argmax(axis=1)])
    explained = np.maximum(values[::-1][:to], 0) / total
    return Pca(
        (components * signs[:, None]).astype(np.float32), mean.astype(np.float32), explained.astype(np.float32), model
    )


def save_pca(pca: Pca, file: str | os.PathLike[str]) -> None:
    """Write the file, all of it or nothing."""
    path = Path(file)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as out:
            np.savez(
                out,
                components=pca.components,
                mean=pca.mean,
                explained=pca.explained,
                fingerprint=np.array(pca.model),
            )
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def load_pca(file: str | os.PathLike[str]) -> Pca:
    """Read the file.

    Raises:
        ValueError: it is not there, or is no such file.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            pca = Pca(arrays["components"], arrays["mean"], arrays["explained"], str(arrays["fingerprint"][()]))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or 'it is no fitted file'}") from None
    except Exception as error:  # noqa: BLE001  numpy and zipfile raise nearly all there is at odd bytes; also MemoryError
        raise ValueError(f"{file} was not written by 'clipfleet operators fit-pca': {error}") from None
    kept, dimension = pca.components.shape if pca.components.ndim == 2 else (0, 0)
    shapes = ((pca.components, (kept, dimension)), (pca.mean, (dimension,)), (pca.explained, (kept,)))
    if not kept or not _HEX.fullmatch(pca.model) or any(_wrong(array, shape) for array, shape in shapes):
        raise ValueError(f"{file} was not written by 'clipfleet operators fit-pca'")
    return pca


def _wrong(array: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all()


reduce_dim = ReduceDim
