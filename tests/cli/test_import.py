"""``clipfleet import`` where there is nothing to import, or nobody to import it; what it does is in ``tests/store``."""

from __future__ import annotations

import numpy as np
import pytest

from clipfleet.index.sinks import SinkRow, open_sink
from clipfleet.store.lite import LiteServer


@pytest.fixture
def here(tmp_path):
    (tmp_path / "staging").mkdir()
    with open_sink("parquet", tmp_path / "rows") as sink:
        sink.write([SinkRow("a", np.ones(4, np.float32))], model="m")
    with open_sink("parquet", tmp_path / "none"):
        pass
    return tmp_path


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["rows"],
        ["rows", "--staging", "nowhere"],
        ["rows", "--staging", "nonsense://x"],
        ["rows", "--staging", "staging", "--collection", "no name"],
    ],
)
def test_given_wrong_usage_when_run_then_exit_code_2(cli, here, args):
    assert cli("import", *args, "--milvus-uri", "http://127.0.0.1:1").code == 2


def test_given_no_milvus_when_asked_then_it_says_how_to_name_one(cli, here):
    done = cli("import", "rows", "--staging", "staging", REDIS_URL="redis://127.0.0.1:1")
    assert (done.code, "--milvus-uri" in done.err) == (2, True)


def test_given_milvus_lite_or_no_rows_when_imported_then_it_says_so_and_leaves_nothing(cli, here, tmp_path):
    with LiteServer(tmp_path / "lite") as server:
        to = ("--staging", "staging", "--milvus-uri", server.uri)
        lite = cli("import", "rows", *to)
        assert (lite.code, "Milvus Lite has no bulk import" in lite.err) == (1, True), lite.err
        for folder, said in (("none", "no clipfleet.json"), ("nowhere", "is not there"), ("lite", "no clipfleet.json")):
            done = cli("import", "rows", folder, *to, "--json")
            assert (done.code, said in done.err, "Traceback" in done.err) == (1, True, False), done.err
    assert list((tmp_path / "staging").iterdir()) == []
