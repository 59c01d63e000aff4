"""What a model wants of its inputs, read from the ``model.json`` of its bundle.

Nothing here is assumed: two tags of one architecture may differ in mean and std, and two sizes of one family
in resize mode. So every field is required, unknown ones are refused (a newer exporter may have meant
something by them), and each error names the field. Standard library alone: whoever resizes pictures imports
this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from clipfleet.models.errors import BadBundle

__all__ = [
    "FORMAT",
    "Cleaning",
    "ImageConfig",
    "Interpolation",
    "ModelConfig",
    "Pooling",
    "ResizeMode",
    "TextConfig",
    "read_config",
]

FORMAT = 1

ResizeMode = Literal["shortest", "squash", "longest"]
Interpolation = Literal["bicubic", "bilinear"]
Cleaning = Literal["clip", "whitespace", "canonicalize", "lower", "none"]
# The names are open_clip's; "mean" and "mask" are towers that mask the padding themselves.
Pooling = Literal["argmax", "eos", "last", "first", "mean", "mask", "none"]

_Rgb = tuple[int, int, int]
_Floats = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How a picture becomes the pixels that the image tower takes.

    Attributes:
        size: height and width of the tower's input, in pixels; need not be square.
        resize_mode: ``shortest`` scales the shorter side and crops the centre, ``squash`` ignores the aspect
            ratio, ``longest`` scales the longer side and pads with ``fill_color``.
        interpolation: the filter of the resize, antialiased.
        fill_color: the padding of ``longest`` and of crops beyond the border, RGB 0 to 255.
        mean: subtracted from pixels scaled to 0..1, per channel; the exported graph does it, not the caller.
        std: the divisor that follows, per channel.
        background: what transparent pictures are composited on before anything else, RGB 0 to 255.
    """

    size: tuple[int, int]
    resize_mode: ResizeMode
    interpolation: Interpolation
    fill_color: _Rgb
    mean: _Floats
    std: _Floats
    background: _Rgb = (255, 255, 255)

    @classmethod
    def from_json(cls, data: object) -> ImageConfig:
        """Read the ``image`` section.

        Raises:
            BadBundle: a field is missing, unknown or out of range.
        """
        known = _section(data, "image", cls.__slots__, optional=("background",))
        height, width = _ints(known["size"], "image.size", 2, low=1, high=8192)
        std = _floats(known["std"], "image.std")
        if min(std) <= 0:
            raise BadBundle(f"image.std must be above 0, not {list(std)}")
        return cls(
            size=(height, width),
            resize_mode=cast("ResizeMode", _choice(known["resize_mode"], "image.resize_mode", ResizeMode)),
            interpolation=cast("Interpolation", _choice(known["interpolation"], "image.interpolation", Interpolation)),
            fill_color=_color(known["fill_color"], "image.fill_color"),
            mean=_floats(known["mean"], "image.mean"),
            std=std,
            background=_color(known.get("background", 255), "image.background"),
        )

    def to_json(self) -> dict[str, Any]:
        """The ``image`` section, with lists for tuples."""
        return _plain({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class TextConfig:
    """How a text becomes the ids that the text tower takes.

    Attributes:
        context_length: the most ids that the tower takes, specials included.
        tokenizer: name of the tokenizer's file in the bundle, in the format of HF ``tokenizers``.
        cleaning: what is done to the text first, see ``clipfleet.models.cleaning``.
        pad_id: fills a row up to the batch's length.
        sot_id: put before the text's ids; None where the tower has none.
        eot_id: put after them, and always kept last when a text is cut; None where the tower has none.
        dynamic_length: whether a batch may be cut to its longest text without changing a vector.
        pooling: which position's state becomes the vector, in open_clip's words.
    """

    context_length: int
    tokenizer: str
    cleaning: Cleaning
    pad_id: int
    sot_id: int | None
    eot_id: int | None
    dynamic_length: bool
    pooling: Pooling

    @classmethod
    def from_json(cls, data: object) -> TextConfig:
        """Read the ``text`` section.

        Raises:
            BadBundle: a field is missing, unknown or out of range.
        """
        known = _section(data, "text", cls.__slots__)
        dynamic = known["dynamic_length"]
        if not isinstance(dynamic, bool):
            raise BadBundle(f"text.dynamic_length must be true or false, not {dynamic!r}")
        return cls(
            context_length=_int(known["context_length"], "text.context_length", low=3, high=65_536),
            tokenizer=_file_name(known["tokenizer"], "text.tokenizer"),
            cleaning=cast("Cleaning", _choice(known["cleaning"], "text.cleaning", Cleaning)),
            pad_id=_int(known["pad_id"], "text.pad_id"),
            sot_id=_optional_int(known["sot_id"], "text.sot_id"),
            eot_id=_optional_int(known["eot_id"], "text.eot_id"),
            dynamic_length=dynamic,
            pooling=cast("Pooling", _choice(known["pooling"], "text.pooling", Pooling)),
        )

    def to_json(self) -> dict[str, Any]:
        """The ``text`` section."""
        return _plain({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The whole of ``model.json``.

    Attributes:
        name: what people call it; also what a result's log line shows.
        description: one line for people.
        licence: of the weights, as SPDX where there is such an identifier.
        fingerprint: 64 hex digits that two models share exactly when their vectors may be mixed.
        dimension: length of a vector.
        image: see ``ImageConfig``.
        text: see ``TextConfig``.
        precision: how weights are stored, such as ``fp32`` or ``fp16-weights``.
        files: every other file of the bundle by name, with its SHA-256 in hex.
        source: where the weights came from; free-form, for people.
    """

    name: str
    description: str
    licence: str
    fingerprint: str
    dimension: int
    image: ImageConfig
    text: TextConfig
    precision: str
    files: Mapping[str, str]
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: object) -> ModelConfig:
        """Read a parsed ``model.json``.

        Raises:
            BadBundle: it is of another format, or a field is missing, unknown or out of range.
        """
        if not isinstance(data, Mapping):
            raise BadBundle("model.json must hold an object")
        if data.get("format") != FORMAT:
            raise BadBundle(
                f"model.json has format {data.get('format')!r}, and this release reads format {FORMAT}: "
                "export the model again, or update clipfleet"
            )
        known = _section(data, "", ("format", *cls.__slots__), optional=("source",))
        return cls(
            name=_text(known["name"], "name"),
            description=_text(known["description"], "description"),
            licence=_text(known["licence"], "licence"),
            fingerprint=_hex(known["fingerprint"], "fingerprint"),
            dimension=_int(known["dimension"], "dimension", low=1, high=65_536),
            image=ImageConfig.from_json(known["image"]),
            text=TextConfig.from_json(known["text"]),
            precision=_text(known["precision"], "precision"),
            files=_files(known["files"]),
            source=_mapping(known.get("source", {}), "source"),
        )

    def to_json(self) -> dict[str, Any]:
        """What ``model.json`` holds, ``format`` first."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        sections = {"image": self.image.to_json(), "text": self.text.to_json()}
        return {"format": FORMAT, **_plain(plain), **sections}


def read_config(text: str | bytes) -> ModelConfig:
    """Parse the text of a ``model.json``.

    Raises:
        BadBundle: it is no JSON, of another format, or a field is missing, unknown or out of range.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BadBundle(f"model.json is no JSON: {error}") from error
    return ModelConfig.from_json(data)


def _section(data: object, name: str, fields: tuple[str, ...], optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
    known = _mapping(data, name or "model.json")
    where = f"{name}." if name else ""
    for missing in (f for f in fields if f not in known and f not in optional):
        raise BadBundle(f"model.json lacks {where}{missing}")
    for unknown in (k for k in known if k not in fields):
        raise BadBundle(f"model.json has an unknown field {where}{unknown}")
    return known


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadBundle(f"{name} must be an object, not {value!r}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadBundle(f"{name} must be a text, not {value!r}")
    return value


def _hex(value: object, name: str) -> str:
    if not isinstance(value, str) or re.fullmatch(r"[0-9a-f]{64}", value) is None:
        raise BadBundle(f"{name} must be 64 hex digits, not {value!r}")
    return value


def _file_name(value: object, name: str) -> str:
    # A bundle may come from anywhere: a name with a slash would read outside its directory.
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", value) is None:
        raise BadBundle(f"{name} must be the plain name of a file in the bundle, not {value!r}")
    return value


def _files(value: object) -> dict[str, str]:
    files = _mapping(value, "files")
    return {_file_name(name, "files"): _hex(digest, f"files.{name}") for name, digest in files.items()}


def _int(value: object, name: str, *, low: int = 0, high: int = 2**31 - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadBundle(f"{name} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _optional_int(value: object, name: str) -> int | None:
    return None if value is None else _int(value, name)


def _list(value: object, name: str, length: int) -> list[object]:
    if not isinstance(value, (list, tuple)) or len(value) != length:
        raise BadBundle(f"{name} must be a list of {length}, not {value!r}")
    return list(value)


def _ints(value: object, name: str, length: int, *, low: int, high: int) -> tuple[int, ...]:
    return tuple(_int(item, name, low=low, high=high) for item in _list(value, name, length))


def _color(value: object, name: str) -> _Rgb:
    # open_clip writes a grey as one number.
    rgb = [value] * 3 if isinstance(value, int) else value
    red, green, blue = _ints(rgb, name, 3, low=0, high=255)
    return red, green, blue


def _floats(value: object, name: str) -> _Floats:
    red, green, blue = (_float(item, name) for item in _list(value, name, 3))
    return red, green, blue


def _float(value: object, name: str) -> float:
    # The bound keeps out NaN and infinity, too, and whole numbers that no float holds.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e6:
        raise BadBundle(f"{name} must hold finite numbers, not {value!r}")
    return float(value)


def _choice(value: object, name: str, choices: object) -> str:
    allowed: tuple[str, ...] = get_args(choices)
    if not isinstance(value, str) or value not in allowed:
        raise BadBundle(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, tuple):
            out[name] = list(value)
        else:
            out[name] = dict(value) if isinstance(value, Mapping) else value
    return out
