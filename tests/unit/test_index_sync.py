"""What has left a corpus, and what has only become unreadable."""

from __future__ import annotations

import io
import tarfile

import pytest

from clipfleet.index import Failure, Item, Manifest, Part, Skip, open_sources, part_of
from clipfleet.index.sources import Hides, Seen
from clipfleet.index.sources.folder import matches
from clipfleet.index.sync import Unseen, Visited
from clipfleet.schemas.errors import ErrorCode, error_for


class Source:
    """Gives what a test says."""

    about = "a test's"

    def __init__(self, *events):
        self._events = events

    def events(self, seen):
        yield from self._events


def item(id_):
    return Item(id_, id_, b"x")


def failure(id_, *, whole=False, hides=Hides.BELOW):
    return Failure(id_, id_, error_for(ErrorCode.FETCH_FAILED, "why"), whole, hides)


def gone(manifest, *sources):
    with Visited() as visited, Seen() as seen:
        for source in visited.over(sources):
            for _ in source.events(seen):
                pass
        return [id_ for page in visited.gone(manifest) for id_ in page], visited.doubt


@pytest.fixture
def manifest(tmp_path):
    with Manifest(tmp_path / "m") as made:
        for id_ in ("a", "b/1", "b/2", "bc", "d"):
            made.answered(id_, b"")
        made.sent("e", b"")
        made.answered("f", b"", error_for(ErrorCode.CORRUPT_IMAGE))
        yield made


def test_given_a_whole_run_then_what_it_has_not_met_is_gone_whatever_became_of_it(manifest):
    assert gone(manifest, Source(item("a"), Skip(Skip.OTHER)), Source(item("d"))) == (
        ["b/1", "b/2", "bc", "e", "f"],
        "",
    )


def test_given_what_cannot_be_read_then_it_and_what_is_below_it_stays(manifest):
    assert gone(manifest, Source(item("a"), failure("b"), failure("e"))) == (["bc", "d", "f"], "")


@pytest.mark.parametrize(
    "sources",
    [
        [Source(item("a"), failure("shard", whole=True))],
        [Source(item("a"), failure("."))],
        [Source(item("a")), Source()],
        [Source(failure("b"))],
        [Source(item("a"), failure("t.csv:7", hides=Hides.ANY))],
        [Source(item("a"), Skip(Skip.EMPTY, 0, "disk"))],
        [Source(item("a"), *(failure(f"x{number}") for number in range(1_001)))],
    ],
    ids=[
        "broken shard",
        "unreadable folder",
        "an empty source",
        "nothing but failures",
        "no id",
        "an empty folder",
        "too many failures",
    ],
)
def test_given_doubt_then_nothing_is_gone_and_it_says_why(manifest, sources):
    left, doubt = gone(manifest, *sources)
    assert (left, bool(doubt)) == ([], True)


def test_given_pictures_that_failed_by_themselves_then_they_are_no_reason_for_doubt(manifest):
    failures = (failure(f"x{number}", hides=Hides.ITSELF) for number in range(1_001))
    assert gone(manifest, Source(item("a"), failure("d", hides=Hides.ITSELF), *failures)) == (
        ["b/1", "b/2", "bc", "e", "f"],
        "",
    )


# What real sources tell.


