"""Collect the concepts: one per emoji without its skin tones, with names and keywords.

Sources: ``emojibase-data`` (MIT) for labels, tags, groups and shortcodes; ``cldr-annotations-full``
(Unicode-3.0) for keywords. Writes ``concepts.json``.
"""

from __future__ import annotations

import re
from typing import Any

from common import NPM, WORK, key_of, read_json, write_json

COMPONENT_GROUP = 2  # skin tones and hair on their own: no drawing that means anything


def _shortcodes(hexcode: str, tables: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for table in tables:
        value = table.get(hexcode, [])
        found += [value] if isinstance(value, str) else value
    return [code.replace("_", " ").replace("-", " ").lower() for code in found]


def _clean(words: list[str], label: str) -> list[str]:
    kept = {word.lower().strip() for word in words}
    return sorted(w for w in kept if w != label and re.search(r"[a-z0-9]", w) and 1 < len(w) < 40)


def collect() -> list[dict[str, Any]]:
    """Return every concept: label, aliases, tags, group, subgroup, hexcode, emoji and its skin variants."""
    base = NPM / "emojibase-data"
    meta = read_json(base / "meta" / "groups.json")
    tables = [
        read_json(base / "en" / "shortcodes" / f"{name}.json") for name in ("emojibase", "github", "joypixels", "cldr")
    ]
    cldr = read_json(NPM / "cldr-annotations-full" / "annotations" / "en" / "annotations.json")
    annotations = cldr["annotations"]["annotations"]
    concepts = []
    for entry in read_json(base / "en" / "data.json"):
        if entry.get("group") in (None, COMPONENT_GROUP):
            continue
        label = entry["label"].lower()
        bare = entry["emoji"].replace("\ufe0f", "")
        note = annotations.get(bare) or annotations.get(entry["emoji"]) or {}
        aliases = _clean(_shortcodes(entry["hexcode"], tables) + note.get("tts", []), label)
        concepts.append(
            {
                "label": label,
                "aliases": [a for a in aliases if not re.fullmatch(r"flag \w\w|\W*\d+", a)],
                "tags": _clean(list(entry.get("tags") or []) + list(note.get("default", [])), label),
                "group": meta["groups"][str(entry["group"])],
                "subgroup": meta["subgroups"][str(entry["subgroup"])],
                "hex": entry["hexcode"],
                "emoji": entry["emoji"],
                "key": key_of(entry["hexcode"]),
                "skins": [key_of(skin["hexcode"]) for skin in entry.get("skins", [])],
            }
        )
    return concepts


if __name__ == "__main__":
    found = collect()
    write_json(WORK / "concepts.json", found)
    print(len(found), "concepts,", len({t for c in found for t in c["tags"]}), "keywords")
