"""The CLIP benchmarks on a tiny model: that their figures are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from bench import clip_bulk, clip_fleet, clip_images, clip_text
from bench.clip_bulk import Round, Sample, growth, spent_ms, sustained, write
from bench.clip_work import Best, Parts, Spent, rounds_of
from bench.pictures import jpeg
from bench.stats import pause_near

from clipfleet.models import load_bundle
from support.fleet import TINY

MIB = 2**20


def test_given_ways_then_each_in_every_round_and_none_always_first() -> None:
    order: list[str] = []

    def way(name: str):
        return lambda: order.append(name) or Spent(1, 1.0, 1.0)

    found = rounds_of({"a": way("a"), "b": way("b")}, 4)

    assert {name: len(spent) for name, spent in found.items()} == {"a": 4, "b": 4}
    assert order in (["b", "a", "a", "b", "b", "a", "a", "b"], ["a", "b", "b", "a", "a", "b", "b", "a"])


def test_given_work_then_what_it_took_is_told_for_each_item() -> None:
    taken = Spent(items=50, wall_s=2.0, cpu_s=3.0)

    assert taken.rate == 25
    assert taken.cpu_ms == 60


def test_given_parts_then_the_model_called_in_any_way_sees_each_picture_once() -> None:
    parts = Parts(load_bundle(TINY), (1, 4))
    pixels = parts.pixels([jpeg(number) for number in range(10)])
    way = parts.best(pixels)

    assert way.batch in {1, 4}
    assert (way.threads, way.sessions) in {(parts.cores, 1), (1, parts.cores)}
    for split in ((parts.cores, 1), (1, parts.cores)):
        taken = parts.model(pixels, Best(4, *split))
        assert taken.items == 10
        assert taken.wall_s > 0
    texts = parts.model_vectors(parts.ids(["a red boat", "a dog"] * 40))
    assert len(texts) == 80
    np.testing.assert_allclose(texts[0], texts[78], atol=1e-5)
    parts.close()


def seen(count: int, *, producer: int = 100, grows: int = 0) -> list[Sample]:
    """A run at 100 a second, in bursts of 16, with a slow start and a comparison at the end; a look each 0.1 s."""
    looks = [Sample(0.1 * at, 0, producer * MIB, 300 * MIB) for at in range(50)]
    for at in range(count // 10):
        memory = (producer + grows * 10 * at // 1_000) * MIB
        cpu = (0.01 * at, 0.05 * at, 0.02 * at, 0.03 * at)
        looks.append(Sample(5.0 + 0.1 * at, (10 * at // 16) * 16, memory, 300 * MIB, cpu))
    after = [Sample(5.0 + count / 100 + 0.1 * at, count, 2 * producer * MIB, 300 * MIB) for at in range(30)]
    return looks + after


def test_given_a_run_then_its_rate_leaves_out_beginning_and_end_and_no_burst_counts_too_much() -> None:
    assert sustained(seen(400)) == pytest.approx(100, rel=0.03)

    with pytest.raises(RuntimeError, match="too few"):
        sustained(seen(400)[:55])


def test_given_a_run_then_what_each_picture_took_is_told_by_who_took_it() -> None:
    found = spent_ms(seen(4_000))

    assert found == pytest.approx({"producer": 1.0, "worker": 5.0, "redis": 2.0, "store": 3.0}, rel=0.01)


def test_given_memory_that_grows_then_the_ratio_of_end_to_middle_tells_and_the_comparison_is_no_growth() -> None:
    assert growth(seen(20_000), "producer") == growth(seen(20_000), "worker") == 1.0
    assert growth(seen(20_000, grows=10), "producer") == pytest.approx(290 / 200, rel=0.02)
    with pytest.raises(RuntimeError, match="too few"):
        growth(seen(1_000), "producer")


def test_given_more_files_than_pictures_then_each_has_a_name_and_they_share_the_bytes(tmp_path) -> None:
    write(tmp_path / "pictures", [b"one", b"two"], 7)

    files = sorted((tmp_path / "pictures").rglob("*.jpg"))
    assert len(files) == 7
    assert sorted(file.read_bytes() for file in files) == [b"one"] * 4 + [b"two"] * 3
    assert len({file.stat().st_ino for file in files}) == 2


def test_given_a_long_run_and_shorter_ones_then_memory_is_told_of_the_long_one_and_rates_of_all() -> None:
    runs = [Round(seen(count), 100.0, 90.0, 10.0) for count in (20_000, 4_000, 4_000)]

    lines = {one.name: one for one in clip_bulk._lines(runs, "", "")}

    assert len(lines["clipfleet index, one worker"].values) == 3
    assert lines["memory of the producer, middle to end"].values == (1.0,)


def test_given_answers_in_bursts_then_the_window_goes_from_the_end_of_one_to_the_end_of_another() -> None:
    # A batch of 16 each second; the client sees its answers a microsecond apart.
    times = [batch + at * 1e-6 for batch in range(20) for at in range(16)]

    first, last = pause_near(times, 70, 16), pause_near(times, 230, 16)

    assert (first % 16, last % 16) == (15, 15)
    assert (last - first) / (times[last] - times[first]) == pytest.approx(16)


def test_given_answers_one_by_one_then_any_window_tells_their_rate() -> None:
    times = [at / 50 for at in range(400)]

    first, last = pause_near(times, 128, 64), pause_near(times, 256, 64)

    assert (last - first) / (times[last] - times[first]) == pytest.approx(50)
    assert last > first


def test_given_a_worker_that_cannot_start_then_the_benchmark_ends_at_once() -> None:
    with pytest.raises(RuntimeError, match="the worker ended with"), clip_fleet.fleets({"x": ["--model", "no/such"]}):
        pass


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_given_a_tiny_model_when_the_benchmark_runs_then_every_way_has_its_figures_and_agrees(monkeypatch) -> None:
    monkeypatch.setattr(clip_fleet, "IN_FLIGHT", 64)

    found = clip_images.run(model=str(TINY), rounds=1, quick=True)

    lines = {one.name: one for one in found}
    ours = lines["clipfleet, as it comes"]
    assert ours.agreement > 0.9999
    assert sum(ours.batches.values()) > 1
    assert "torch" in lines["plain pipeline"].why
    for name in ("what the cores allow", "clipfleet, a process per core / allowed, by CPU"):
        assert lines[name].values[0] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_given_rows_in_a_store_when_searched_by_words_then_the_hits_are_those_of_the_parts() -> None:
    found = clip_text.run(model=str(TINY), rounds=1, count=64, rows=300)

    lines = {one.name: one for one in found}
    assert "80 of 80 hits" in lines["clipfleet search, as it comes"].note
    assert lines["store alone"].values[0] > 0
    assert lines["clipfleet search, as it comes / parts"].target == ">= 0.85"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_given_files_when_indexed_then_the_rate_of_the_command_and_all_rows_are_there() -> None:
    found = clip_bulk.run(model=str(TINY), rounds=2, count=2_000, later=1_500)

    lines = {one.name: one for one in found}
    assert "2,000 and then 1,500 files" in lines["what the cores allow"].note
    assert [rate > 0 for rate in lines["clipfleet index, one worker"].values] == [True, True]
    allowed = lines["clipfleet index / allowed"].values[0]
    assert 0 < allowed < lines["clipfleet index / allowed, with the store"].values[0]
    assert 0 < lines["clipfleet index / allowed, by CPU"].values[0] < 1
    # Half of it is the loading of libraries: too short to tell of memory.
    assert "too few" in lines["memory of the producer, middle to end"].why
