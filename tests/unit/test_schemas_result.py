"""Results on the wire, and vectors that need no numpy."""

from __future__ import annotations

import contextlib
import copy
import pickle

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.schemas import (
    ErrorCode,
    Hit,
    ProtocolError,
    RequestFailed,
    Result,
    Vector,
    decode_result,
    encode_failure,
    encode_success,
    error_for,
)
from support.wire import IDS, MAPS, VALUES, mutated

FLOATS = st.lists(st.floats(width=32, allow_nan=False), max_size=64)
TIMINGS = st.dictionaries(st.text(max_size=8), st.floats(0, 1e6), max_size=3)


def vector_of(numbers: list[float]) -> Vector:
    return Vector(np.asarray(numbers, dtype="<f4").tobytes())


def success(**changes) -> bytes:
    return msgpack.packb({"v": 1, "id": "a1", "ok": True, "outputs": {}} | changes)


@given(IDS, MAPS, st.text(max_size=64), MAPS, TIMINGS)
def test_given_any_success_when_encoded_and_decoded_then_it_is_the_same(request_id, outputs, model, notes, timing):
    data = encode_success(request_id, outputs, model=model, notes=notes, timing=timing)
    assert decode_result(data) == Result(request_id, ok=True, outputs=outputs, model=model, notes=notes, timing=timing)


@given(IDS, st.sampled_from(ErrorCode), st.text(max_size=200), st.booleans())
def test_given_any_failure_when_encoded_and_decoded_then_it_is_the_same(request_id, code, text, retryable):
    sent = RequestFailed(code, text, retryable=retryable)
    result = decode_result(encode_failure(request_id, sent))
    error = result.error
    assert (result.ok, result.id) == (False, request_id)
    assert error is not None
    assert (error.code, error.message, error.request_id) == (code, sent.message, request_id)
    if code is not ErrorCode.QUEUE_FULL:  # always worth another try
        assert error.retryable is retryable
    with pytest.raises(RequestFailed) as caught:
        result.unwrap()
    assert caught.value is error


def test_given_a_message_that_is_long_or_no_unicode_when_encoded_then_it_is_cut_and_carried():
    result = decode_result(encode_failure("a1", RequestFailed("internal", "\ud800" + "x" * 100_000)))
    assert result.error is not None
    assert result.error.message == "?" + "x" * 1_999


def test_given_a_pipelines_rows_when_read_then_vectors_are_vectors_and_other_arrays_as_they_came():
    vector, pixels = vector_of([0.6, 0.8]), {"dtype": "u1", "shape": [1, 1, 3], "data": b"abc"}
    matrix = {"dtype": "f4", "shape": [1, 1], "data": b"\0" * 4}
    row = {"label": "thing", "vector": vector.to_wire(), "pixels": pixels, "matrix": matrix, "box": [0, 0]}
    read = row | {"vector": vector}
    assert Result("a", ok=True, outputs={"rows": [row, {}]}).rows == [read, {}]
    assert Result("a", ok=True, outputs={"rows": []}).rows == []
    # a pipeline of one row has its columns as outputs
    assert Result("a", ok=True, outputs=row).rows == [read]


def test_given_no_rows_when_read_then_the_error_says_so():
    failure = error_for(ErrorCode.CORRUPT_IMAGE, "broken")
    with pytest.raises(RequestFailed, match="broken"):
        _ = Result("a", ok=False, error=failure).rows
    for rows in (7, [7]):
        with pytest.raises(ProtocolError, match="this result holds no rows"):
            _ = Result("a", ok=True, outputs={"rows": rows}).rows
    with pytest.raises(ProtocolError):
        _ = Result("a", ok=True, outputs={"vector": {"dtype": "f4", "shape": [2], "data": b""}}).rows


@given(st.binary(max_size=300))
def test_given_random_bytes_when_decoded_then_nothing_but_the_protocols_error_is_raised(data):
    with contextlib.suppress(ProtocolError):
        decode_result(data)


@given(st.data(), IDS, FLOATS)
def test_given_mutated_bytes_when_decoded_then_nothing_but_the_protocols_error_is_raised(data, request_id, numbers):
    sent = encode_success(request_id, {"vector": vector_of(numbers).to_wire()}, timing={"run": 1.5})
    try:
        result = decode_result(data.draw(mutated(sent)))
        vector = result.vector
    except (ProtocolError, RequestFailed):
        return
    assert len(vector) * 4 == len(vector.buffer)


@pytest.mark.parametrize("changes", [{"v": 2}, {"v": True}, {"v": 1.0}, {"v": None}, {"id": 5}, {"id": "a b"}])
def test_given_another_version_or_no_id_when_decoded_then_it_is_refused(changes):
    with pytest.raises(ProtocolError):
        decode_result(success(**changes))


@pytest.mark.parametrize("changes", [{"ok": 1}, {"ok": None}, {"outputs": []}, {"outputs": None}])
def test_given_no_verdict_or_no_outputs_when_decoded_then_it_is_refused(changes):
    with pytest.raises(ProtocolError):
        decode_result(success(**changes))


def test_given_unknown_fields_when_decoded_then_they_are_ignored():
    assert decode_result(success(later={"a": 1})) == Result("a1", ok=True)


