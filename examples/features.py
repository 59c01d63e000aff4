"""Picture features as a service: define, build, start, call. Needs a Redis. Run: python examples/features.py [URL]"""

import subprocess
import sys
from pathlib import Path

from clipfleet import pipeline
from clipfleet.operators import clip_image
from clipfleet.producer import Client

HERE = Path(__file__).parent
CLIPFLEET = [sys.executable, "-m", "clipfleet.cli"]
features = pipeline.input("image").map("image", "vector", clip_image(), max_batch_size=32).output("vector")


def main(url: str = "redis://localhost:6379") -> None:
    build = ["pipeline", "build", "features:features", "--tag", "features:v1", "--builder", "none"]
    subprocess.run([*CLIPFLEET, *build], cwd=HERE, check=True)  # without --builder: by Docker or buildah
    # A queue of its own: the workers of one queue all serve the same pipelines.
    queue = ["--redis-url", url, "--queue", "features"]
    worker = subprocess.Popen([*CLIPFLEET, "worker", "--pipeline", "features:features", *queue], cwd=HERE)
    try:
        with Client(url, queue="features", wait_for_worker=True) as client:
            for picture in sorted(HERE.glob("pictures/red-*.png")):
                print(f"{picture.stem}: {len(client.run('features', {'image': picture}).vector)} numbers")
    finally:
        worker.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
