"""msgpack with limits: a value or the protocol's error, in bounded memory, whatever the bytes are."""

from __future__ import annotations

import collections
import re
import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.schemas import ErrorCode, ProtocolError
from clipfleet.schemas.codec import decode_map, encode_map
from clipfleet.schemas.limits import DEFAULT_MAX_REQUEST_BYTES, MAX_ARRAY_ITEMS, MAX_DEPTH, MAX_MAP_ITEMS
from support.wire import MAPS, mutated

LIMIT = DEFAULT_MAX_REQUEST_BYTES


def refused(data: bytes, *, max_bytes: int = LIMIT) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode_map(data, max_bytes=max_bytes)
    return caught.value


def nested(depth: int, *, lists: bool) -> bytes:
    """A map that holds containers down to ``depth``, itself counted."""
    value: object = [] if lists else {}
    for _ in range(depth - 2):
        value = [value] if lists else {"k": value}
    return msgpack.packb({"k": value})


@given(MAPS)
def test_given_any_map_when_encoded_and_decoded_then_it_is_the_same(value):
    assert decode_map(encode_map(value), max_bytes=LIMIT) == value


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.binary(max_size=3) | st.none(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_given_anything_when_it_is_encoded_at_all_then_the_other_side_takes_it(value):
    try:
        data = encode_map({"k": value})
    except ProtocolError:
        return
    assert list(decode_map(data, max_bytes=LIMIT)) == ["k"]


def _nested_value(depth: int, *, lists: bool) -> dict[str, object]:
    value: object = [] if lists else {}
    for _ in range(depth - 2):
        value = (value,) if lists else {"k": value}
    return {"k": value}


def _holds_itself_twice() -> dict[str, object]:
    value: list[object] = []
    value += [value, value]
    return {"k": value}


@pytest.mark.parametrize(
    "value",
    [
        {1: 2},
        {"k": {1: 2}},
        {"k": [{b"k": 2}]},
        {"k": ({None: 2},)},
        {"k": collections.OrderedDict([(1.5, 2)])},
        {"k": list(range(MAX_ARRAY_ITEMS + 1))},
        {"k": tuple(range(MAX_ARRAY_ITEMS + 1))},
        {"k": {str(i): 0 for i in range(MAX_MAP_ITEMS + 1)}},
        {str(i): 0 for i in range(MAX_MAP_ITEMS + 1)},
        _nested_value(MAX_DEPTH + 1, lists=True),
        _nested_value(MAX_DEPTH + 1, lists=False),
        _holds_itself_twice(),
        {"k": msgpack.ExtType(1, b"x")},
        {"k": [msgpack.Timestamp(0)]},
        {"k": {1, 2}},
        {"k": memoryview(bytes(8))[::2]},
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", f"{value!r:.40}"),
)
def test_given_what_the_other_side_would_refuse_when_encoded_then_it_is_refused_here(value):
    with pytest.raises(ProtocolError) as caught:
        encode_map(value)
    assert caught.value.code is ErrorCode.BAD_REQUEST


def test_given_values_at_the_limits_when_encoded_then_they_arrive():
    class Name(str):
        __slots__ = ()

    for value in (
        {"k": [0] * MAX_ARRAY_ITEMS},
        {str(i): 0 for i in range(MAX_MAP_ITEMS)},
        {Name("k"): Name("v"), "view": memoryview(b"x")},
        _nested_value(MAX_DEPTH, lists=False),
    ):
        assert decode_map(encode_map(value), max_bytes=LIMIT).keys() == value.keys()
    assert encode_map(_nested_value(MAX_DEPTH, lists=True)) == nested(MAX_DEPTH, lists=True)


def test_given_a_key_that_is_no_string_when_refused_then_the_text_shows_it():
    with pytest.raises(ProtocolError, match=r"keys must be strings, not int: 1$"):
        encode_map({"k": {1: 2}})


@given(st.binary(max_size=400))
def test_given_random_bytes_when_decoded_then_a_map_or_the_protocols_error(data):
    try:
        value = decode_map(data, max_bytes=LIMIT)
    except ProtocolError:
        return
    assert type(value) is dict


@given(st.data(), MAPS)
def test_given_mutated_bytes_when_decoded_then_a_map_or_the_protocols_error(data, value):
    try:
        decoded = decode_map(data.draw(mutated(encode_map(value))), max_bytes=LIMIT)
    except ProtocolError:
        return
    assert all(type(key) is str for key in decoded)


def test_given_bytes_at_the_limit_when_decoded_then_one_more_is_too_large():
    data = msgpack.packb({"k": b"x" * 100})
    assert decode_map(data, max_bytes=len(data)) == {"k": b"x" * 100}
    assert refused(data, max_bytes=len(data) - 1).code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize("lists", [True, False])
def test_given_nesting_when_deeper_than_allowed_then_it_is_refused(lists):
    decode_map(nested(MAX_DEPTH, lists=lists), max_bytes=LIMIT)
    assert "deeper" in str(refused(nested(MAX_DEPTH + 1, lists=lists)))


@pytest.mark.parametrize("depth", [1_000, 1_100, 100_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k"], ids=["list", "map"])
def test_given_nesting_that_would_break_a_stack_when_decoded_then_it_is_refused(opening, depth):
    assert refused(b"\x81\xa1k" + opening * depth + b"\xc0").code is ErrorCode.BAD_REQUEST


def test_given_lengths_when_longer_than_allowed_then_they_are_refused():
    decode_map(msgpack.packb({"k": [0] * MAX_ARRAY_ITEMS}), max_bytes=LIMIT)
    decode_map(msgpack.packb({str(i): 0 for i in range(MAX_MAP_ITEMS)}), max_bytes=LIMIT)
    refused(msgpack.packb({"k": [0] * (MAX_ARRAY_ITEMS + 1)}))
    refused(msgpack.packb({str(i): 0 for i in range(MAX_MAP_ITEMS + 1)}))


@pytest.mark.parametrize("key", [1, b"k", None, True, 1.5, (1,)])
@pytest.mark.parametrize("inner", [True, False])
def test_given_a_key_that_is_no_string_when_decoded_then_it_is_refused(key, inner):
    value = {key: 1}
    refused(msgpack.packb({"k": [value]} if inner else value))


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(1, b"1234"),
        msgpack.ExtType(1, b""),
        msgpack.ExtType(127, b"x" * 300),
        msgpack.Timestamp(0),
        msgpack.Timestamp(1_700_000_000, 5),
        msgpack.Timestamp(2**40, 5),
    ],
    ids=str,
)
def test_given_an_extension_or_a_timestamp_when_decoded_then_it_is_refused(value):
    refused(msgpack.packb({"k": value}))
    refused(msgpack.packb({"k": [{"deep": value}]}))


@pytest.mark.parametrize("value", [[], 1, "text", b"bin", None, True, 1.5])
def test_given_something_else_than_a_map_when_decoded_then_it_is_refused(value):
    refused(msgpack.packb(value))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",  # never used by msgpack
        b"not msgpack at all",
        b'{"v": 1}',  # JSON
        msgpack.packb({"k": 1}) + b"\x00",  # something after the end
        msgpack.packb({"k": "long enough"})[:-1],
        b"\x81\xa1k\xa2\xff\xfe",  # no UTF-8
        b"\x81\xa1k\xa3\xed\xa0\x80",  # a lone surrogate, as some encoders write it
    ],
)
def test_given_no_valid_msgpack_when_decoded_then_it_is_refused(data):
    assert refused(data).code is ErrorCode.BAD_REQUEST


HUNDRED_MB = struct.pack(">I", 100_000_000)


@pytest.mark.parametrize(
    "claim", [b"\xdb", b"\xc6", b"\xdd", b"\xdf", b"\xc9"], ids=["str", "bin", "array", "map", "ext"]
)
def test_given_ten_bytes_that_claim_a_hundred_million_when_decoded_then_memory_stays_small(claim):
    data = (b"\x81\xa1k" + claim + HUNDRED_MB + b"\x00\x00")[:10]
    assert len(data) == 10
    assert peak_bytes(data) < 100_000
    # A limit above the claim does not make it true.
    assert peak_bytes(data, max_bytes=200_000_000) < 100_000


def test_given_arrays_that_claim_more_inside_each_other_when_decoded_then_memory_stays_bounded():
    # Each level makes the decoder reserve room before it can know that nothing follows: 3 kB, about 80 MB at most.
    assert peak_bytes(b"\x81\xa1k" + b"\xdc\xff\xff" * 1_000 + b"\x00" * 70_000) < 100_000_000


def peak_bytes(data: bytes, *, max_bytes: int = LIMIT) -> int:
    """Most memory that was in use at once while ``data`` was refused."""
    tracemalloc.start()
    try:
        refused(data, max_bytes=max_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
