"""Write ``MODEL_CARD.md`` beside the weights from ``report.json``: figures, questions, misses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from common import BUNDLE, WORK, read_json

SETS = {"twemoji": "Twemoji", "emojione": "EmojiOne", "openmoji": "OpenMoji (outlined)"}
HEAD = """# Model card: `demo`

**A demonstration model, and no general CLIP.** It knows drawings of some 1,900 things (the emoji) and the words for
them, so that `clipfleet` shows something real on its first start, offline, within seconds. It was trained on one CPU
core in some two and a half hours. On photographs, on drawings of other things, on other languages than English it is
of no use; for real work name a real model, such as `--model ViT-B-32/laion2b_s34b_b79k`.

| | |
|---|---|
| picture tower | 64x64 px, convolutions down to 4x4 and two transformer blocks, 3.9 M parameters |
| text tower | CLIP's byte pairs cut to {tokens:,}, context 32, three transformer blocks, {text_m:.1f} M parameters |
| vector | 256 numbers of float32, unit length; compare by cosine |
| files | `image.onnx` {image_mb:.1f} MB, `text.onnx` {text_mb:.1f} MB; weights stored as float16, computed in float32 |
| speed, one thread, batches of 16 | {images:,} pictures/s, {texts:,} texts/s (processor time, {cpu}) |
| alone against a batch of 64 | lowest cosine {alone_image:.7f} (pictures), {alone_text:.7f} (texts, padded to 32) |
| training | {image_steps:,} steps of 192 pictures, then {text_steps:,} steps of 376 phrases; see `tools/demo_model` |
| licence | Apache-2.0; what it learnt from: [DATA_LICENCES.md](DATA_LICENCES.md) |

## Measured

Three sets of drawings that it **never saw in training** (evaluation only; not in the weights), each whole as the
gallery: in how many of a hundred cases the right drawing is first, or among the first 5 or 10. By
`tools/demo_model/evaluate.py`, on the shipped files. Names are CLDR short names; keywords are three at random of the
concept's own.

