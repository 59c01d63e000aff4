"""Pictures found by words: index a folder, ask, and measure. Run: python examples/retrieval.py [FOLDER]

Rows go to the Milvus of MILVUS_URI, or to a Milvus Lite of its own that ends with it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clipfleet import pipeline
from clipfleet.operators import clip_image, clip_text, milvus_insert, milvus_search
from clipfleet.store.lite import LiteServer

QUESTIONS = ("a red heart", "an angry face", "a vehicle", "flowers", "a bird")

index = (
    pipeline.input("id", "image")
    .map("image", "vector", clip_image())
    .map(("id", "vector"), "id", milvus_insert(collection="retrieval"))
    .output("id")
)
search = (
    pipeline.input("text")
    .map("text", "vector", clip_text())
    .map("vector", "hits", milvus_search(collection="retrieval", limit=5))
    .output("hits")
)


def pictures(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.glob("*.png")):
        yield path.stem, path.read_bytes()


def run(folder: Path) -> None:
    names, failed = [], 0
    with index:
        for result in index.batch(pictures(folder)):  # streams: decoded, embedded and written at the same time
            if result.ok:
                names.append(result.table.item())
            else:
                failed += 1
                print(result.error)
        index.flush()
    print(f"{len(names)} pictures indexed, {failed} failed")

    with search:
        for question in QUESTIONS:
            hits = search(question).item()
            print(f"{question}:", ", ".join(f"{hit['id']} {hit['score']:.2f}" for hit in hits))

        found = 0
        for name, result in zip(names, search.batch(name.replace("-", " ") for name in names), strict=True):
            found += any(hit["id"] == name for hit in result.table.item())
        print(f"{found} of {len(names)} are among the first five by their own name")


def main(folder: str = "") -> None:
    where = Path(folder) if folder else Path(__file__).parent / "pictures"
    if os.environ.get("MILVUS_URI"):
        run(where)
        return
    with tempfile.TemporaryDirectory() as own, LiteServer(own) as milvus:
        os.environ["MILVUS_URI"] = milvus.uri
        run(where)


if __name__ == "__main__":
    main(*sys.argv[1:])
