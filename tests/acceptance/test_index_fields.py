"""``clipfleet index --field``: columns of declared types, from a table's text to a search's filter."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clipfleet.producer import Client
from clipfleet.store import Field, Store, StoreConfig
from clipfleet.store.lite import LiteServer
from support.cli import Done, clean_environment
from support.warm import run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

TABLE = """file,sku,year,price,sold,note
0.png,a,1999,1.5,yes,first
1.png,b,2005.0,,no,
2.png,c,,3,,third
3.png,d,soon,4,no,fourth
"""


def png(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.timeout(300)
def test_given_a_table_and_declared_columns_when_indexed_then_filters_use_them_and_misfits_are_named(
    redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "t.csv").write_text(TABLE)
    with LiteServer(tmp_path / "lite") as lite:

        def index(*args: str) -> Done:
            env = clean_environment(CLIPFLEET_REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue)
            asked = ("index", "t.csv", "--id-column", "sku", "--json", *args)
            return run_command(asked, cwd=tmp_path, env=env, timeout=100)

        milvus = ("--milvus-uri", lite.uri)
        columns = ("--field", "year:int", "--field", "price=float", "--field", "sold:bool", "--field", "yaer:str")
        done = index(*columns, *milvus)
        assert (done.code, "no worker" in done.err) == (4, True), done.err
        done = index(*columns, "--dry-run")
        assert (done.code, done.lines[-1]["send"], done.lines[-1]["failed"]) == (3, 3, 1)

        start_worker(milvus_uri=lite.uri)
        for args, text in (
            ((), "which Milvus is it?"),
            ((*milvus, "--field", "id:str"), "cannot declare the field 'id'"),
        ):
            done = index(*columns, *args)
            assert (done.code, text in done.err) == (2, True), done.err

        done = index(*columns, *milvus, "--processes", "2")
        assert done.code == 3, done.err
        assert "no picture has yaer" in done.err
        (bad,) = [line for line in done.lines if not line["ok"]]
        assert (bad["input"], bad["error"]["code"]) == ("t.csv:5", "bad_request")
        assert bad["error"]["message"] == "metadata year is declared int, and 'soon' is no int"
        # Without its flags the collection refuses text, and a dry run says so, row by row
        for flags, refused in (((), list("abcd")), (columns[:6], ["d"])):
            told = index(*flags, *milvus, "--manifest", "other", "--dry-run")
            done = index(*flags, *milvus, "--manifest", "other", "--fresh", "--no-reconcile")
            assert [line["id"] for line in done.lines if not line["ok"]] == refused
            assert (told.lines[-1]["failed"], told.lines[-1]["send"]) == (len(refused), 4 - len(refused))
            assert told.code == (1 if len(refused) == 4 else 3) == done.code
            assert ("'clipfleet index --field year:int' reads text as it" in told.err) == (not flags)
        store = Store(StoreConfig(lite.uri, consistency="Strong"))
        info = store.describe("images")
        assert info is not None
        fields: tuple[Any, ...] = (("year", "int"), ("price", "float"), ("sold", "bool"), ("yaer", "str"))
        assert info.fields == tuple(Field(*each) for each in fields)
        (row,) = store.get("images", ["b"])
        assert row is not None
        assert {name: row.metadata[name] for name in ("year", "price", "sold", "note")} == {
            "year": 2005,
            "price": None,
            "sold": False,
            "note": "",
        }
        with Client(redis_server.url, queue=keys.queue, timeout=30) as client:

            def found(expression: str) -> set[str]:
                return {hit.id for hit in client.search(image=png(0), filter=expression).hits}

            assert found("year > 2000") == {"b"}
            assert found("year != 1999 and sold == false") == {"b"}
            assert found("price >= 1.5") == {"a", "c"}
            assert found("not (price >= 0)") == {"b"}

        # Mended, the same command sends that one alone
        (tmp_path / "t.csv").write_text(TABLE.replace("soon", "2011"))
        done = index(*columns, *milvus)
        assert (done.code, [line["id"] for line in done.lines]) == (0, ["d"]), done.err
        # A collection gets no columns afterwards, and says which it has
        done = index("--field", "note:str", *milvus)
        assert (done.code, "declares year:int, price:float" in done.err) == (1, True), done.err
        assert "--reindex --collection images_live --field note:str" in done.err
        # and a row without the flag says which one reads its text
        done = index(*milvus)
        assert "'clipfleet index --field year:int' reads text as it" in done.out
        store.close()

    # Into files, which need no Milvus
    done = index(*columns, "--to", "npy", "--out", "o")
    assert done.code == 0, done.err
    table = pq.read_table(tmp_path / "o/metadata/metadata_0.parquet")
    kinds = {name: str(table.schema.field(name).type) for name in ("year", "price", "sold")}
    assert kinds == {"year": "int64", "price": "double", "sold": "bool"}
    assert table.column("year").to_pylist() == [1999, 2005, None, 2011]
