"""A service's side, against a running fleet (`clipfleet up --port 6379`). Run: python examples/producer.py"""

import sys
from pathlib import Path

from clipfleet.producer import Client, QueueFull, RequestFailed, requests

PICTURES = Path(__file__).parent / "pictures"


def main(url: str = "redis://localhost:6379") -> None:
    with Client(url, queue="clip") as client:
        vector = client.embed_text("a red heart").vector
        print(f"a vector of {len(vector)} numbers")
        try:
            some = sorted(PICTURES.glob("*.png"))[:40]
            for result in client.map(requests.index_image(path, id=path.stem, collection="example") for path in some):
                assert result.ok, result.error
            for hit in client.search("an accordion", collection="example", limit=3).hits:
                print(f"{hit.score:.3f}  {hit.id}")
        except QueueFull as full:
            print(f"busy; try again in {full.retry_after:.1f} s")
        except RequestFailed as error:
            print(error.code, error.message, "again later" if error.retryable else "not again")


if __name__ == "__main__":
    main(*sys.argv[1:])
