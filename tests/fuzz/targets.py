"""What is fuzzed: each target takes any bytes, and raises only when a promise is broken.

They need no fuzzer: `run` feeds them to atheris, `test_corpus.py` replays what it found and adds hypothesis.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipfleet.models.config import read_config
from clipfleet.models.tokenizer import Tokenize
from clipfleet.operators.addresses import is_public
from clipfleet.operators.urls import read_url
from clipfleet.schemas.codec import decode_map, encode_map
from clipfleet.schemas.errors import ErrorCode, ProtocolError, RequestFailed
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.request import InvalidRequest, decode_request
from clipfleet.schemas.result import decode_result
from clipfleet.store import Field
from clipfleet.store.compile import compile_filter
from clipfleet.store.filters import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"
KEYS = QueueKeys("clip")


def wire(data: bytes) -> None:
    """A message is a value within the limits or the protocol's own error; a value travels on unchanged."""
    try:
        message = decode_map(data, max_bytes=1 << 20)
    except ProtocolError:
        message = None
    if message is not None:
        again = encode_map(message)
        assert encode_map(decode_map(again, max_bytes=1 << 22)) == again
    try:
        request, envelope = decode_request(data, KEYS, max_bytes=1 << 20)
    except InvalidRequest as error:
        _is_answerable(error)
    else:
        assert KEYS.may_reply_to(envelope.reply_to, request.id)
        assert 1_000 <= envelope.reply_ttl_ms <= 86_400_000
        assert decode_request(request.encode(), KEYS)[1] == envelope
    try:
        decode_result(data)
    except ProtocolError as error:
        _says(str(error))


def _is_answerable(error: InvalidRequest) -> None:
    assert error.envelope is None or KEYS.may_reply_to(error.envelope.reply_to, error.envelope.id)
    _says(str(error))


def _says(text: str) -> None:
    """An error quotes its sender, and must not be as long as what it quotes."""
    assert len(text) < 500


def _is_one_of(error: RequestFailed, *codes: ErrorCode) -> None:
    assert error.code in codes, error
    _says(error.message)


def image(data: bytes) -> None:
    """A picture within the limits or one of the verdicts."""
    from unit.test_decode_fuzz import _survives

    _survives(data)


@cache
def tokenizers() -> list[Tokenize]:
    """The tiny model's tokenizer under every way of cleaning."""
    folder = TESTS / "unit" / "data" / "tiny-bundle"
    text = read_config((folder / "model.json").read_bytes()).text
    ways = ("clip", "whitespace", "canonicalize", "lower", "none")
    return [Tokenize(replace(text, cleaning=way), folder / "tokenizer.json") for way in ways]


def text(data: bytes) -> None:
    """Ids that fit the context, or that there is nothing to embed; whatever the code points."""
    for given in (
        data.decode("utf-8", "surrogateescape"),
        data[: len(data) // 2 * 2].decode("utf-16-le", "surrogatepass"),
    ):
        for tokenize in tokenizers():
            try:
                ids, truncated = tokenize(given)
            except RequestFailed as error:
                _is_one_of(error, ErrorCode.EMPTY_INPUT, ErrorCode.TOO_LARGE)
            else:
                assert 1 <= len(ids) <= tokenize.config.context_length
                assert not truncated or len(ids) == tokenize.config.context_length
                assert ids.min() >= 0


FIELDS = (Field("year", "int"), Field("weight", "float"), Field("tag", "str"), Field("ok", "bool"))
LITERAL = re.compile(r'"(?:[^"\\\r\n]|\\["\\nrt])*"')
# All that our compiler writes besides literals: nothing of a user's text stands outside of one.
COMPILED = re.compile(
    r"(?: |\(|\)|, |\[\?\]|metadata\[\?\]|\[(?:(?:\?|-?[0-9.]+(?:e[+-]?[0-9]+)?)(?:, )?)*\]|==|!=|<=|>=|<|>|\?"
    r"|\b(?:and|or|not|in|exists|true|false|id|(?:year|weight|tag|ok)(?:__set)?)\b|-?[0-9.]+(?:e[+-]?[0-9]+)?)*"
)


def filters(data: bytes) -> None:
    """A filter compiles to our own small language, or is a bad request."""
    given: list[Any] = [data.decode("utf-8", "surrogateescape")]
    try:
        given.append(json.loads(data))
    except (ValueError, RecursionError):
        given.append({"tag": given[0], "$or": [{given[0]: 1}, {"year": {given[0]: 1}}]})
    for each in given:
        for whole in (each, {"$and": [{"tag": "a"}, each]}):
            try:
                compiled = compile_filter(parse(whole), FIELDS)
            except RequestFailed as error:
                _is_one_of(error, ErrorCode.BAD_REQUEST)
            else:
                assert COMPILED.fullmatch(LITERAL.sub("?", compiled)), compiled
                if whole is not each:
                    assert compiled.startswith('((tag__set == true and tag == "a") and '), compiled


HOST = re.compile(r"[a-z0-9._\-]{1,255}|[0-9a-f:.]{2,45}")
REQUEST_LINE = re.compile(r"/[!-~]*")


def url(data: bytes) -> None:
    """What is read of a URL is one host, one port and one request line, and reads back as itself."""
    try:
        target = read_url(data.decode("utf-8", "surrogateescape"))
    except RequestFailed as error:
        _is_one_of(error, ErrorCode.BAD_REQUEST, ErrorCode.FETCH_FORBIDDEN)
    else:
        assert HOST.fullmatch(target.host)
        assert 0 <= target.port <= 65_535
        assert REQUEST_LINE.fullmatch(target.path)
        assert read_url(target.url) == target
    if len(data) in {4, 16}:
        address = (IPv4Address if len(data) == 4 else IPv6Address)(data)
        if is_public(address):
            # Python's own registry of closed networks is older than ours, and never the wider one.
            closed = (address.is_loopback, address.is_link_local, address.is_multicast, address.is_unspecified)
            assert not any(closed)
            inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
            assert inner is None or is_public(inner)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "wire": wire,
    "image": image,
    "text": text,
    "filters": filters,
    "url": url,
}


def corpus(name: str) -> list[Path]:
    """What is kept for a target: everything that ever broke it, and a few that did not."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def seeds(name: str) -> Iterator[bytes]:
    """Where a fuzzer starts besides the corpus."""
    if name == "wire":
        golden = json.loads((TESTS / "golden" / "wire" / "v1.json").read_text())
        yield from (bytes.fromhex(found) for found in re.findall(r'"((?:[0-9a-f]{2}){8,})"', json.dumps(golden)))
    elif name == "image":
        from unit.test_decode_fuzz import SEEDS

        yield from SEEDS
    elif name == "text":
        lines = (TESTS / "cases" / "text.jsonl").read_text(encoding="utf-8").splitlines()
        yield from (json.loads(line)["text"][:2_000].encode("utf-8", "surrogatepass") for line in lines)
    elif name == "url":
        yield from (line.split(b"\t")[0] for line in (TESTS / "cases" / "urls.tsv").read_bytes().splitlines())
    else:
        from security.test_filter_attack import MAPPINGS, TEXTS

        yield from (each[:2_000].encode("utf-8", "surrogatepass") for each in TEXTS)
        yield from (json.dumps(each).encode() for each in MAPPINGS)
