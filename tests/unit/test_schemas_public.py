"""What others may import, and what importing costs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from clipfleet.schemas import limits, scripts

PUBLIC = {
    "clipfleet.schemas": {
        "BadInput", "Cancelled", "ClipfleetError", "Envelope", "ErrorCode", "Expired", "Hit", "InvalidRequest",
        "Lane", "ModelFailed", "ProtocolError", "QueueFull", "QueueKeys", "Request", "RequestFailed", "Result",
        "StoreFailed", "Unavailable", "Vector", "decode_request", "decode_result", "encode_failure",
        "encode_success", "error_for", "new_id",
    },
    "clipfleet.schemas.codec": {
        "decode_map", "encode_around", "encode_map", "encode_part", "encode_text", "small_map",
    },
    "clipfleet.schemas.errors": {
        "BadInput", "Cancelled", "ClipfleetError", "ErrorCode", "Expired", "ModelFailed", "ProtocolError",
        "QueueFull", "RequestFailed", "StoreFailed", "Unavailable", "error_for",
    },
    "clipfleet.schemas.keys": {"ID", "NAME", "Lane", "QueueKeys"},
    "clipfleet.schemas.request": {
        "Envelope", "InvalidRequest", "Request", "RequestReader", "decode_request", "encode_request",
        "forget_drawn_ids", "new_id",
    },
    "clipfleet.schemas.result": {"Hit", "Result", "Vector", "decode_result", "encode_failure", "encode_success"},
    "clipfleet.schemas.scripts": {"Script", "load"},
}  # fmt: skip

SCRIPTS = {"admit", "settle", "settle_many", "reclaim", "renew", "handback", "leave", "heartbeat", "join"}


@pytest.mark.parametrize("module", PUBLIC)
def test_given_a_module_when_its_public_names_are_listed_then_they_are_exactly_these(module):
    imported = import_module(module)
    assert set(imported.__all__) == PUBLIC[module]
    assert len(imported.__all__) == len(PUBLIC[module])
    for name in imported.__all__:
        assert getattr(imported, name) is not None


def test_given_the_numbers_of_the_protocol_when_compared_then_they_are_the_contracts():
    assert {name: value for name, value in vars(limits).items() if name.isupper()} == {
        "VERSION": 1,
        "GROUP": "workers",
        "HANDBACK_CONSUMER": "handback",
        "DEFAULT_PREFIX": "clipfleet",
        "DEFAULT_QUEUE": "clip",
        "MAX_DEPTH": 32,
        "MAX_ARRAY_ITEMS": 65_536,
        "MAX_MAP_ITEMS": 4_096,
        "MAX_TRACE_CHARS": 256,
        "DEFAULT_CAPACITY": 10_000,
        "DEFAULT_MAX_REQUEST_BYTES": 8_388_608,
        "DEFAULT_MAX_QUEUE_BYTES": 268_435_456,
        "MAX_RESULT_BYTES": 67_108_864,
        "DEFAULT_TTL_MS": 60_000,
        "DEFAULT_INDEX_TTL_MS": 600_000,
        "MAX_TTL_MS": 86_400_000,
        "DEFAULT_REPLY_TTL_MS": 600_000,
        "MIN_REPLY_TTL_MS": 1_000,
        "MAX_REPLY_TTL_MS": 86_400_000,
        "INBOX_TTL_MS": 60_000,
        "DEFAULT_LEASE_MS": 10_000,
        "DEFAULT_MAX_DELIVERIES": 3,
        "MAX_UNANSWERED": 4_096,
        "DEAD_MAX_ENTRIES": 1_000,
        "DEAD_MAX_INPUT_BYTES": 65_536,
    }
    assert limits.default_ttl_ms("index_image") == 600_000
    assert limits.default_ttl_ms("embed_text") == 60_000


def test_given_the_numbers_that_scripts_hold_when_compared_then_they_are_the_same():
    admit, settle = scripts.load("admit").text, scripts.load("settle").text
    for name in ("DEFAULT_CAPACITY", "DEFAULT_MAX_REQUEST_BYTES", "DEFAULT_MAX_QUEUE_BYTES"):
        assert re.search(rf"tonumber\(fleet\[\d\]\) or {getattr(limits, name)}\b", admit), name
    assert f"ttl <= {limits.MAX_TTL_MS} " in admit
    assert f"ttl > {limits.MAX_REPLY_TTL_MS} " in settle
    assert f"ttl > {limits.MAX_REPLY_TTL_MS} " in scripts.load("settle_many").text
    assert f"'MAXLEN', '{limits.DEAD_MAX_ENTRIES}'" in settle


def test_given_the_scripts_when_loaded_then_they_are_the_files_and_no_others():
    folder = Path(scripts.__file__).parent / "lua"
    assert {path.stem for path in folder.iterdir()} == SCRIPTS
    for name in SCRIPTS:
        script = scripts.load(name)
        assert script.text == (folder / f"{name}.lua").read_text()
        assert script.text.isascii(), "the sha is of the bytes that any client sends"
        assert script.text.startswith(f"-- {name}: ")
        assert "#!" not in script.text, "a shebang makes Redis refuse the whole script at maxmemory"
    with pytest.raises(FileNotFoundError):
        scripts.load("nonesuch")


def test_given_a_web_service_when_it_imports_the_schemas_then_nothing_heavy_comes_along():
    code = "import sys, clipfleet.schemas; print(sorted(m.split('.')[0] for m in sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'msgpack'" in out
    for heavy in ("numpy", "redis", "torch", "pymilvus", "PIL", "asyncio"):
        assert f"'{heavy}'" not in out


def test_given_the_namespace_when_searched_then_no_portion_claims_it():
    root = Path(__file__).parents[2]
    assert not [
        portion for portion in ("schemas", "producer", "worker") if (root / portion / "clipfleet/__init__.py").exists()
    ]
