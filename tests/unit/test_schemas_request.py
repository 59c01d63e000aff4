"""Requests on the wire: what goes in comes out, and whatever comes in ends in a request or in one kind of error."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.schemas import Envelope, ErrorCode, InvalidRequest, ProtocolError, QueueKeys, Request, decode_request
from clipfleet.schemas.limits import DEFAULT_REPLY_TTL_MS, INBOX_TTL_MS
from support.wire import IDS, MAPS, NAMES, mutated

KEYS = QueueKeys("q")
BASE = {"v": 1, "id": "a1", "pipeline": "echo", "inputs": {"data": 1}}


def message(**changes):
    """A valid request map with ``changes``; None leaves a field out."""
    return msgpack.packb({k: v for k, v in (BASE | changes).items() if v is not None})


def refused(data: bytes, **options) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(data, KEYS, **options)
    return caught.value


REQUESTS = st.builds(
    Request,
    id=IDS,
    pipeline=NAMES,
    inputs=MAPS,
    options=MAPS,
    reply_to=st.none() | NAMES.map(KEYS.inbox),
    reply_ttl_ms=st.none() | st.integers(1_000, 86_400_000),
    trace=st.none() | st.text(max_size=256),
)


@given(REQUESTS)
def test_given_any_request_when_encoded_and_decoded_then_it_is_the_same(request_):
    decoded, envelope = decode_request(request_.encode(), KEYS)
    assert decoded == request_
    assert envelope == request_.envelope(KEYS)


@given(IDS, st.none() | st.integers(1_000, 86_400_000))
def test_given_its_own_result_key_when_named_then_it_is_the_same_as_the_default(request_id, ttl):
    implied = Request(request_id, "echo", {}, reply_ttl_ms=ttl)
    named = Request(request_id, "echo", {}, reply_to=KEYS.result(request_id), reply_ttl_ms=ttl)
    expected = Envelope(request_id, KEYS.result(request_id), ttl or DEFAULT_REPLY_TTL_MS)
    assert decode_request(implied.encode(), KEYS)[1] == decode_request(named.encode(), KEYS)[1] == expected


def test_given_an_inbox_when_a_reply_ttl_is_asked_for_then_the_inbox_keeps_the_protocols():
    request_ = Request("a1", "echo", {}, reply_to=KEYS.inbox("p.1"), reply_ttl_ms=86_400_000)
    assert decode_request(request_.encode(), KEYS)[1].reply_ttl_ms == INBOX_TTL_MS


@given(st.binary(max_size=300))
def test_given_random_bytes_when_decoded_then_nothing_but_the_protocols_error_is_raised(data):
    with contextlib.suppress(InvalidRequest):
        decode_request(data, KEYS)


@given(st.data(), REQUESTS)
def test_given_mutated_bytes_when_decoded_then_nothing_but_the_protocols_error_is_raised(data, request_):
    try:
        decoded, envelope = decode_request(data.draw(mutated(request_.encode())), KEYS)
    except InvalidRequest as error:
        if error.envelope is None:
            return
        envelope = error.envelope
    else:
        assert decoded.id == envelope.id
    # Whatever the bytes were, an answer goes to the request's own key or to an inbox, and not for ever.
    assert KEYS.may_reply_to(envelope.reply_to, envelope.id)
    assert 1_000 <= envelope.reply_ttl_ms <= 86_400_000


def test_given_unknown_fields_when_decoded_then_they_are_ignored():
    decoded, _ = decode_request(message(priority=9, **{"x-later": {"a": [1]}}), KEYS)
    assert decoded == Request("a1", "echo", {"data": 1})


def test_given_absent_or_nil_fields_when_decoded_then_they_are_the_same():
    nil = msgpack.packb(BASE | {"options": None, "reply_to": None, "reply_ttl": None, "trace": None})
    assert decode_request(nil, KEYS) == decode_request(message(), KEYS)


@pytest.mark.parametrize("version", [2, 99, 0, -1, "1", 1.0, True, [1], 2**63])
def test_given_another_version_when_decoded_then_its_envelope_can_still_be_answered(version):
    error = refused(message(v=version, pipeline={"a": "later form"}, inputs=7, reply_ttl=5_000))
    assert (error.code, error.envelope) == (ErrorCode.BAD_REQUEST, Envelope("a1", KEYS.result("a1"), 5_000))


def test_given_no_version_when_decoded_then_it_is_refused_and_answered():
    assert refused(message(v=None)).envelope is not None


@pytest.mark.parametrize(
    "request_id", [None, "", "a" * 65, "x" * 10_000, "a b", "a\n", "ä", "a/b", "a:b", "{q}", "a\0", 7, b"a1", ["a1"]]
)
def test_given_an_impossible_id_when_decoded_then_nobody_is_answered(request_id):
    error = refused(message(id=request_id))
    assert (error.code, error.envelope) == (ErrorCode.BAD_REQUEST, None)
    assert len(str(error)) < 200, "the id is not quoted back"


@pytest.mark.parametrize(
    "reply_to",
    [
        "clipfleet:{q}:result:a2",
        "clipfleet:{q}:result:a1 ",
        "clipfleet:{other}:result:a1",
        "clipfleet:{other}:inbox:p",
        "clipfleet:{q}:inbox:",
        "clipfleet:{q}:inbox:a:b",
        "clipfleet:{q}:inbox:" + "p" * 65,
        "clipfleet:{q}:inbox:p\n",
        "clipfleet:{q}:fleet",
        "clipfleet:{q}:interactive",
        "clipfleet:{q}:cancel:a1",
        "other:{q}:inbox:p",
        "",
        "session:admin",
        7,
        b"clipfleet:{q}:result:a1",
        {"key": "x"},
    ],
)
def test_given_a_key_of_the_senders_choice_when_decoded_then_it_is_refused_and_never_written(reply_to):
    error = refused(message(reply_to=reply_to))
    assert (error.code, error.envelope) == (ErrorCode.BAD_REQUEST, None)


@pytest.mark.parametrize("version", [1, 2])
def test_given_a_bad_reply_to_when_the_version_is_unknown_too_then_still_nobody_is_answered(version):
    assert refused(message(v=version, reply_to="session:admin")).envelope is None


@pytest.mark.parametrize("ttl", [0, 1, 999, 86_400_001, -1, 2**63, 5_000.0, "5000", True, [5000]])
def test_given_an_impossible_reply_ttl_when_decoded_then_the_default_carries_the_refusal(ttl):
    error = refused(message(reply_ttl=ttl))
    assert error.envelope == Envelope("a1", KEYS.result("a1"), DEFAULT_REPLY_TTL_MS)


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline": None},
        {"pipeline": ""},
        {"pipeline": "a b"},
        {"pipeline": "p" * 65},
        {"pipeline": 1},
        {"pipeline": b"echo"},
        {"inputs": []},
        {"inputs": "text"},
        {"options": [1]},
        {"options": 5},
        {"trace": 5},
        {"trace": "t" * 257},
        {"trace": b"00-1"},
    ],
    ids=str,
)
def test_given_a_field_of_a_wrong_form_when_decoded_then_the_sender_is_told(changes):
    error = refused(message(**changes))
    assert (error.code, error.envelope) == (ErrorCode.BAD_REQUEST, Envelope("a1", KEYS.result("a1"), 600_000))
    assert next(iter(changes)) in str(error)


def test_given_more_bytes_than_the_queue_allows_when_decoded_then_too_large():
    data = message()
    decode_request(data, KEYS, max_bytes=len(data))
    assert refused(data, max_bytes=len(data) - 1).code is ErrorCode.TOO_LARGE


def test_given_values_that_msgpack_cannot_carry_when_encoded_then_the_protocols_error_is_raised():
    loop: dict[str, object] = {}
    loop["again"] = loop
    for value in (object(), 2**64, "\ud800", {1, 2}, loop):
        with pytest.raises(ProtocolError):
            Request("a1", "echo", {"data": value}).encode()
