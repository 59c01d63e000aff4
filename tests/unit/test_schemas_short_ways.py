"""What is read and written without looking at all of it comes to the same as when all of it is looked at."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.schemas import request as requests
from clipfleet.schemas import result as results
from clipfleet.schemas.errors import ProtocolError
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.limits import INBOX_TTL_MS, MAX_DEPTH
from clipfleet.schemas.request import InvalidRequest, RequestReader, decode_request, encode_request, new_id
from clipfleet.schemas.result import decode_result, encode_success

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = QueueKeys("q")
INBOX = KEYS.inbox("default.abcdefghijklmnopqrstuv")
NEVER = re.compile(rb"(?!)")

leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
maps = st.dictionaries(st.text(max_size=8), values, max_size=4)


def outcome(read: Callable[[bytes], Any], data: bytes) -> Any:
    """What came of it: a value, or the error's kind, words and, where somebody can be answered, who."""
    try:
        return read(data)
    except (InvalidRequest, ProtocolError) as error:
        return type(error), str(error), error.code, getattr(error, "envelope", None)


def warm() -> RequestReader:
    """A reader that has read one of the same producer's."""
    reader = RequestReader(KEYS)
    reader.read(encode_request(new_id(), "echo", {"data": 1}, {}, INBOX, None, None))
    return reader


def mangled(data: bytes, luck: random.Random) -> bytes:
    """One byte of another value, a piece left out, put in twice, or taken from the end."""
    at, to = sorted(luck.randrange(len(data) + 1) for _ in range(2))
    return luck.choice(
        [
            data[:at] + bytes([luck.randrange(256)]) + data[at + 1 :],
            data[:at] + data[to:],
            data[:to] + data[at:],
            data[:at],
        ]
    )


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


@given(inputs=maps, pipeline=st.from_regex(r"\A[A-Za-z0-9_.-]{1,64}\Z"))
def test_given_a_request_of_our_own_when_it_is_encoded_then_it_is_the_message_and_is_read_as_any_other(
    inputs: dict[str, Any], pipeline: str
) -> None:
    own = new_id()
    encoded = encode_request(own, pipeline, inputs, {}, INBOX, None, None)
    message = {"v": 1, "id": own, "pipeline": pipeline, "inputs": inputs, "reply_to": INBOX}
    assert encoded == msgpack.packb(message)
    assert warm().read(encoded) == decode_request(encoded, KEYS)


def test_given_bytes_that_are_nearly_a_request_when_a_reader_reads_them_then_it_finds_what_the_message_says() -> None:
    # Given a reader that knows the producer, and ten thousand messages with a fault somewhere
    reader, luck, refused = warm(), random.Random(6), 0
    for _ in range(10_000):
        sent = encode_request(new_id(), "echo", {"data": [1, "two", b"three"]}, {}, INBOX, None, None)
        data = mangled(sent, luck)
        # When it is read, then the outcome is that of the whole message
        found = outcome(reader.read, data)
        assert found == outcome(lambda one: decode_request(one, KEYS), data)
        refused += not isinstance(found[0], requests.Request)
    assert refused > 5_000


@pytest.mark.parametrize(
    "inputs",
    [
        b"\x81\xa1a\xd4\x01\x00",  # an extension
        b"\x81\xa1a\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\x81\x01\x01",  # a key that is no text
        b"\x80\x80",  # two of them
        b"\x90",  # no map
        msgpack.packb(deep(MAX_DEPTH)),
        msgpack.packb({"a": deep(MAX_DEPTH - 2)}),
    ],
)
def test_given_inputs_that_are_refused_when_the_producer_is_known_then_they_are_refused_all_the_same(
    inputs: bytes,
) -> None:
    sent = encode_request(new_id(), "echo", {}, {}, INBOX, None, None)
    data = sent.replace(b"\xa6inputs\x80", b"\xa6inputs" + inputs)
    assert outcome(warm().read, data) == outcome(lambda one: decode_request(one, KEYS), data)
    with pytest.raises(InvalidRequest):
        warm().read(data)


def test_given_a_small_limit_when_the_producer_is_known_then_a_larger_request_is_refused_all_the_same() -> None:
    small, large = (encode_request(new_id(), "echo", {"data": "x" * size}, {}, INBOX, None, None) for size in (1, 2))
    reader = RequestReader(KEYS, len(small))
    reader.read(small)
    assert outcome(reader.read, large) == outcome(lambda one: decode_request(one, KEYS, max_bytes=len(small)), large)
    with pytest.raises(InvalidRequest):
        reader.read(large)