def test_given_notes_of_a_wrong_form_when_decoded_then_the_outputs_still_count():
    assert decode_result(success(outputs={"data": 1}, notes=5, timing=[1], model=7)).outputs == {"data": 1}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": "of_a_later_release", "message": "m"}, ErrorCode.INTERNAL),
        ({"code": 5}, ErrorCode.INTERNAL),
        ("text", ErrorCode.INTERNAL),
        (None, ErrorCode.INTERNAL),
        ({"code": "expired"}, ErrorCode.EXPIRED),
    ],
)
def test_given_an_error_of_any_form_when_decoded_then_it_can_be_raised(error, code):
    result = decode_result(msgpack.packb({"v": 1, "id": "a1", "ok": False, "error": error}))
    with pytest.raises(RequestFailed) as caught:
        result.unwrap()
    assert caught.value.code is code


def test_given_a_code_of_a_later_release_when_decoded_then_its_word_on_retrying_is_kept():
    data = msgpack.packb({"v": 1, "id": "a1", "ok": False, "error": {"code": "new", "retryable": True}})
    error = decode_result(data).error
    assert error is not None
    assert error.retryable


@given(FLOATS)
def test_given_a_vector_when_it_travels_then_every_bit_arrives(numbers):
    vector = vector_of(numbers)
    data = encode_success("a1", {"vector": vector.to_wire()})
    arrived = decode_result(data).vector
    assert arrived == vector
    assert hash(arrived) == hash(vector)
    assert arrived.shape == (len(numbers),)
    assert arrived.tolist() == list(arrived) == numbers
    assert pickle.loads(pickle.dumps(arrived)) == copy.deepcopy(arrived) == vector


def test_given_a_vector_when_read_by_numpy_then_nothing_is_copied():
    vector = vector_of([3.0, 4.0])
    array = np.asarray(vector)
    assert array.dtype == np.dtype("<f4")
    assert array.tolist() == [3.0, 4.0]
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(vector.buffer, dtype="<f4"))
    assert (vector[0], vector[-1], vector[:1], vector.norm()) == (3.0, 4.0, [3.0], 5.0)
    assert repr(vector) == "Vector([3.0000, 4.0000], n=2)"


def test_given_a_long_vector_when_shown_then_it_is_shortened():
    assert repr(vector_of([0.0] * 256)) == "Vector([0.0000, 0.0000, 0.0000, ...], n=256)"


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [0.5],
        {},
        {"dtype": "f8", "shape": [1], "data": b"1234"},
        {"dtype": "f4", "shape": [2], "data": b"1234"},
        {"dtype": "f4", "shape": [1, 1], "data": b"1234"},
        {"dtype": "f4", "shape": 1, "data": b"1234"},
        {"dtype": "f4", "shape": [1], "data": "1234"},
        {"dtype": "f4", "shape": [1], "data": b"12345"},
        {"dtype": "f4", "data": b"1234"},
    ],
    ids=str,
)
def test_given_no_vector_when_read_as_one_then_the_protocols_error_is_raised(wire):
    with pytest.raises(ProtocolError):
        Vector.of(wire)
    with pytest.raises(ProtocolError):
        _ = decode_result(success(outputs={"vector": wire})).vector


def test_given_bytes_that_are_no_float32_when_made_a_vector_then_they_are_refused():
    with pytest.raises(ProtocolError):
        Vector(b"12345")


def test_given_hits_when_read_then_they_are_typed_and_in_order():
    rows = [{"id": "b", "score": 0.9, "metadata": {"year": 1}}, {"id": "a", "score": 1}, {"id": "c", "score": -0.5}]
    assert decode_result(success(outputs={"hits": rows})).hits == [
        Hit("b", 0.9, {"year": 1}),
        Hit("a", 1.0),
        Hit("c", -0.5),
    ]


@given(VALUES)
def test_given_anything_for_hits_when_read_then_nothing_but_the_protocols_error_is_raised(rows):
    for outputs in ({"hits": rows}, {"hits": [rows]}):
        try:
            hits = decode_result(success(outputs=outputs)).hits
        except ProtocolError:
            continue
        assert all(type(hit.id) is str and type(hit.score) is float for hit in hits)


@pytest.mark.parametrize(
    "row",
    [
        {"score": 1.0},
        {"id": "a"},
        {"id": 1, "score": 1.0},
        {"id": "a", "score": "1.0"},
        {"id": "a", "score": True},
        {"id": "a", "score": 1.0, "metadata": 5},
        {"id": "a", "score": 1.0, "metadata": []},
        "a",
        None,
    ],
    ids=str,
)
def test_given_a_hit_of_a_wrong_form_when_read_then_the_protocols_error_is_raised(row):
    with pytest.raises(ProtocolError):
        _ = decode_result(success(outputs={"hits": [row]})).hits


def test_given_a_failure_when_its_outputs_are_read_then_the_failure_is_raised():
    failed = Result("a1", ok=False, error=error_for(ErrorCode.EXPIRED))
    for read in (lambda: failed.vector, lambda: failed.hits, failed.unwrap):
        with pytest.raises(RequestFailed, match="expired"):
            read()
