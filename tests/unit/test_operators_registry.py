"""Operators found by entry points: ours, those of other packages, and packages that are broken."""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from clipfleet import operators
from clipfleet.operators import BatchOperator, Operator, registry

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
OURS = PYPROJECT["project"]["entry-points"]["clipfleet.operators"]
PROMISED = {
    *("decode", "resize", "crop", "tiles", "frames", "detect", "clip_image", "clip_text", "normalize", "reduce_dim"),
    *("classify", "rank", "dedupe", "milvus_insert", "milvus_search", "http_call"),
}

GOOD = """
from dataclasses import dataclass
from clipfleet.operators import Operator

@dataclass(frozen=True)
class Double(Operator):
    "Twice as much."
    name = "double"
    task = "number -> number"
    def open(self, place):
        return lambda value: 2 * value

class Other(Operator):
    name = "crop"

def function(): ...

class Raising(type(Operator)):
    def __getattribute__(cls, name):
        if name == "name":
            raise RuntimeError("no name today")
        return super().__getattribute__(name)

class Moody(Operator, metaclass=Raising): ...

class Odd(Operator):
    name = "odd"
    task = 5
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution on the path: ``install("name", {"operator": "module:Class"}, module="source")``."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package, points, **modules):
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"{name} = {target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[clipfleet.operators]", *lines]))
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()

    # As pyproject.toml has it, however long ago this environment was installed.
    install("clipfleet", OURS)
    yield install
    for name, module in list(sys.modules.items()):
        # Theirs alone: numpy, loaded by the way, cannot be loaded twice.
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def by_name(found):
    return {(each.package, each.name): each for each in found}


def test_all_of_ours_load_under_their_own_names_and_say_what_they_do(install):
    found = [each for each in registry.listed() if each.package == "clipfleet"]
    assert [(each.name, each.problem) for each in found] == [(name, "") for name in sorted(OURS)]
    assert {each.name for each in found} >= PROMISED
    for each in found:
        assert each.operator.name == each.name
        assert each.operator.__doc__
        assert " -> " in each.operator.task
        assert is_dataclass(each.operator)
        assert each.operator.__dataclass_params__.frozen
        assert not {"name", "task"} & {field.name for field in fields(each.operator)}


def test_each_of_ours_is_exported_under_its_name(install):
    for name in OURS:
        assert getattr(operators, name) is registry.find(name)
        assert name in operators.__all__


def test_given_another_package_then_its_operator_is_found_and_works(install):
    install("acme-operators", {"double": "acme_ops:Double"}, acme_ops=GOOD)
    double = registry.find("double")
    assert issubclass(double, Operator)
    assert not issubclass(double, BatchOperator)
    assert double().open(None)(21) == 42
    listed = by_name(registry.listed())[("acme-operators", "double")]
    assert (listed.version, listed.target, listed.problem) == ("1.2", "acme_ops:Double", "")


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ({"bad": "not_there_at_all:X"}, "ModuleNotFoundError"),
        ({"bad": "acme_bad:X"}, "ZeroDivisionError: division by zero"),
        ({"bad": "acme_exit:X"}, "SystemExit: 3"),
        ({"bad": "acme_ops:Missing"}, "AttributeError"),
        ({"bad": "acme_ops:function"}, "no subclass of clipfleet.operators.Operator"),
        ({"bad": "acme_ops:Double"}, "calls itself 'double'"),
        ({"bad": "acme_ops:Moody"}, "RuntimeError: no name today"),
        ({"bad": "acme_ops:Odd"}, "calls itself 'odd', and its task no text"),
        ({"bad": "not : an [entry"}, "AttributeError"),
    ],
    ids=["missing", "raises", "exits", "no-class", "function", "name", "moody", "odd-task", "no-entry"],
)
def test_given_a_broken_package_then_it_is_reported_and_the_others_still_work(install, points, text):
    install("acme", points, acme_bad="1 / 0", acme_exit="raise SystemExit(3)", acme_ops=GOOD)
    listed = by_name(registry.listed())
    assert text in listed[("acme", "bad")].problem
    assert listed[("acme", "bad")].operator is None
    assert listed[("clipfleet", "crop")].problem == ""
    assert registry.find("crop") is operators.crop
    with pytest.raises(ValueError, match=r"operator 'bad' of acme cannot be used: .*" + text.split(" ")[0]):
        registry.find("bad")


def test_given_a_package_that_takes_one_of_our_names_then_ours_stays(install):
    install("aaa", {"crop": "acme_ops:Other"}, acme_ops=GOOD)
    listed = by_name(registry.listed())
    assert listed[("clipfleet", "crop")].problem == ""
    assert listed[("aaa", "crop")].problem == "clipfleet has an operator of this name too"
    assert registry.find("crop") is operators.crop


def test_given_one_name_then_no_other_package_is_imported(install):
    install("acme", {"bad": "acme_bad:X"}, acme_bad="1 / 0")
    registry.find("crop")
    assert "acme_bad" not in sys.modules


def test_given_a_name_that_nobody_has_then_the_nearest_is_named(install):
    with pytest.raises(ValueError, match="did you mean normalize"):
        registry.find("normalise")
    with pytest.raises(ValueError, match="there are classify, clip_image"):
        registry.find("xyzzy")
