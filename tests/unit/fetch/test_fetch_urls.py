"""Which URLs are fetched at all, and what is sent for them."""

from __future__ import annotations

import csv
import ipaddress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipfleet.operators import UrlFetcher
from clipfleet.operators.addresses import is_public
from clipfleet.operators.urls import read_url
from clipfleet.schemas.errors import RequestFailed

CASES = Path(__file__).resolve().parents[2] / "cases"


def _rows():
    with (CASES / "urls.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def code_of(url, **options):
    with pytest.raises(RequestFailed) as failure:
        UrlFetcher(enabled=True, **options).read(url)
    return failure.value.code


@pytest.mark.parametrize("row", [row for row in _rows() if row["verdict"] == "reject"], ids=lambda row: row["url"])
def test_given_a_url_to_reject_then_the_code_is_the_stated_one(row):
    assert code_of(row["url"]) == row["code"]


def test_given_the_url_to_accept_then_it_is_encoded_once():
    (row,) = [row for row in _rows() if row["verdict"] == "accept"]
    target = read_url(row["url"])
    assert target.path == "/a%20b%C3%A9.jpg"
    assert (target.secure, target.host, target.port) == (True, "example.com", 443)
    assert read_url(target.url).path == target.path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://e.com", "/"),
        ("http://e.com?q=1", "/?q=1"),
        ("http://e.com/a%20b", "/a%20b"),
        ("http://e.com/100%", "/100%25"),
        ("http://e.com/%zz%41", "/%25zz%41"),
        ("http://e.com/a?b=c d&e=é#part", "/a?b=c%20d&e=%C3%A9"),
        ("http://e.com/~u/(x);y=1,2", "/~u/(x);y=1,2"),
        ("  http://e.com/a.jpg ", "/a.jpg"),
    ],
)
def test_given_a_path_then_what_is_encoded_stays_and_what_is_not_becomes_so(url, path):
    assert read_url(url).path == path


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "a.jpg",
        "/a.jpg",
        "//example.com/a.jpg",
        "example.com/a.jpg",
        "http://",
        "http:///a.jpg",
        "http://[::1/a.jpg",
        "http://e.com:99999/",
        "http://e.com:x/",
        "http://e .com/",
        "http://e%2ecom/",
        "http://e.com/a\nb",
        "http://e.com/a\r\nHost: x",
        "http://e.com/\x00",
        "http://e.com/\ud800",
        "http://[fe80::1%25eth0]/",
        "http://e.com\\a.jpg",
        "http://" + "é" * 300 + "/",
        "http://e.com/" + "a" * 9000,
    ],
)
def test_given_no_absolute_url_then_it_is_bad_request(url):
    assert code_of(url) == "bad_request"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://e.com/a",
        "gopher://e.com/",
        "data:image/png;base64,AAAA",
        "javascript:alert(1)",
        "unix:/run/x",
        "http://user@e.com/",
        "http://user:pass@e.com/",
        "http://e.com:pass@127.0.0.1/",
        "http://e.com\\@127.0.0.1/",
        "http://@e.com/",
        "http://e.com:22/",
        "http://e.com:6379/",
        "http://e.com:0/",
        "https://e.com:8443/",
    ],
)
def test_given_another_scheme_a_user_or_a_port_then_it_is_forbidden(url):
    assert code_of(url, resolve=lambda *_: ["93.184.216.34"]) == "fetch_forbidden"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "0",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "localhost",
        "10.1.2.3",
    ],
)
def test_given_any_spelling_of_an_inner_address_then_it_is_forbidden(host):
    assert code_of(f"http://{host}/") == "fetch_forbidden"


def test_given_a_worker_without_the_switch_then_every_url_is_forbidden():
    with pytest.raises(RequestFailed) as failure:
        UrlFetcher().read("https://example.com/a.jpg")
    assert failure.value.code == "fetch_forbidden"
    assert not failure.value.retryable


def test_given_a_name_with_one_inner_address_among_public_ones_then_it_is_forbidden():
    assert code_of("http://mixed.test/", resolve=lambda *_: ["93.184.216.34", "10.0.0.1"]) == "fetch_forbidden"


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
        "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192",
        "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1",
        "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378::1",
        "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:c0a8:101::", "3fff::1", "5f00::1",
        "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2600:1:2:3:0:5efe:127.0.0.1",
        "2600:1:2:3:200:5efe:10.0.0.1", "4000::1",
    ],
)  # fmt: skip
def test_given_a_special_address_then_it_is_not_public(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1",
        "192.167.1.1", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
        "2606:4700::1111", "2a00:1450:4001::200e", "2600:1:2:3:0:5efe:808:808",
    ],
)  # fmt: skip
def test_given_an_ordinary_address_then_it_is_public(address):
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses())
@settings(max_examples=500)
def test_given_any_address_that_python_calls_special_then_it_is_not_public(address):
    special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
    )
    nat64 = address in ipaddress.ip_network("64:ff9b::/96") if address.version == 6 else False
    mapped = address.version == 6 and address.ipv4_mapped is not None
    if special and not nat64 and not mapped:
        assert not is_public(address)


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_given_any_text_then_it_is_a_target_or_a_verdict(text):
    for url in (text, "http://" + text, "http://e.com/" + text):
        try:
            target = read_url(url)
        except RequestFailed as failure:
            code = failure.code
        else:
            code = "bad_request"
            assert target.path.isascii()
            assert target.path.startswith("/")
            assert not set(target.path) & set(" \r\n\x00#")
            assert read_url(target.url) == target
        assert code in {"bad_request", "fetch_forbidden"}