@pytest.fixture
def tree(tmp_path):
    for name in ("one/b/1.png", "one/a.png", "two/c.png"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "tree"


def left(tmp_path, known, sources):
    with Manifest(tmp_path / "real") as manifest:
        for id_ in known:
            manifest.answered(id_, b"")
        return gone(manifest, *sources)


def test_given_one_of_several_folders_without_its_disk_then_nothing_is_gone(tree, tmp_path):
    (tree / "two" / "c.png").unlink()
    ids, doubt = left(tmp_path, ["a.png", "c.png"], open_sources([tree / "one", tree / "two"]))
    assert (ids, doubt) == ([], f"{tree / 'two'}: gave nothing at all")


def test_given_a_link_to_a_folder_whose_disk_is_away_then_what_is_below_it_stays(tree, tmp_path):
    (tree / "one" / "nas").symlink_to("/nowhere/pictures")
    (tree / "one" / "loop").symlink_to("loop")
    known = ["a.png", "nas/1.png", "loop/1.png", "old.png"]
    assert left(tmp_path, known, open_sources([tree / "one"])) == (["old.png"], "")
    assert left(tmp_path, known, open_sources([str(tree / "one" / "**")])) == (["old.png"], "")


def test_given_a_folder_that_cannot_be_read_then_no_part_takes_what_is_below_it_for_gone(tree, tmp_path):
    (tree / "one" / "nas").symlink_to("/nowhere/pictures")
    known = [f"nas/{number}.png" for number in range(20)]
    for number in (1, 2, 3):
        part = Part(number, 3)
        mine = [id_ for id_ in known if part.holds(id_)]
        sources = part_of(open_sources([tree / "one"]), part)
        assert mine
        assert left(tmp_path / str(number), mine, sources)[0] == []


def test_given_a_folder_that_a_pattern_of_shards_cannot_search_then_nothing_is_gone_and_it_is_told(tmp_path):
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards" / "0.tar", "w") as tar:
        info = tarfile.TarInfo("1.png")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    (tmp_path / "shards" / "nas").symlink_to("/nowhere/shards")
    ids, doubt = left(tmp_path, ["0/1", "1/1"], open_sources([str(tmp_path / "shards" / "**" / "*.tar")]))
    assert (ids, "nas" in doubt) == ([], True)
    # Who asks for shards alone, as tasks do, is given nothing else.
    assert matches(str(tmp_path / "shards" / "**" / "*.tar")) == [tmp_path / "shards" / "0.tar"]


def test_given_a_pattern_of_tables_that_cannot_search_a_folder_then_it_is_a_failure_of_its_own(tmp_path):
    (tmp_path / "t.csv").write_text("id,path\n1,a.png\n")
    (tmp_path / "nas").symlink_to("/nowhere/tables")
    ids, doubt = left(tmp_path, ["1", "2"], open_sources([str(tmp_path / "**" / "*.csv")]))
    assert (ids, "nas" in doubt) == ([], True)


def test_given_a_row_whose_id_cannot_be_read_then_nothing_is_gone(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("id,url\n1,https://a.example/1.png\n2,https://a.example/2.png,more\n3,none\n")
    ids, doubt = left(tmp_path, ["1", "2", "3", "4"], open_sources([table]))
    assert (ids, "t.csv:3" in doubt) == ([], True)
    table.write_text("id,url\n1,https://a.example/1.png\n3,none\n")
    assert left(tmp_path, [], open_sources([table])) == (["2", "4"], "")


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([item("a")], ""),
        ([item("a"), failure("b", hides=Hides.ITSELF), failure("t.csv:7", hides=Hides.ANY)], ""),
        ([item("a"), failure("b"), failure("c")], "b: why"),
        ([item("a"), Skip(Skip.OTHER), Skip(Skip.EMPTY, 0, "disk")], "disk: gave nothing at all"),
        ([failure("b", hides=Hides.ITSELF)], "a source gave nothing at all (a test's)"),
    ],
    ids=["all", "one each", "a folder", "an empty folder", "an empty source"],
)
def test_given_what_hides_any_number_of_pictures_then_that_is_known_and_single_ones_are_not_it(events, why):
    unseen = Unseen()
    with Seen() as seen:
        for _pass in range(2):
            for source in unseen.over([Source(*events), Source(item("z"))]):
                assert list(source.events(seen))
    assert unseen.why == why


def test_given_a_link_that_leads_nowhere_and_an_empty_folder_when_walked_then_something_may_be_unseen(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"x")
    for names, link, expected in ((["a"], None, ""), (["a", "b"], None, "nothing at all"), (["a"], "disk", "disk")):
        if link is not None:
            (tmp_path / "a" / link).symlink_to(tmp_path / "not mounted")
        unseen = Unseen()
        with Seen() as seen:
            for source in unseen.over(open_sources([tmp_path / name for name in names])):
                assert list(source.events(seen))
        assert (expected in unseen.why, bool(expected)) == (True, bool(unseen.why)), unseen.why