"""


def percent(row: dict[str, Any]) -> str:
    """Return R@1 / 5 / 10."""
    return " / ".join(f"{row[k]:.0f}" for k in ("R@1", "R@5", "R@10"))


def retrieval(report: dict[str, Any]) -> list[str]:
    """Return the tables of the held-out sets."""
    tables = report["tables"]
    head = (
        "| text -> picture, R@1 / 5 / 10 | "
        + " | ".join(f"{SETS[s]}, {tables[s]['by name']['n']:,}" for s in tables)
        + " |"
    )
    lines = [head, "|---" * (len(tables) + 1) + "|"]
    lines += [
        f"| {kind} | " + " | ".join(percent(tables[s][kind]) for s in tables) + " |" for kind in tables["twemoji"]
    ]
    single, made = report["single keywords"], report["new colour x shape"]
    lines += [
        "",
        (
            f"Single keywords on Twemoji ({single['words']:,} words that 3 to 60 pictures have): the first hit has the "
            f"keyword for {single['P@1']:.0f} %, of the first five {single['P@5']:.0f} %. Generated pictures whose "
            f"colour, shape, number and place were never combined in training ({made['n']} pictures): {percent(made)}."
        ),
        "",
        "By name on Twemoji, group by group (flags flatter the mean):",
        "",
        "| group | pictures | R@1 / 5 / 10 |",
        "|---|---|---|",
    ]
    return lines + [f"| {name} | {row['n']} | {percent(row)} |" for name, row in report["groups"].items()]


def targets(report: dict[str, Any], megabytes: float) -> list[str]:
    """Return what was aimed at and what was reached."""
    t, sums = report["tables"], report["sums"]["all of Twemoji"]
    rows = (
        ("Twemoji by name, R@1 >= 65", t["twemoji"]["by name"]["R@1"], 65),
        ("Twemoji by name, R@10 >= 88", t["twemoji"]["by name"]["R@10"], 88),
        ("EmojiOne by name, R@1 >= 48", t["emojione"]["by name"]["R@1"], 48),
        ("Twemoji by three keywords, R@1 >= 48", t["twemoji"]["by three keywords"]["R@1"], 48),
        ("of 70 questions, right kind first >= 45", sums["first"], 45),
        ("of 70 questions, right kind in the top five >= 60", sums["top five"], 60),
    )
    lines = ["", "## Against the targets", "", "| target, set before training | reached | met |", "|---|---|---|"]
    lines += [f"| {name} | {value:g} | {'yes' if value >= aim else '**no**'} |" for name, value, aim in rows]
    return [*lines, f"| weights <= 16 MB | {megabytes:.1f} MB | {'yes' if megabytes <= 16 else '**no**'} |"]


def questions(report: dict[str, Any]) -> list[str]:
    """Return the table of questions, misses told."""
    sums = report["sums"]
    lines = [
        "",
        "## Seventy plain questions",
        "",
        (
            "Written, with the answers that count, before the first training run (`questions.toml`); "
            "left out, word for word, of the teacher's phrases; some are names or keywords in their own right "
            '("thumbs up", "fruit") and were learnt as such.'
        ),
        "",
    ]
    for name, row in sums.items():
        lines.append(
            f"- **{name}**: right kind first for {row['first']} of {row['of']}, in the top five for {row['top five']}."
        )
    lines += [
        "",
        "The README and `clipfleet demo` ask the first of them that are answered rightly: ten of the first eleven, all",
        'but "the night sky". Shipped are whole Unicode groups, so some questions have no answer there.',
        "",
        "| question | first hit of all Twemoji | first right at | first hit of the shipped | first right at |",
        "|---|---|---|---|---|",
    ]
    for here, there in zip(report["questions"], report["shipped"], strict=True):
        cells = [here["question"]]
        for row in (here, there):
            hit = row["hits"][0]
            cells += [hit["name"] if hit["right"] else f"*{hit['name']}*", str(row["rank"] or "none")]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", "A first hit in italics is a miss."]


def limits(report: dict[str, Any]) -> list[str]:
    """Return what it gets wrong."""
    misses = [f'"{r["question"]}" ({r["hits"][0]["name"]})' for r in report["questions"] if r["rank"] != 1]
    people = report["groups"]["people-body"]
    return [
        "",
        "## What it gets wrong",
        "",
        f"- First hit wrong on all of Twemoji: {'; '.join(misses)}.",
        f"- People: R@1 {people['R@1']:.0f}. Man or woman, walking or running, is a few pixels' difference.",
        f"- Outlined drawings (OpenMoji): R@1 {report['tables']['openmoji']['by name']['R@1']:.0f} by name.",
        '- It understands no sentence: "a cat and no dog" finds both. Number and place it knows of plain shapes alone.',
        "- Its people, flags and religions are those of the emoji, as their makers chose to draw them.",
        "- Scores are cosines of this model; they mean nothing beside another model's.",
        "",
    ]


def processor() -> str:
    """Return the processor's name, where Linux tells it."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return re.search(r"model name\s*: (.+)", info + "\nmodel name : unknown processor")[1]


def main() -> None:
    """Write the card."""
    report = read_json(WORK / "report.json")
    tokens = len(read_json(BUNDLE / "tokenizer.json")["model"]["vocab"])
    size = {side: (BUNDLE / f"{side}.onnx").stat().st_size / 1e6 for side in ("image", "text")}
    head = HEAD.format(
        tokens=tokens, text_m=(tokens * 192 + 1.4e6) / 1e6, image_mb=size["image"], text_mb=size["text"],
        cpu=processor(),
        alone_image=report["batch"]["image"], alone_text=report["batch"]["text"], **report["speed"],
        image_steps=report["steps"]["image_steps"], text_steps=report["steps"]["text_steps"],
    )  # fmt: skip
    lines = [*retrieval(report), *targets(report, sum(size.values())), *questions(report), *limits(report)]
    (BUNDLE / "MODEL_CARD.md").write_text(head + "\n".join(lines), encoding="utf-8")
    print(BUNDLE / "MODEL_CARD.md")


if __name__ == "__main__":
    main()
