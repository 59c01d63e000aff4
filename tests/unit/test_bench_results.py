"""What is made of measurements: percentiles, figures, the file that keeps them and the page that shows them."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

if not (Path(__file__).parents[2] / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)

from bench import report
from bench.__main__ import FORMS, PARTS, parse
from bench.ours import CALLED, SETTLED, SIZE, Batches
from bench.queue_peers import PEERS, pinned
from bench.results import Curve, Figure, Part, Plot, load, number, save
from bench.stats import Spread, mean_batch, percentile, ratios
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(report.__file__).parent


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 1, 5.0),
        ([5.0], 100, 5.0),
        ([1, 2, 3, 4], 50, 2),
        (range(1, 101), 99, 99),
        (range(1, 101), 99.1, 100),
        (range(1, 301), 99, 297),  # 99 / 100 * 300 is a little above 297 in floats
        (range(1, 1001), 99.9, 999),
        ([3, 1, 2], 67, 3),
    ],
)
def test_given_values_then_a_percentile_is_the_smallest_that_so_many_do_not_exceed(values, percent, expected):
    assert percentile(values, percent) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_given_any_values_then_a_percentile_is_one_of_them_and_that_share_is_not_above_it(values, percent):
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6
    assert sum(value < found for value in values) < percent / 100 * len(values) + 1e-6


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_given_nothing_or_no_percent_then_there_is_no_percentile(values, percent):
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)


def test_given_rounds_then_ratios_are_taken_round_by_round():
    assert ratios([10, 20], [5, 40]) == [2.0, 0.5]
    with pytest.raises(ValueError, match="argument"):
        ratios([1], [1, 2])
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert mean_batch({1: 10, 40: 1}) == pytest.approx(50 / 11)
    assert mean_batch({}) == 0


@pytest.mark.parametrize(
    ("values", "target", "met"),
    [([19, 21, 22], ">= 20", True), ([19, 19, 22], ">= 20", False), ([0.3], "<= 0.3", True), ([0.31], "<= 0.3", False)],
)
def test_given_a_target_then_the_median_decides(values, target, met):
    assert Figure("x", values, target=target).met is met


def test_given_a_target_that_is_none_then_it_is_an_error_and_not_a_miss():
    with pytest.raises(ValueError, match="is no target"):
        _ = Figure("x", [1.0], target="about 20").met
    assert Figure("x", [1.0]).met is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (0.5, "0.50"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
        (-12.34, "-12.3"),
    ],
)
def test_given_a_figure_then_only_digits_that_mean_something_are_written(value, text):
    assert number(value) == text


@pytest.fixture
def part(capsys):
    made = Part("queue", "What the queue costs", "All | of it.", rounds=3, full=True, at="today")
    made.machine, made.versions = {"cpu": "A | CPU", "cores": 2}, {"redis": "8.1"}
    made.add(
        "clipfleet",
        [10.0, 30.0, 20.0],
        "requests/s",
        arrival="closed loop",
        batches={64: 3, 2: 1},
        p50_ms=1.5,
        p99_ms=9.25,
    )
    made.ratio("clipfleet / arq", [10.0, 30.0, 20.0], [1.0, 1.0, 1.0], target=">= 25", note="a | b\nc <d>")
    made.skip("dramatiq", "no | wheel <here>")
    made.plots.append(
        Plot("curve", "A curve", "x", "y", [Curve("line", [1.0, 2.0], [3.0, 4.0], [2.0, 3.0], [4.0, 5.0])])
    )
    said = capsys.readouterr().out
    assert "median" not in said
    assert re.search(
        r"clipfleet +20\.0 requests/s +\(min 10\.0, max 30\.0, 3 rounds\)  p50 1\.50 ms, p99 9\.25 ms  mean batch", said
    )
    assert "target >= 25: MISSED" in said
    assert "not measured: no | wheel" in said
    return made


def test_given_parts_then_the_file_gives_back_what_was_written(part, tmp_path):
    file = tmp_path / "deep" / "results.json"
    save(file, {"queue": part})

    assert load(file) == {"queue": part}
    assert [path.name for path in file.parent.iterdir()] == ["results.json"]
    assert load(tmp_path / "none.json") == {}


def test_given_figures_from_elsewhere_then_what_could_not_be_measured_is_a_reason_and_no_figure(capsys):
    part = Part("x", "X", "about")
    part.take(Figure("a", (1.0, 2.0), "x", batches=Counter({2: 3})))
    part.take(Figure("b", why="no torch here"))
    assert [(one.name, one.values, one.batches) for one in part.figures] == [("a", [1.0, 2.0], {2: 3})]
    assert part.skipped == {"b": "no torch here"}
    assert "b " in capsys.readouterr().out.splitlines()[1]


def test_given_a_file_of_a_later_release_then_what_it_has_added_is_left_out(part, tmp_path):
    file = tmp_path / "results.json"
    save(file, {"queue": part})
    found = json.loads(file.read_text(encoding="utf-8"))
    for place in (found["parts"][0], found["parts"][0]["figures"][0], found["parts"][0]["plots"][0]):
        place["later"] = 1
    file.write_text(json.dumps(found), encoding="utf-8")

    assert load(file) == {"queue": part}


def test_given_parts_then_the_page_has_their_figures_their_targets_and_what_was_not_measured(part, tmp_path):
    report.write(tmp_path, {"queue": part})
    page = (tmp_path / "performance.md").read_text(encoding="utf-8")

    assert "| [What the queue costs](#what-the-queue-costs) | clipfleet / arq | 20.0 | ≥ 25 | **no** |" in page
    assert "| clipfleet | closed loop | 20.0 | 10.0 | 30.0 | requests/s | 1.50 | 9.25 | 48.5 |  |  |" in page
    assert "- clipfleet: 2 x 1, 64 x 3" in page
    assert "- dramatiq: no \\| wheel &lt;here>" in page
    assert "precision" not in page  # nobody has anything to say in that column
    assert page.endswith("\n")
    for table in re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(widths) == 1, f"a cell has torn this table:\n{table}"


def test_given_the_same_figures_then_page_and_pictures_are_the_same_to_the_byte(part, tmp_path):
    if find_spec("matplotlib") is None and "CI" not in os.environ:
        pytest.skip("matplotlib is not installed")
    report.write(tmp_path / "one", {"queue": part})
    report.write(tmp_path / "two", {"queue": part})
    picture = (tmp_path / "one/performance/curve.svg").read_text(encoding="utf-8")

    assert picture == (tmp_path / "two/performance/curve.svg").read_text(encoding="utf-8")
    assert ">A curve<" in picture  # text stays text
    assert "![A curve](performance/curve.svg)" in (tmp_path / "one/performance.md").read_text(encoding="utf-8")


def test_given_a_worker_that_writes_its_batches_then_each_look_sees_what_is_new_of_its_kind(tmp_path):
    file = tmp_path / "batches"
    batches = Batches(file)
    assert batches.new(SETTLED) == {}
    file.write_bytes(SIZE.pack(SETTLED, 64) * 2 + SIZE.pack(CALLED, 8) + SIZE.pack(SETTLED, 1)[:2])
    assert batches.new(SETTLED) == {64: 2}
    with file.open("ab") as more:  # the rest of what was half written
        more.write(SIZE.pack(SETTLED, 1)[2:])
    assert batches.new(SETTLED) == {1: 1}
    assert batches.new(SETTLED) == {}


def test_given_words_then_the_form_decides_what_they_do_not_say():
    quick, full = parse([]), parse(["queue", "--full", "--rounds", "3", "--backlogs", "10,20", "--peers", "arq,celery"])
    assert [getattr(quick, name) for name in FORMS] == [forms[0] for forms in FORMS.values()]
    assert (full.rounds, full.count, full.backlogs, full.peers) == (3, FORMS["count"][1], (10, 20), ["arq", "celery"])
    assert full.what == ["queue"]


@pytest.mark.parametrize("words", [["nothing"], ["--rounds", "0"], ["--peers", "arq,rq"], ["--backlogs", "many"]])
def test_given_words_that_say_nothing_then_it_ends_with_the_usage(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(words)
    assert "usage: bench" in capsys.readouterr().err


def test_each_part_names_a_module_and_a_function_that_are_there():
    for target in PARTS.values():
        module, _, function = target.partition(":")
        source = (BENCH.parent / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
        assert f"\ndef {function}(" in source


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_each_peer_has_its_two_sides_and_every_package_pinned(peer):
    assert (BENCH / "peers" / f"{peer.name}_peer.py").is_file()
    rows = (BENCH / "peers" / f"{peer.name}.txt").read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("# ")  # whose licence was looked at
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", row) for row in rows if not row.startswith("#"))
    assert set(pinned(peer)) == set(peer.shown)
