"""What a test may leave in Redis: nothing that stays for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.schemas.limits import GROUP

if TYPE_CHECKING:
    import redis

# The last part of the keys that are meant to stay (docs/protocol.md).
LANES = ("interactive", "bulk")
STAYING = {*LANES, "fleet", "dead", "workers"}


def find_leaks(client: redis.Redis) -> list[str]:
    """One line for each thing that should not be there; empty when all is well."""
    leaks: list[str] = []
    for raw in sorted(client.scan_iter(match="*", count=1000)):
        key = raw.decode()
        part = key.rsplit(":", 1)[-1]
        if part in LANES:
            leaks += _in_lane(client, key)
        elif part == "bytes":
            leaks.append(f"{key} = {client.get(key)!r}: payload bytes are still counted")
        elif part not in STAYING and client.pttl(key) == -1:
            leaks.append(f"{key} has no TTL")
    return leaks


def _in_lane(client: redis.Redis, key: str) -> list[str]:
    leaks = []
    if entries := client.xlen(key):
        leaks.append(f"{key} holds {entries} entries")
    for group in client.xinfo_groups(key):
        if group["pending"]:
            leaks.append(f"{key} has {group['pending']} pending entries in group {group['name'].decode()}")
        if group["name"].decode() != GROUP:
            leaks.append(f"{key} has a group of its own: {group['name'].decode()}")
    return leaks
