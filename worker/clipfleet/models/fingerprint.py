"""The fingerprint: two models share it exactly when their vectors may be mixed in one collection.

It hashes what decides a vector: source weights, architecture, preprocessing, tokenizer and cleaning, and a
precision that loses something. How the model is run and in which format it was exported stay out, since CPU
and GPU workers serve one queue; the golden vectors guard those. It is taken from the source at export and
stored: the exported graph has other tensors.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from clipfleet.models.config import ImageConfig, TextConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["fingerprint"]

_VERSION = b"clipfleet fingerprint 1\n"
# They change how a batch is laid out, not what a vector is.
_NOT_IN_A_VECTOR = frozenset({"tokenizer", "dynamic_length"})


def fingerprint(
    tensors: Mapping[str, NDArray[Any]],
    image: ImageConfig | Mapping[str, Any],
    text: TextConfig | Mapping[str, Any],
    tokenizer_bytes: bytes,
    lossy: str | None = None,
    *,
    architecture: Mapping[str, Any] | None = None,
) -> str:
    """Hash all that decides a model's vectors.

    Args:
        tensors: the source weights by name, any dtype and shape; hashed as C-ordered little-endian bytes, in
            the order of their names.
        image: the ``image`` section of ``model.json``.
        text: the ``text`` section of ``model.json``.
        tokenizer_bytes: content of ``tokenizer.json``; its layout (spaces, order of keys) does not count.
        lossy: the name of a precision that changes vectors noticeably (``"int8"``), else None.
        architecture: what the tensors do not show, such as the number of heads; JSON types only.

    Returns:
        64 hex digits.

    Raises:
        BadBundle: a section has a missing, unknown or out-of-range field.
    """
    image = image if isinstance(image, ImageConfig) else ImageConfig.from_json(image)
    text = text if isinstance(text, TextConfig) else TextConfig.from_json(text)
    text_section = {k: v for k, v in text.to_json().items() if k not in _NOT_IN_A_VECTOR}
    digest = hashlib.sha256(_VERSION)
    for name in sorted(tensors):
        _add_tensor(digest, name, tensors[name])
    _add(digest, "image", _canonical(image.to_json()))
    _add(digest, "text", _canonical(text_section))
    _add(digest, "tokenizer", _canonical_tokenizer(tokenizer_bytes))
    if architecture:
        _add(digest, "architecture", _canonical(architecture))
    if lossy:
        _add(digest, "lossy", lossy.encode())
    return digest.hexdigest()


def _add_tensor(digest: hashlib._Hash, name: str, tensor: NDArray[Any]) -> None:
    little = tensor.astype(tensor.dtype.newbyteorder("<"), order="C", copy=False)
    _add(digest, f"tensor {name}", f"{little.dtype.str} {list(little.shape)}".encode())
    digest.update(little.data if little.ndim else little.tobytes())


def _add(digest: hashlib._Hash, label: str, content: bytes) -> None:
    # Lengths before contents: else moving a byte from one field to the next would keep the hash.
    digest.update(f"{label} {len(content)}\n".encode())
    digest.update(content)


def _canonical(section: Any) -> bytes:
    return json.dumps(section, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _canonical_tokenizer(content: bytes) -> bytes:
    try:
        return _canonical(json.loads(content))
    except ValueError:
        return content
