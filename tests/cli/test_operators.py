"""``clipfleet operators``: listed, described, begun and fitted."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from clipfleet.cli import main
from clipfleet.cli.operator_package import check_name, write_package
from clipfleet.models import resolve_model
from clipfleet.operators.pca import load_pca
from support.cli import Done, clean_environment


@pytest.fixture
def ask(capsys, tmp_path, monkeypatch):
    """A command line in this process, in an empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def run(*args: str) -> Done:
        capsys.readouterr()
        code = main(args)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A package is installed whose operator cannot be loaded."""
    info = tmp_path / "site" / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[clipfleet.operators]\nbad = not_there_at_all:X\n")
    monkeypatch.syspath_prepend(tmp_path / "site")


def test_when_listed_then_every_operator_says_what_it_takes_and_gives(ask):
    done = ask("operators", "list", "--json")
    assert (done.code, done.err) == (0, "")
    found = {each["name"]: each for each in done.lines}
    assert found["crop"] == {
        "name": "crop",
        "package": "clipfleet",
        "version": found["decode"]["version"],
        "target": "clipfleet.operators.cropping:Crop",
        "task": "pixels, box -> pixels",
        "batch": False,
        "of_model": False,
    }
    assert found["clip_image"]["batch"]
    assert found["clip_image"]["of_model"]
    assert len(found) >= 16


def test_given_a_package_that_is_broken_then_it_is_listed_with_its_problem_and_the_others_as_ever(ask, broken):
    done = ask("operators", "list")
    assert done.code == 0
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.split()}
    assert "(broken) ModuleNotFoundError: No module named 'not_there_at_all'" in lines["bad"]
    assert "acme 1.0" in lines["bad"]
    assert "pixels, box -> pixels" in lines["crop"]
    errors = [each for each in ask("operators", "list", "--json").lines if "error" in each]
    assert [each["name"] for each in errors] == ["bad"]


def test_when_asked_about_one_then_its_options_and_what_they_mean_are_shown(ask):
    done = ask("operators", "info", "resize")
    assert done.code == 0
    assert done.out.startswith("resize(size: int | tuple[int, int], mode: ResizeMode = 'shortest', ")
    assert "pixels -> pixels" in done.out
    assert "mode: ``shortest`` scales the shorter side" in done.out
    (known,) = ask("operators", "info", "detect", "--json").lines
    assert known["batch"]
    assert {option["name"]: option.get("default") for option in known["options"]}["score"] == "0.25"
    assert "default" not in known["options"][0]


def test_given_a_name_that_nobody_has_then_it_is_wrong_usage_and_the_nearest_is_named(ask):
    done = ask("operators", "info", "normalise")
    assert done.code == 2
    assert "did you mean normalize" in done.err


# new ------------------------------------------------------------------------------------------------------------------


def test_given_a_new_package_when_installed_then_its_own_tests_pass_and_clipfleet_lists_it(cli, tmp_path):
    done = cli("operators", "new", "grey_down", "--json")
    assert done.code == 0
    (made,) = done.lines
    folder = tmp_path / made["path"]
    assert folder.name == "clipfleet-grey-down"
    assert sorted(made["files"]) == sorted(
        str(path.relative_to(tmp_path)) for path in folder.rglob("*") if path.is_file()
    )
    installed = installed_as_pip_would(folder, tmp_path / "site")
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env=clean_environment(**installed),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout
    assert "5 passed" in tests.stdout
    found = {each["name"]: each for each in cli("operators", "list", "--json", **installed).lines}
    assert found["grey_down"]["package"] == "clipfleet-grey-down"
    assert "error" not in found["grey_down"]


def installed_as_pip_would(folder: Path, site: Path) -> dict[str, str]:
    """The package's metadata and sources on the path, without a build: what an editable install amounts to."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    path = [str(site), str(folder / "src"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path).rstrip(os.pathsep)}


