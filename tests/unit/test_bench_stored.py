"""What rows in the store cost: on Milvus Lite, where there is no server."""

from __future__ import annotations

from pathlib import Path

import pytest

if not (Path(__file__).parents[2] / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)

from bench import stored
from bench.__main__ import parse

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


def test_given_no_time_when_filled_then_it_says_how_many_rows_there_were(monkeypatch):
    class Slow:
        def ensure_collection(self, *_, **__):
            pass

        def upsert(self, _, rows):
            return [None] * len(rows)

    monkeypatch.setattr(stored, "FILL_S", -1.0)
    rows = stored._Rows(Slow(), stored.Place("http://127.0.0.1:1", "A store"), 1_000)
    assert rows.fill() == "A store took 0 rows in -1 s, and that was all the time it had"
