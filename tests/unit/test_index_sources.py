"""What a source's name stands for: kinds by suffix, brace ranges, patterns; and ids that must not meet."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.index import Part, part_of
from clipfleet.index.files import printable
from clipfleet.index.sources import (
    Columns,
    Failure,
    Folders,
    Glob,
    Item,
    Seen,
    Skip,
    SourceError,
    Table,
    Tars,
    count_all,
    open_sources,
)
from clipfleet.index.sources.braces import expand
from clipfleet.index.sources.seen import Met


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("a.jpg", "b.PNG", "c.dat", "notes.txt", "x/d.jpg", "x/y/e.jpg", "x/y/f.dat", ".h/g.jpg", "z1/[q].jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def events(*names):
    with Seen() as seen:
        return [event for source in open_sources(names) for event in source.events(seen)]


def ids(*names):
    return sorted(event.id for event in events(*names) if isinstance(event, Item))


def shard(path, *names):
    with tarfile.open(path, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.jpg", ["a.jpg"]),
        ("./*.jpg", ["a.jpg"]),
        ("*", ["a.jpg", "b.PNG", "x/d.jpg", "x/y/e.jpg", "z1/[q].jpg"]),
        ("*/*.jpg", ["x/d.jpg", "z1/[q].jpg"]),
        ("**/*.jpg", ["a.jpg", "x/d.jpg", "x/y/e.jpg", "z1/[q].jpg"]),
        ("**", ["a.jpg", "b.PNG", "x/d.jpg", "x/y/e.jpg", "z1/[q].jpg"]),
        ("x/**/*.dat", ["y/f.dat"]),
        ("*.dat", ["c.dat"]),
        ("**/y/*", ["x/y/e.jpg"]),
        ("[a-b].*g", ["a.jpg"]),
        ("[!a].*", ["b.PNG"]),
        ("?", ["x/d.jpg", "x/y/e.jpg"]),
        ("z[0-9]/**", ["z1/[q].jpg"]),
        ("z1/[[]q].jpg", ["[q].jpg"]),
        ("z1/[q].jpg", ["[q].jpg"]),
        ("{a,b}.*", ["a.jpg", "b.PNG"]),
        ("x{,/y}/?.jpg", ["d.jpg", "e.jpg"]),
        ("*.gif", []),
    ],
)
def test_given_a_pattern_when_opened_then_what_matches_is_found_as_if_it_was_named(tree, pattern, found):
    assert ids(pattern) == found
    absolute = f"{tree}/{pattern}"
    assert len(ids(absolute)) == len(found)
    assert len(list(count_all(open_sources([absolute])))) == len(found)


def test_given_a_pattern_for_one_level_when_walked_then_deeper_folders_are_not_entered(tree, monkeypatch):
    scandir, entered = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda folder: entered.append(str(folder)) or scandir(folder))
    assert ids("*.jpg") == ["a.jpg"]
    assert entered == ["."]


def test_given_a_range_of_shards_when_opened_then_missing_ones_are_failures(tree):
    for number in (0, 2):
        shard(f"s-{number:03}.tar", "k.jpg")
    found = events("s-{000..002}.tar")
    assert [event.id for event in found if isinstance(event, Item)] == ["s-000/k", "s-002/k"]
    assert [(event.id, event.error.code) for event in found if isinstance(event, Failure)] == [
        ("s-001", "fetch_failed")
    ]
    assert ids("s-*.tar") == ["s-000/k", "s-002/k"]
    for name in ("t-{0..5}.tar", "t-*.tar", "no/t-*.tar", "t.tar", "no/*.jpg", "no", "{a,q}.jpg", "t.csv", "{a,b}.csv"):
        with pytest.raises(FileNotFoundError):
            open_sources([name])
    with pytest.raises(SourceError, match=r"at most 1,000,000"):
        open_sources(["s-{0..9999999}.tar"])


def test_given_names_of_every_kind_when_opened_then_suffixes_decide_whatever_their_case(tree):
    (tree / "T.CSV").write_text("url\n")
    (tree / "folder.tar").mkdir()
    shard("S.TAR", "k.jpg")
    sources = open_sources(["T.CSV", "S.TAR", "folder.tar", "a.jpg", Path("x"), "*.PNG"])
    assert [type(source) for source in sources] == [Folders, Table, Tars, Glob]
    assert [bool(source.about) for source in sources] == [False, True, True, True]
    assert len(list(count_all(sources))) == 1 + 2 + 0 + 1 + 1


def test_given_one_id_in_sources_of_two_kinds_when_read_then_the_second_is_an_error_or_a_duplicate(tree):
    (tree / "other").mkdir()
    (tree / "other" / "t.csv").write_text("path,id\np.jpg,a.jpg\n")
    (tree / "x" / "t.csv").write_text("path\nd.jpg\n")
    found = events("other/t.csv", "a.jpg", "x", "x/t.csv")
    assert [(event.id, str(event.error.code)) for event in found if isinstance(event, Failure)] == [
        ("a.jpg", "bad_request")
    ]
    assert sum(event.count for event in found if isinstance(event, Skip) and event.reason == Skip.DUPLICATE) == 1


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a{1..3}", ["a1", "a2", "a3"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{08..11}x", ["08x", "09x", "10x", "11x"]),
        ("{0..2}{a,b}", ["0a", "0b", "1a", "1b", "2a", "2b"]),
        ("{a}{}{1..}", ["{a}{}{1..}"]),
        ("{,x}y", ["y", "xy"]),
    ],
)
def test_braces_stand_for_what_they_do_in_a_shell(pattern, names):
    assert list(expand(pattern)) == names


@given(st.lists(st.tuples(st.sampled_from("abcdé\0"), st.binary(max_size=1))))
def test_given_any_ids_when_met_then_seen_is_as_good_as_a_dictionary(met):
    known: dict[str, bytes] = {}
    with Seen() as seen:
        for name, picture in met:
            assert (name in seen) == (name in known)
            expected = Met.NEW if name not in known else Met.SAME if known[name] == picture else Met.TAKEN
            assert seen.add(name, picture) is expected
            known.setdefault(name, picture)


def test_given_ten_times_the_rows_when_read_then_memory_is_the_same(tmp_path):
    def peak(rows):
        (tmp_path / "a.csv").write_text("url\n" + "".join(f"https://e.com/{row}.jpg\n" for row in range(rows)))
        with Seen() as seen:
            tracemalloc.start()
            assert sum(1 for _ in Table(tmp_path / "a.csv", Columns()).events(seen)) == rows
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return found

    peak(100)  # what is imported on the way
    assert peak(5_000) < peak(500) + 200_000


def test_given_any_text_when_printable_then_it_can_be_written():
    assert printable("\udcff\ud800") == "\\udcff\\ud800"
    assert printable("\udcff") == r"\xff"


def test_given_shards_named_one_by_one_when_divided_then_each_part_has_some_and_equal_names_stay_together(tmp_path):
    for name in ("0.tar", "1.tar", "2.zip", "other/0.tar", "3.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [str(tmp_path / name) for name in ("0.tar", "1.tar", "2.zip", "other/0.tar", "3.tar")]
    parts = [part_of(open_sources(names), Part(number, 3)) for number in (1, 2, 3)]
    stems = [[stem for source in part for stem in source.stems()] for part in parts]
    assert stems == [["0", "0", "3"], ["1"], ["2"]]


def test_given_files_of_one_name_in_two_folders_when_named_then_one_never_replaces_the_other(tmp_path):
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.png").write_bytes(folder.encode())
    for names in (["a/1.png", "b/1.png"], ["a/1.png", "c"]):
        with Seen() as seen:
            (source,) = open_sources([tmp_path / name for name in names])
            one, other = source.events(seen)
        assert (one.id, other.id, isinstance(one, Item)) == ("1.png", "1.png", True)
        assert "another picture has the same id" in str(other.error)


def test_given_a_name_that_spells_another_ones_bytes_then_one_never_replaces_the_other(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(b"1")
    (tmp_path / "\\xff.png").write_bytes(b"2")
    with Seen() as seen:
        (source,) = open_sources([tmp_path])
        assert sorted(type(event).__name__ for event in source.events(seen)) == ["Failure", "Item"]


def test_given_very_many_files_as_a_shell_spells_them_out_then_they_are_not_compared_each_with_each(
    tmp_path, monkeypatch
):
    names = [tmp_path / f"{number}.png" for number in range(300)]
    for name in names:
        name.touch()
    asked = 0
    is_dir = Path.is_dir

    def counted(path):
        nonlocal asked
        asked += 1
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", counted)
    with Seen() as seen:
        assert sum(1 for source in open_sources(names) for _ in source.events(seen)) == 300
    assert asked < 10 * len(names)
