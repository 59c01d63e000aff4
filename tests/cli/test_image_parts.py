"""What an image is made of: modules, pinned packages, wheels."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.image.builders import build_command, find_builder, run_builder
from clipfleet.cli.image.context import parse_tag
from clipfleet.cli.image.modules import trace
from clipfleet.cli.image.packages import find_packages, requirements_text
from clipfleet.cli.image.wheel import our_files, wheel_of, write_wheel


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that modules are imported from, forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# Modules ---------------------------------------------------------------------------------------------------------


def test_given_a_module_when_traced_then_what_it_imports_anywhere_is_found(folder):
    write(folder / "main_one.py", "import helper_one\ndef late():\n    import helper_two\n    import numpy.linalg\n")
    write(folder / "helper_one.py", "import os, json\n")
    write(folder / "helper_two.py", "from PIL import Image\n")
    found = trace(["main_one"])
    assert {name: taken.path for name, taken in found.taken.items()} == {
        name: folder / f"{name}.py" for name in ("main_one", "helper_one", "helper_two")
    }
    assert found.distributions == {"numpy", "pillow"}


def test_given_a_package_when_traced_then_the_whole_folder_is_taken_and_only_what_is_imported_read(folder):
    write(folder / "pack_a/__init__.py", "from . import near\n")
    write(folder / "pack_a/near.py", "from .far.away import thing\n")
    write(folder / "pack_a/far/away.py", "import msgpack\nthing = 1\n")
    write(folder / "pack_a/tests/test_it.py", "import a_test_tool_that_nobody_has\n")
    found = trace(["pack_a.near"])
    assert found.taken["pack_a"].path == folder / "pack_a"
    assert found.taken["pack_a"].root == folder
    assert found.distributions == {"msgpack"}


def test_given_a_folder_without_init_when_traced_then_it_is_taken(folder):
    write(folder / "space/mod.py", "import space.other\n")
    write(folder / "space/other.py", "import structlog\n")
    found = trace(["space.mod"])
    assert found.taken["space"].path == folder / "space"
    assert found.distributions == {"structlog"}


def test_given_a_cycle_of_imports_when_traced_then_it_ends(folder):
    write(folder / "ring_a.py", "import ring_b\n")
    write(folder / "ring_b.py", "import ring_a\n")
    assert set(trace(["ring_a"]).taken) == {"ring_a", "ring_b"}


def test_given_an_import_that_is_not_there_when_traced_then_it_is_refused_by_name(folder):
    write(folder / "lacks.py", "def late():\n    import not_here_at_all\n")
    with pytest.raises(CliError, match=r"lacks\.py imports not_here_at_all, which is not installed here"):
        trace(["lacks"])


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import not_here\nexcept ImportError:\n    not_here = None\n",
        "try:\n    from not_here import x\nexcept (ValueError, ModuleNotFoundError):\n    x = None\n",
        "try:\n    import not_here\nexcept:\n    pass\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import not_here\n",
        "import typing as t\nif t.TYPE_CHECKING:\n    from not_here import x\n",
    ],
)
def test_given_an_import_that_may_fail_when_traced_then_it_is_passed_over(folder, text):
    write(folder / "careful.py", text)
    assert trace(["careful"]).distributions == set()


def test_given_a_handler_for_other_errors_when_traced_then_the_import_must_be_there(folder):
    write(folder / "careless.py", "try:\n    import not_here\nexcept ValueError:\n    pass\n")
    with pytest.raises(CliError, match="not_here"):
        trace(["careless"])


def test_given_clipfleet_and_the_standard_library_when_traced_then_nothing_is_taken():
    found = trace(["clipfleet.operators", "json", "os.path"])
    assert not found.taken
    assert not found.distributions


# Packages --------------------------------------------------------------------------------------------------------


def test_given_an_extra_when_packages_are_found_then_all_that_they_need_are_pinned_as_installed():
    found = find_packages("cpu", ["rich"])
    assert {"onnxruntime", "numpy", "pillow", "redis", "msgpack", "typer", "click", "rich", "pygments"} <= set(
        found.pins
    )
    assert not {"pytest", "ruff", "clipfleet", "milvus-lite"} & set(found.pins)
    assert all(version == distribution(name).version for name, version in found.pins.items())


def test_given_packages_when_written_then_every_line_is_a_pin_in_order():
    lines = requirements_text(find_packages("cpu", [])).splitlines()
    pins = [line for line in lines if not line.startswith("#") and ";" not in line]
    assert pins == sorted(pins, key=lambda pin: pin.partition("==")[0])
    assert all(line.count("==") == 1 for line in pins)


def test_given_a_need_of_an_earlier_patch_release_when_written_then_it_has_its_marker(folder):
    installed_from_a_folder(folder, editable=False)
    early, late = (
        f'python_full_version < "{sys.version_info.major}.{minor}.1"' for minor in (sys.version_info.minor, 1)
    )
    wanted = f"Requires-Dist: backport-a>=2 ; {early}\nRequires-Dist: backport-b ; {late}\n"
    wanted += f"Requires-Dist: backport-c ; {early} and extra == 'more'\n"
    metadata = folder / "plug_in_x-1.2.dist-info/METADATA"
    metadata.write_text(metadata.read_text() + wanted)
    lines = requirements_text(find_packages("cpu", ["plug-in-x"])).splitlines()
    assert [line for line in lines if line.startswith("backport")] == [f"backport-a>=2; {early}"]


def test_given_a_package_that_is_not_installed_when_found_then_it_is_refused_with_what_to_type():
    with pytest.raises(CliError, match="the image needs no-such-package-here") as caught:
        find_packages("cpu", ["no-such-package-here"])
    assert "pip install" in caught.value.hint


# Wheels ----------------------------------------------------------------------------------------------------------


def pack_ours(folder):
    dist = distribution("clipfleet")
    return write_wheel("clipfleet", dist.version, dist, our_files(), folder)


def test_given_our_wheel_when_written_twice_then_its_bytes_are_the_same(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert pack_ours(tmp_path / "a").read_bytes() == pack_ours(tmp_path / "b").read_bytes()


def test_given_our_wheel_when_its_record_is_read_then_every_file_is_in_it_with_its_hash(tmp_path):
    with zipfile.ZipFile(pack_ours(tmp_path)) as archive:
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        rows = {path: (digest, size) for path, digest, size in csv.reader(archive.read(record).decode().splitlines())}
        assert set(rows) == names
        for name in names - {record}:
            data = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert rows[name] == (f"sha256={digest}", str(len(data)))
    tops = {name.split("/")[1] for name in names if name.startswith("clipfleet/")}
    assert {"schemas", "producer", "cli", "worker", "batching", "pipeline", "operators", "models", "store"} <= tops
    assert "clipfleet/__init__.py" not in names
    assert not [name for name in names if "__pycache__" in name]


def test_given_our_wheel_when_installed_elsewhere_then_it_runs_and_packs_itself_again(tmp_path):
    wheel = pack_ours(tmp_path)
    home, again = tmp_path / "env", tmp_path / "again"
    again.mkdir()
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python3.*/site-packages")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home / "bin/python"),
        "install",
        "-q",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    ran = subprocess.run([home / "bin/clipfleet", "--version"], check=True, capture_output=True, text=True, env={})
    assert ran.stdout == f"clipfleet {distribution('clipfleet').version}\n"
    assert (site / "clipfleet/models/demo/model.json").is_file()
    # Everything else comes from here; a folder that a .pth names is behind its own.
    (site / "others.pth").write_text(f"{Path(str(distribution('typer').locate_file('')))}\n")
    script = (
        "from importlib.metadata import distribution; from pathlib import Path\n"
        "from clipfleet.cli.image.wheel import our_files, write_wheel\n"
        "dist = distribution('clipfleet')\n"
        f"write_wheel('clipfleet', dist.version, dist, our_files(), Path({str(again)!r}))\n"
    )
    subprocess.run([home / "bin/python", "-c", script], check=True, cwd=tmp_path, env={})
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()


def test_given_an_installed_package_when_packed_then_its_files_are_those_that_it_has(tmp_path):
    dist = distribution("ftfy")
    with zipfile.ZipFile(wheel_of(dist, tmp_path)) as archive:
        names = set(archive.namelist())
        assert archive.read("ftfy/__init__.py") == Path(str(dist.locate_file("ftfy/__init__.py"))).read_bytes()
    assert not [name for name in names if name.startswith("..") or name.endswith((".pyc", "INSTALLER"))]
    assert sum(name.endswith(".dist-info/RECORD") for name in names) == 1


# Tags and builders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "parts"),
    [
        ("objects:v1", ("objects", "v1")),
        ("team/objects:2026-11", ("team/objects", "2026-11")),
        ("host.example:5000/team/objects:v1", ("host.example:5000/team/objects", "v1")),
    ],
)
def test_given_a_tag_when_parsed_then_name_and_version(tag, parts):
    assert parse_tag(tag) == parts


@pytest.mark.parametrize(
    "tag", ["objects", "Objects:v1", "objects:", ":v1", "objects:v1:v2", "a b:v1", "objects:v 1", ""]
)
def test_given_no_tag_when_parsed_then_wrong_usage(tag):
    with pytest.raises(CliError, match="name:version") as caught:
        parse_tag(tag)
    assert caught.value.exit == Exit.USAGE


def tools(folder: Path, **exits: int) -> None:
    for name, code in exits.items():
        write(folder / name, f'#!/bin/sh\necho "$@" >>{folder}/{name}.log\nexit {code}\n').chmod(0o755)


@pytest.mark.parametrize(
    ("there", "wanted", "found"),
    [
        ({"docker": 0, "buildah": 0}, "auto", "docker"),
        ({"docker": 1, "buildah": 0}, "auto", "buildah"),
        ({"docker": 1}, "auto", None),
        ({}, "auto", None),
        ({"docker": 0}, "none", None),
        ({"docker": 0, "buildah": 0}, "buildah", "buildah"),
    ],
)
def test_given_tools_on_the_path_when_a_builder_is_looked_for_then(tmp_path, monkeypatch, there, wanted, found):
    tools(tmp_path, **there)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_builder(wanted) == found


def test_given_a_builder_that_is_not_here_when_asked_for_then_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CliError, match="buildah is not on the PATH"):
        find_builder("buildah")


def test_given_a_builder_when_run_then_it_gets_tag_folder_and_arguments(tmp_path, monkeypatch):
    tools(tmp_path, buildah=0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    run_builder("buildah", "objects:v1", tmp_path, ["--network=host"])
    assert (tmp_path / "buildah.log").read_text() == f"build --format docker -t objects:v1 --network=host {tmp_path}\n"


def test_given_a_builder_that_fails_when_run_then_the_line_to_run_again_is_said(tmp_path, monkeypatch):
    tools(tmp_path, docker=7)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CliError, match="docker ended with 7") as caught:
        run_builder("docker", "objects:v1", tmp_path, [])
    assert " ".join(build_command("docker", "objects:v1", tmp_path)) in caught.value.hint


# Packages that no registry has -----------------------------------------------------------------------------------


def installed_from_a_folder(folder: Path, *, editable: bool) -> None:
    """As pip leaves a package that it was given as a folder."""
    info = folder / "plug_in_x-1.2.dist-info"
    write(folder / "plug_in_x/__init__.py", "VALUE = 1\n")
    write(info / "METADATA", "Metadata-Version: 2.1\nName: plug-in-x\nVersion: 1.2\nRequires-Dist: rich\n")
    write(info / "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\n")
    write(info / "entry_points.txt", "[clipfleet.operators]\nx = plug_in_x:VALUE\n")
    direct = f'{{"url": "file:///src", "dir_info": {{"editable": {str(editable).lower()}}}}}'
    write(info / "direct_url.json", direct)
    names = ["METADATA", "WHEEL", "entry_points.txt", "direct_url.json", "RECORD"]
    rows = [f"plug_in_x-1.2.dist-info/{name},," for name in names]
    write(info / "RECORD", "\n".join(["plug_in_x/__init__.py,,", "../../bin/x,,", *rows, ""]))


def test_given_a_package_from_a_folder_when_found_then_it_is_packed_with_what_it_needs(folder):
    installed_from_a_folder(folder, editable=False)
    found = find_packages("cpu", ["plug-in-x"])
    assert [dist.metadata["Name"] for dist in found.packed] == ["plug-in-x"]
    assert "plug-in-x" not in found.pins
    assert "rich" in found.pins
    (folder / "wheels").mkdir()
    wheel = wheel_of(found.packed[0], folder / "wheels")
    assert wheel.name == "plug_in_x-1.2-py2.py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        info = "plug_in_x-1.2.dist-info"
        wanted = {
            "plug_in_x/__init__.py",
            *(f"{info}/{one}" for one in ("METADATA", "WHEEL", "entry_points.txt", "RECORD")),
        }
        assert set(archive.namelist()) == wanted


def test_given_an_editable_package_when_found_then_its_files_are_left_to_the_modules(folder):
    installed_from_a_folder(folder, editable=True)
    found = find_packages("cpu", ["plug-in-x"])
    assert not found.packed
    assert "plug-in-x" not in found.pins
    assert "rich" in found.pins