@pytest.mark.slow
def test_given_a_new_package_when_it_is_built_then_pip_installs_it_with_its_entry_point(cli, tmp_path):
    hatchling = pytest.importorskip("hatchling")
    assert cli("operators", "new", "blur").code == 0
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--target", tmp_path / "site", tmp_path / "clipfleet-blur"], check=True, timeout=110)
    (points,) = (tmp_path / "site").glob("clipfleet_blur-*.dist-info/entry_points.txt")
    assert "blur = clipfleet_blur:Blur" in points.read_text()
    assert (tmp_path / "site" / "clipfleet_blur" / "py.typed").exists(), hatchling


@pytest.mark.parametrize(
    "name",
    [
        "Blur",
        "2d",
        "a-b",
        "a.b",
        "class",
        "",
        "../x",
        "x" * 41,
        "é",
        "a b",
        "true",
        "none",
        "np",
        "find",
        "error_code",
        "test_blur",
        "blur\n",
    ],
)
def test_given_a_name_that_cannot_be_then_nothing_is_written(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be an operator's name"):
        check_name(name)
    with pytest.raises(ValueError, match="cannot be an operator's name"):
        write_package(name, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_given_a_folder_with_something_in_it_then_it_is_left_alone(ask):
    Path("mine").mkdir()
    Path("mine/README.md").write_text("mine")
    done = ask("operators", "new", "blur", "--out", "mine")
    assert done.code == 2
    assert "mine is there already" in done.err
    assert Path("mine/README.md").read_text() == "mine"


def test_given_a_name_that_is_taken_then_it_is_wrong_usage(ask):
    done = ask("operators", "new", "crop")
    assert done.code == 2
    assert "clipfleet has an operator crop already" in done.err
    assert list(Path().iterdir()) == []


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, a=np.ones((3, 2)), b=np.ones(2))
    return out.getvalue()


# fit-pca --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def vectors(ask) -> Path:
    random = np.random.default_rng(3)
    np.save("v.npy", random.normal(size=(300, 20)).astype(np.float32) * np.linspace(3, 0.1, 20))
    return Path("v.npy")


def test_given_vectors_then_the_fitted_file_is_written_and_described(ask, vectors):
    done = ask("operators", "fit-pca", vectors.name, "--to", "5", "-o", "pca.npz", "--model", "demo", "--json")
    assert (done.code, done.err) == (0, "")
    (told,) = done.lines
    fitted = load_pca("pca.npz")
    assert (fitted.components.shape, fitted.model) == ((5, 20), resolve_model("demo").config.fingerprint)
    assert told["fingerprint"] == fitted.fingerprint
    assert told["explained"] == pytest.approx(float(fitted.explained.sum()))
    assert 0.4 < told["explained"] < 0.9
    again = ask("operators", "fit-pca", vectors.name, "--to", "5", "-o", "pca.npz")
    assert again.code == 2
    assert "is there already" in again.err


def test_given_no_model_then_it_is_said_what_that_costs(ask, vectors):
    done = ask("operators", "fit-pca", vectors.name, "--to", "5", "-o", "pca.npz")
    assert done.code == 0
    assert done.out.startswith("pca.npz: 20 numbers to 5, which keep ")
    assert "no --model was given" in done.err


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--to", "20"], 1, "can be reduced to 1 to 19"),
        (["--to", "0"], 2, "--to"),
        (["--to", "5", "--model", "nope/nope"], 1, "clipfleet model export nope/nope"),
    ],
    ids=["not-shorter", "none", "no-model"],
)
def test_given_what_cannot_be_fitted_then_nothing_is_written(ask, vectors, options, code, text):
    done = ask("operators", "fit-pca", vectors.name, *options, "-o", "pca.npz")
    assert done.code == code
    assert text in done.err
    assert not Path("pca.npz").exists()


@pytest.mark.parametrize("content", [b"", b"no numpy", npz()], ids=["empty", "text", "npz"])
def test_given_a_file_that_holds_no_vectors_then_it_is_said(ask, content):
    Path("v.npy").write_bytes(content)
    done = ask("operators", "fit-pca", "v.npy", "--to", "2", "-o", "pca.npz")
    assert done.code == 1
    assert "v.npy" in done.err
    assert "Traceback" not in done.err
    missing = ask("operators", "fit-pca", "none.npy", "--to", "2", "-o", "pca.npz")
    assert missing.code == 1
    assert "none.npy: No such file" in missing.err
