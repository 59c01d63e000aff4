"""Which addresses a worker may fetch from: the public Internet and nothing else.

Source: the IANA special-purpose address registries (RFC 6890), and the metadata addresses that cloud makers
document. Python's ``is_global`` follows the registries too, but which ones depends on its release.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

__all__ = ["is_public"]

_CLOSED_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba's metadata at 100.100.100.200
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's wire server: a public number that is always local
        "169.254.0.0/16",  # link-local; most makers' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # Oracle's metadata at 192.0.0.192
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
# Only global unicast is open at all; these are special within it.
_OPEN_6 = IPv6Network("2000::/3")
_CLOSED_6 = tuple(IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20"))
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address belongs to the public Internet.

    IPv4 inside IPv6 (mapped, NAT64, 6to4, ISATAP) counts as the IPv4 address that it leads to; Teredo and the
    IPv4-compatible form are closed.
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _CLOSED_4)
    if address.scope_id is not None:
        return False
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    return address in _OPEN_6 and not any(address in network for network in _CLOSED_6)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    number = int(address)
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(number & 0xFFFFFFFF)
    if address in _6TO4:
        return IPv4Address(number >> 80 & 0xFFFFFFFF)
    if address in _OPEN_6 and (number >> 32 & 0xFFFFFFFF) in _ISATAP:
        return IPv4Address(number & 0xFFFFFFFF)
    return None
