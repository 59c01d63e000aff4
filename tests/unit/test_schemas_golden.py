"""Golden bytes of every released wire version: what was once written must be read for ever, and mean the same.

``tests/golden/wire/v<major>.json`` is written once for a version and never changed; new cases are added at its end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clipfleet.schemas import (
    InvalidRequest,
    QueueKeys,
    Request,
    decode_request,
    decode_result,
    encode_failure,
    encode_success,
)

KEYS = QueueKeys("clip")
FOLDER = Path(__file__).parents[1] / "golden" / "wire"
CASES = [(path.stem, case) for path in sorted(FOLDER.glob("v*.json")) for case in json.loads(path.read_text())]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(case, id=f"{version}-{case['name']}") for version, case in CASES if case["kind"] == kind]


def plain(value: Any) -> Any:
    """JSON to what msgpack carries: ``{"$bin": hex}`` stands for bytes."""
    if isinstance(value, dict):
        if value.keys() == {"$bin"}:
            return bytes.fromhex(value["$bin"])
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def where(envelope) -> dict[str, Any]:
    return {"key": envelope.reply_to, "ttl_ms": envelope.reply_ttl_ms}


def test_given_the_golden_files_when_counted_then_no_case_is_lost():
    assert [version for version, _ in CASES].count("v1") == 23
    assert len({(version, case["name"]) for version, case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", of_kind("request"))
def test_given_a_golden_request_when_replayed_then_it_means_the_same(case):
    data = bytes.fromhex(case["hex"])
    expected = Request(**plain(case["decoded"]))
    request, envelope = decode_request(data, KEYS)
    assert request == expected
    assert where(envelope) == case["answer_to"]
    if case["canonical"]:
        assert expected.encode() == data


@pytest.mark.parametrize("case", of_kind("bad_request"))
def test_given_a_golden_refusal_when_replayed_then_it_is_refused_the_same_way(case):
    with pytest.raises(InvalidRequest) as caught:
        decode_request(bytes.fromhex(case["hex"]), KEYS)
    envelope = caught.value.envelope
    assert caught.value.code == case["code"]
    assert (envelope and where(envelope)) == case["answer_to"]


@pytest.mark.parametrize("case", of_kind("result"))
def test_given_a_golden_result_when_replayed_then_it_means_the_same(case):
    data = bytes.fromhex(case["hex"])
    expected = plain(case["decoded"])
    result = decode_result(data)
    assert (result.id, result.ok) == (expected["id"], expected["ok"])
    if result.error is None:
        assert result.outputs == expected["outputs"]
        meta = {"model": result.model, "notes": result.notes, "timing": result.timing}
        assert meta == {name: expected[name] for name in meta}
        again = encode_success(result.id, result.outputs, **meta)
    else:
        error = result.error
        assert {"code": error.code, "message": error.message, "retryable": error.retryable} == expected["error"]
        again = encode_failure(result.id, error)
    if case["canonical"]:
        assert again == data
