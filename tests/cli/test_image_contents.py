"""What a pipeline's image takes of a folder, and what it never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipfleet import pipeline
from clipfleet.cli.errors import CliError
from clipfleet.cli.image.contents import Contents
from clipfleet.cli.image.context import build_context
from clipfleet.cli.image.modules import Taken
from clipfleet.operators import decode


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    return tmp_path


def test_given_a_file_and_then_its_folder_when_included_then_all_of_both_is_there(folder):
    for name in ("a.txt", "b.txt"):
        (folder / "pack" / name).write_text(name)
    contents = Contents(folder / "app", [folder])
    for path in ("pack/a.txt", "pack", "pack"):
        contents.add_file(Path(path))
    assert sorted(path.name for path in (folder / "app" / "pack").iterdir()) == ["__init__.py", "a.txt", "b.txt"]
    assert contents.taken == [("file", "pack/a.txt"), ("file", "pack")]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("server.pem", "-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n", "a private key"),
        ("id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\n", "a private key"),
        ("notes.txt", "Bag Attributes\n-----BEGIN PRIVATE KEY-----\n", "a private key"),
        ("prod.env", "TOKEN=1", "an environment"),
    ],
)
def test_given_a_secret_in_what_is_taken_when_added_then_it_is_refused_by_name(folder, name, text, what):
    (folder / "pack" / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (folder / "pack" / "keys.py").write_text('BEGIN = "-----BEGIN PRIVATE KEY-----"\n')
    Contents(folder / "one", [folder]).add_module(Taken(folder, folder / "pack"))
    assert (folder / "one" / "pack" / "ca.pem").exists()
    (folder / "pack" / name).write_text(text)
    with pytest.raises(CliError, match=rf"{name} holds {what}"):
        Contents(folder / "two", [folder]).add_module(Taken(folder, folder / "pack"))
    with pytest.raises(CliError, match=rf"{name} holds {what}"):
        Contents(folder / "two", [folder]).add_file(Path("pack", name))
    assert not (folder / "two" / "pack" / name).exists()


def test_given_a_context_inside_of_what_is_included_when_built_then_it_is_refused(folder):
    flow = pipeline.input("image").map("image", "pixels", decode()).output("pixels")
    with pytest.raises(CliError, match="it would be in itself"):
        build_context(flow, "pack:flow", "thing:v1", folder / "out", include=[Path()])
    assert not (folder / "out").exists()
