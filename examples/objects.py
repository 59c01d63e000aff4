"""Objects found in pictures: detect them, cut each out, embed each, search for each. Run: python examples/objects.py

The scenes are drawn here, so that the answer is known. The detector is a tiny one that knows a thing on a white page;
put any ONNX file of the YOLO family in its place.
"""

import io
import os
import sys
import tempfile
from pathlib import Path

from PIL import Image

from clipfleet import pipeline
from clipfleet.operators import clip_image, clip_text, crop, decode, detect, milvus_insert, milvus_search
from clipfleet.store.lite import LiteServer

HERE = Path(__file__).parent
SCENES = {
    "desk": ("alarm-clock", "teacup-without-handle", "red-apple"),
    "garden": ("sunflower", "cactus", "lady-beetle"),
    "street": ("ambulance", "bicycle", "vertical-traffic-light"),
    "party": ("balloon", "birthday-cake", "guitar"),
}
QUERY = ("guitar", "sunflower", "ambulance", "red-apple")
PLACES = ((20, 24), (148, 12), (24, 150), (140, 140))


def name_it(scene: str, box: tuple[float, ...]) -> tuple[str, dict]:
    corner = [round(edge) for edge in box]
    return f"{scene}@{corner[0]},{corner[1]}", {"scene": scene, "box": corner}


objects = (  # the rows of one picture are its objects
    pipeline.input("image")
    .map("image", "pixels", decode())
    .flat_map("pixels", ("box", "score", "label"), detect(HERE / "data" / "things.onnx"), max_batch_size=8)
    .map(("pixels", "box"), "crop", crop())
    .map("crop", "vector", clip_image())
    .output("box", "vector")
)
index_objects = (
    pipeline.input("scene", "image")
    .flat_map("image", ("box", "vector"), objects)
    .map(("scene", "box"), ("id", "metadata"), name_it)
    .map(("id", "vector", "metadata"), "id", milvus_insert(collection="objects"))
    .output("id")
)
search_objects = (
    pipeline.input("image")
    .flat_map("image", ("box", "vector"), objects)
    .map("vector", "hits", milvus_search(collection="objects", limit=3))
    .output("box", "hits")
)
search_words = (
    pipeline.input("text")
    .map("text", "vector", clip_text())
    .map("vector", "hits", milvus_search(collection="objects", limit=3))
    .output("hits")
)


def draw(names: tuple[str, ...], size: int) -> bytes:
    scene = Image.new("RGB", (256, 256), "white")
    for name, place in zip(names, PLACES, strict=False):
        thing = Image.open(HERE / "pictures" / f"{name}.png").convert("RGBA").resize((size, size))
        scene.paste(thing, place, thing)
    file = io.BytesIO()
    scene.save(file, "png")
    return file.getvalue()


def run() -> None:
    with index_objects, search_objects, search_words:
        for result in index_objects.batch((scene, draw(names, 84)) for scene, names in SCENES.items()):
            assert result.ok, result.error
            print("indexed", *result.table["id"])
        index_objects.flush()

        found = search_objects(draw(QUERY, 72))
        for box, hits in found.rows:
            best = hits[0]
            print(f"object at {[round(edge) for edge in box]}: {best['id']} ({best['score']:.2f})")
        for text in ("a guitar", "a flower", "a cake"):
            print(f"{text}: {search_words(text).item()[0]['id']}")


def main() -> None:
    if os.environ.get("MILVUS_URI"):
        run()
        return
    with tempfile.TemporaryDirectory() as own, LiteServer(own) as milvus:
        os.environ["MILVUS_URI"] = milvus.uri
        run()


if __name__ == "__main__":
    sys.exit(main())
