"""What rows in the store cost: on Milvus Lite, where there is no server."""

from __future__ import annotations

from pathlib import Path

import pytest

if not (Path(__file__).parents[2] / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)

from bench import stored
from bench.__main__ import parse
from bench.results import Part

from store import milvus_server


@pytest.mark.slow
def test_given_no_server_when_rows_are_stored_then_lite_is_measured_as_far_as_it_is_meant_for(monkeypatch):
    monkeypatch.setattr(milvus_server, "is_unpacked", lambda: False)
    part = stored.run(parse(["stored", "--rows", "300,900,200000", "--rounds", "2"]))
    lines = {figure.name: figure for figure in part.figures}
    for what in ("search", "search, 64 at once", "upsert"):
        for rows in ("300", "900"):
            assert all(value > 0 for value in lines[f"{what}: {rows} rows"].values)
        assert len(lines[f"{what}: 900 rows / 300"].values) == 2
    assert "Milvus Lite" in part.versions["store"]
    assert "100,000" in part.skipped["200,000 rows"]
    assert "pytest -m milvus_server" in part.skipped["a Milvus server"]


class Taking:
    """A store that takes rows and keeps none."""

    def ensure_collection(self, *_, **__):
        pass

    def upsert(self, _, rows):
        return [None] * len(rows)


def test_given_less_time_than_rows_take_then_those_that_there_are_are_measured_and_it_says_so(monkeypatch):
    monkeypatch.setattr(stored, "FILL_S", -1.0)
    monkeypatch.setattr(stored._Rows, "_flush", lambda _: None)
    part = Part("stored", "", "")
    place = stored.Place("http://127.0.0.1:1", "A store", most=5_000)
    made = stored._filled(part, Taking(), place, (100, 1_000, 2_000, 10_000))
    assert [rows.size for rows in made] == [100, 512]  # the third would be no more than the second
    assert part.skipped == {
        "1,000 rows": "A store took 512 in -1 s, and that was all the time it had",
        "2,000 rows": "A store took 512 in -1 s, and that was all the time it had",
        "10,000 rows": "A store is for up to 5,000",
    }
