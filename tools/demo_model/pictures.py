"""Write ``examples/pictures``: Twemoji drawings (CC BY 4.0), none of which the model was trained on.

Which ones is a rule and not a choice: whole Unicode groups, so that no miss is hidden. Everything of smileys and
emotion, animals and nature, food and drink, travel and places (but for the two dozen clock faces) and activities, and
of the objects the musical instruments.
"""

from __future__ import annotations

import re
import shutil
from typing import Any

from common import PICTURES, WORK, read_json, write_json
from PIL import Image
from render import Keys, iconify

GROUPS = {"smileys-emotion", "animals-nature", "food-drink", "travel-places", "activities"}
SUBGROUPS = {"musical-instrument"}
SIDE = 96  # px
ATTRIBUTION = """# Where these pictures come from

All pictures in this folder are **Twemoji**, copyright 2020 Twitter, Inc and other contributors, copyright of later
additions the jdecked/twemoji contributors, licensed under
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/). Source: <https://github.com/jdecked/twemoji>, taken from the
npm package `@iconify-json/twemoji`.

Changes: rendered from SVG to PNG of {side} pixels a side and named by their Unicode CLDR short names
(`pictures.json` has the emoji itself, its name, group and subgroup, from CLDR, Unicode-3.0, and `emojibase-data`, MIT);
128 colours kept.

There are {count} of them: every drawing of the Unicode groups smileys & emotion, animals & nature, food & drink,
travel & places (without the clock faces) and activities, and the musical instruments. The demo model never saw a
Twemoji in training.
"""


def file_name(label: str) -> str:
    """Return a concept's file name: its CLDR short name in lower case with hyphens."""
    plain = label.replace("\u2019", "").replace("\xf1", "n").lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") + ".png"


def wanted(concept: dict[str, Any]) -> bool:
    """Tell whether the rule takes a concept."""
    clock_face = re.search(r"o\u2019clock|-thirty$", concept["label"])
    return (concept["group"] in GROUPS or concept["subgroup"] in SUBGROUPS) and not clock_face


def main() -> None:
    """Write the folder anew."""
    concepts = read_json(WORK / "concepts.json")
    keys = Keys(concepts)
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir(parents=True)
    rows: dict[str, dict[str, str]] = {}
    for key, picture in iconify("twemoji", keys, SIDE):
        number, skin = keys.concept[key]
        concept = concepts[number]
        if skin or not wanted(concept):
            continue
        name = file_name(concept["label"])
        rows[name] = {
            "name": concept["label"],
            "emoji": concept["emoji"],
            "group": concept["group"],
            "subgroup": concept["subgroup"],
        }
        # Twemoji has few colours: 128 keep every edge and halve the size.
        small = picture.quantize(128, method=Image.Quantize.FASTOCTREE)
        small.save(PICTURES / name, optimize=True)
    write_json(PICTURES / "pictures.json", dict(sorted(rows.items())), indent=1)
    (PICTURES / "ATTRIBUTION.md").write_text(ATTRIBUTION.format(side=SIDE, count=len(rows)), encoding="utf-8")
    size = sum(p.stat().st_size for p in PICTURES.iterdir())
    print(len(rows), "pictures,", round(size / 1e6, 2), "MB")


if __name__ == "__main__":
    main()
