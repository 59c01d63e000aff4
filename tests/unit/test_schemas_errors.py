"""The error tree: every code has a meaning, a family and one word on whether a retry can help."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.schemas import (
    BadInput,
    Cancelled,
    ClipfleetError,
    ErrorCode,
    Expired,
    InvalidRequest,
    ModelFailed,
    ProtocolError,
    QueueFull,
    RequestFailed,
    StoreFailed,
    Unavailable,
    error_for,
)
from clipfleet.schemas.request import Envelope

# The contract, word for word: an asterisk means that a retry can help.
CONTRACT = (
    "bad_request too_large empty_input unsupported_media corrupt_image too_many_pixels bad_shape fetch_forbidden "
    "fetch_failed* unknown_pipeline model_failed out_of_memory* store_failed* model_mismatch expired cancelled "
    "poisoned internal queue_full* unavailable*"
)

FAMILIES = {
    BadInput: {
        "bad_request", "too_large", "empty_input", "unsupported_media", "corrupt_image", "too_many_pixels",
        "bad_shape", "fetch_forbidden", "fetch_failed", "unknown_pipeline",
    },
    ModelFailed: {"model_failed", "out_of_memory", "poisoned", "internal"},
    StoreFailed: {"store_failed", "model_mismatch"},
    Expired: {"expired"},
    Cancelled: {"cancelled"},
    Unavailable: {"unavailable"},
    QueueFull: {"queue_full"},
}  # fmt: skip


def test_given_the_contract_when_compared_then_codes_and_retries_are_exactly_these():
    assert " ".join(code + "*" * code.retryable for code in ErrorCode) == CONTRACT


@pytest.mark.parametrize("code", ErrorCode)
def test_given_a_code_when_raised_then_it_has_a_meaning_and_its_family(code):
    error = error_for(code)
    assert code.meaning
    assert code.meaning[0].islower()
    assert "\n" not in code.meaning
    assert [family for family, codes in FAMILIES.items() if code in codes] == [type(error)]
    assert (error.code, error.retryable) == (code, code.retryable)
    assert str(error).startswith(f"{code}: ")


def test_given_the_meanings_when_compared_then_no_two_are_alike():
    assert len({code.meaning for code in ErrorCode}) == len(ErrorCode)


def test_given_failures_of_a_worker_when_listed_then_only_the_owner_may_report_them():
    assert {code for code in ErrorCode if code.needs_owner} == {
        "poisoned", "model_failed", "store_failed", "out_of_memory", "expired", "internal", "fetch_failed",
    }  # fmt: skip


def test_given_the_tree_when_walked_then_it_is_as_drawn():
    assert QueueFull.__mro__[1:5] == (Unavailable, RequestFailed, ClipfleetError, Exception)
    for family in (BadInput, ModelFailed, StoreFailed, Expired, Cancelled, Unavailable):
        assert family.__bases__ == (RequestFailed,)
    assert InvalidRequest.__mro__[1:3] == (ProtocolError, ClipfleetError)


def test_given_no_text_when_raised_then_the_meaning_is_the_text():
    assert str(error_for("expired")) == "expired: the deadline passed before an answer"
    assert str(error_for("expired", "too late")) == "expired: too late"


def test_given_an_unknown_code_when_raised_then_it_is_internal_and_keeps_its_word_on_retrying():
    assert error_for("of_a_later_release").code is ErrorCode.INTERNAL
    assert error_for("of_a_later_release", retryable=True).retryable
    assert RequestFailed("nonsense").code is ErrorCode.INTERNAL


def test_given_a_full_queue_when_raised_then_it_says_when_to_come_back():
    error = QueueFull(0.25, request_id="a1")
    assert (error.retry_after, error.retryable, error.request_id) == (0.25, True, "a1")
    assert "0.25 s" in str(error)
    assert isinstance(error_for("queue_full"), QueueFull)


ERRORS = st.builds(
    error_for,
    st.sampled_from(ErrorCode),
    st.text(max_size=20),
    retryable=st.none() | st.booleans(),
    request_id=st.text(),
) | st.builds(QueueFull, st.floats(0, 30))


@given(ERRORS)
def test_given_an_error_when_it_goes_to_another_process_then_it_is_the_same(error):
    for arrived in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(arrived) is type(error)
        assert (str(arrived), vars(arrived)) == (str(error), vars(error))


def test_given_a_protocol_error_when_it_goes_to_another_process_then_it_is_the_same():
    sent = InvalidRequest("text", ErrorCode.TOO_LARGE, envelope=Envelope("a", "k", 1))
    arrived = pickle.loads(pickle.dumps(sent))
    assert (type(arrived), str(arrived), vars(arrived)) == (InvalidRequest, "text", vars(sent))
    assert ProtocolError("text").code is ErrorCode.BAD_REQUEST