def test_given_a_known_producer_when_its_next_request_comes_then_its_inputs_alone_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, whole = warm(), []
    monkeypatch.setattr(requests, "decode_request", lambda *_, **__: whole.append(1))
    request, _ = reader.read(encode_request(new_id(), "echo", {"data": 2}, {}, INBOX, None, None))
    assert (request.inputs, whole) == ({"data": 2}, [])


def test_given_a_request_that_was_answered_on_a_key_of_its_own_then_another_one_is_not() -> None:
    first, other, reader = new_id(), new_id(), RequestReader(KEYS)
    reply_to = KEYS.result(first)
    reader.read(encode_request(first, "echo", {}, {}, reply_to, INBOX_TTL_MS, None))
    with pytest.raises(InvalidRequest, match="reply_to"):
        reader.read(encode_request(other, "echo", {}, {}, reply_to, None, None))


def test_given_an_inbox_of_another_queue_when_it_ends_like_a_known_one_then_it_is_refused() -> None:
    elsewhere = QueueKeys("p").inbox("default.abcdefghijklmnopqrstuv")
    data = encode_request(new_id(), "echo", {"data": 1}, {}, elsewhere, None, None)
    with pytest.raises(InvalidRequest, match="reply_to"):
        warm().read(data)


def test_given_more_producers_than_a_reader_remembers_when_they_come_again_then_all_are_read() -> None:
    reader = RequestReader(KEYS)
    inboxes = [KEYS.inbox(f"default.{number:022}") for number in range(requests.MAX_INBOXES + 10)]
    for inbox in inboxes * 2:
        request, envelope = reader.read(encode_request(new_id(), "echo", {}, {}, inbox, None, None))
        assert request.reply_to == envelope.reply_to == inbox
        assert len(reader._inboxes) <= requests.MAX_INBOXES


@given(outputs=maps, notes=maps, model=st.text(max_size=8))
def test_given_a_success_when_it_is_decoded_then_it_is_what_all_of_the_message_says(
    outputs: dict[str, Any], notes: dict[str, Any], model: str
) -> None:
    data = encode_success(new_id(), outputs, model=model, notes=notes, timing={"run": 1.5})
    found = decode_result(data)
    assert (found.outputs, found.notes, found.model, found.timing) == (outputs, notes, model, {"run": 1.5})


def test_given_bytes_that_are_nearly_a_result_when_they_are_decoded_then_the_outcome_is_that_of_the_whole_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    luck, ours = random.Random(6), results._OURS
    for _ in range(10_000):
        data = mangled(encode_success(new_id(), {"data": [1, "two"]}, notes={"a": 1}, timing={"run": 1.5}), luck)
        monkeypatch.setattr(results, "_OURS", NEVER)
        expected = outcome(decode_result, data)
        monkeypatch.setattr(results, "_OURS", ours)
        assert outcome(decode_result, data) == expected


def test_given_a_field_that_comes_twice_when_a_result_is_decoded_then_the_last_one_counts() -> None:
    data = encode_success("A" * 22, {"data": 1}, timing={"run": 1.5})
    again = data.replace(b"\xa5notes\x80", b"\xa2id\xa1b")
    assert decode_result(again).id == "b"


@pytest.mark.parametrize(
    "outputs",
    [
        b"\x81\xa1a\xd4\x01\x00",  # an extension
        b"\x81\xa1a\xc7\x00\x05",  # one of no bytes
        b"\x81\xa1a\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\x81\xc4\x01a\x01",  # a key of bytes
        b"\x81\xa1a\xdd\xff\xff\xff\xff",  # an array that claims to be longer than the message
        msgpack.packb(deep(MAX_DEPTH)),
        msgpack.packb({"a": deep(MAX_DEPTH - 2)}),
    ],
)
@pytest.mark.parametrize("field", [b"\xa7outputs", b"\xa5notes", b"\xa6timing"])
def test_given_a_small_result_that_holds_what_is_refused_when_it_is_decoded_then_it_is_refused_all_the_same(
    outputs: bytes, field: bytes
) -> None:
    data = encode_success(new_id(), {}).replace(field + b"\x80", field + outputs)
    with pytest.raises(ProtocolError):
        decode_result(data)


def test_given_a_result_whose_fields_come_in_another_order_when_it_is_decoded_then_it_is_the_same_result() -> None:
    own = new_id()
    fields = {"v": 1, "id": own, "ok": True, "timing": {"run": 1.5}, "notes": {}, "model": "m", "outputs": {"data": 1}}
    assert decode_result(msgpack.packb(fields)) == results.Result(own, True, {"data": 1}, None, "m", {}, {"run": 1.5})
