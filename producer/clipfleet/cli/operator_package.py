"""The package that ``clipfleet operators new`` writes: one operator, its entry point and a test that passes.

Its text is a beginning to be changed, so it does something small on every line that an operator needs: an option, its
check, what is loaded once, what runs for each item, and the verdict on one that cannot be served.
"""

from __future__ import annotations

import keyword
import re
from string import Template
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NAME", "check_name", "write_package"]

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
# What the texts below call otherwise: as an operator's name, or its class's, it would hide that.
_USED: Final = frozenset(
    {"error_code", "error_for", "failed", "find", "getattr", "greyed", "np", "pipeline", "pytest", "request_failed"}
    | {"value_error"}
)

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$package"
version = "0.1.0"
description = "The operator $name for clipfleet pipelines."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["clipfleet[worker]"]

# How clipfleet finds it: `clipfleet operators list` shows every name of this group.
[project.entry-points."clipfleet.operators"]
$name = "$module:$class_"

[dependency-groups]
dev = ["pytest>=8"]

[tool.hatch.build.targets.wheel]
packages = ["src/$module"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""

_SOURCE = '''\
"""The operator ``$name``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.operators import Operator, Place
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["$class_", "$name"]


# Frozen, so that equal options are equal operators: pipelines that use the same one share a stage.
@dataclass(frozen=True)
class $class_(Operator):
    """Bring pixels nearer to grey. (This is what the template does; put your own here.)

    Attributes:
        strength: 0 changes nothing, 1 leaves nothing but grey.
    """

    name = "$name"
    task = "pixels -> pixels"

    strength: float = 0.5

    def __post_init__(self) -> None:
        # What cannot work is said where the pipeline is written, not where it runs.
        if not 0 <= self.strength <= 1:
            raise ValueError(f"strength is from 0 to 1, not {self.strength}")

    def open(self, place: Place) -> Callable[..., Any]:
        """Load what every item needs, once; return what runs for each."""
        strength = np.float32(self.strength)

        def run(pixels: Any) -> Any:
            if getattr(pixels, "dtype", None) != np.uint8 or pixels.ndim != 3:
                # A verdict on this item alone; its code tells the caller that a retry cannot help.
                raise error_for(ErrorCode.BAD_SHAPE, "pixels are uint8 [h, w, 3]")
            grey = pixels.mean(axis=2, keepdims=True, dtype=np.float32)
            return np.rint(pixels + strength * (grey - pixels)).astype(np.uint8)

        return run


$name = $class_
'''

_TEST = """\
from __future__ import annotations

import numpy as np
import pytest

from $module import $class_, $name
from clipfleet import pipeline
from clipfleet.operators.registry import find
from clipfleet.schemas.errors import ErrorCode, RequestFailed

RED = np.full((2, 3, 3), (240, 0, 0), np.uint8)


def test_given_the_package_is_installed_then_clipfleet_finds_it_by_its_name():
    assert find("$name") is $class_


def test_given_pixels_then_they_come_nearer_to_grey():
    assert $name(strength=0.0)(RED).tolist() == RED.tolist()
    assert $name(strength=0.5)(RED)[0, 0].tolist() == [160, 40, 40]
    assert $name(strength=1.0)(RED)[0, 0].tolist() == [80, 80, 80]


def test_given_a_pipeline_then_it_is_one_of_its_stages():
    greyed = pipeline.input("pixels").map("pixels", "grey", $name(1.0)).output("grey")
    assert greyed(RED).item()[0, 0].tolist() == [80, 80, 80]


def test_given_what_is_no_picture_then_that_item_fails():
    with pytest.raises(RequestFailed) as failed:
        $name()("text")
    assert failed.value.code is ErrorCode.BAD_SHAPE


def test_given_an_option_that_cannot_be_then_it_is_refused():
    with pytest.raises(ValueError, match="strength"):
        $name(strength=2)
"""

_README = """\
# $package

The operator `$name` for [clipfleet](https://pypi.org/project/clipfleet/) pipelines.

```
pip install -e . --group dev
pytest
clipfleet operators info $name
```

```python
from clipfleet import pipeline
from clipfleet.operators import clip_image, decode
from $module import $name

p = (
    pipeline.input("image")
    .map("image", "pixels", decode())
    .map("pixels", "changed", $name())
    .map("changed", "vector", clip_image())
    .output("vector")
)
```

Install it wherever a worker runs that serves such a pipeline: nothing is fetched at run time.
"""


def check_name(name: str) -> None:
    """Whether it can be an operator's name.

    Raises:
        ValueError: it cannot; the text says why.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or keyword.iskeyword(_class(name)):
        raise ValueError(f"{name!r} cannot be an operator's name: small letters, digits and _, first a letter")
    # pytest would take the class for one of tests.
    if name in _USED or name.startswith("test"):
        raise ValueError(f"{name!r} cannot be an operator's name: what is written for it uses that name already")


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package of an operator ``name`` into ``folder``, which is made.

    Returns:
        The files.

    Raises:
        ValueError: it is no name, or the folder is there and not empty.
    """
    check_name(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and not empty")
    module = f"clipfleet_{name}"
    words = {
        "name": name,
        "module": module,
        "package": module.replace("_", "-"),
        "class_": _class(name),
    }
    texts = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        f"src/{module}/__init__.py": _SOURCE,
        f"src/{module}/py.typed": "",
        f"tests/test_{name}.py": _TEST,
    }
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(text).substitute(words), encoding="utf-8")
    return [folder / path for path in texts]


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
