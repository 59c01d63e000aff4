"""A ViT-B-32 with random weights through all of it: export, start, index, search; and open_clip beside it."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from clipfleet.producer import Client, requests
from clipfleet.store.lite import LiteServer
from support.fixtures import keys, leftovers, make_proxy, make_redis, redis_binary, redis_client, redis_server
from support.fleet import TESTS, WorkerProcess

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.redis_server import RedisServer

__all__ = ["keys", "leftovers", "make_proxy", "make_redis", "redis_binary", "redis_client", "redis_server"]

PICTURES = sorted((TESTS.parent / "examples" / "pictures").glob("*.png"))[:12]
NAME = "ViT-B-32/random"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vit") / "bundle"
    command = [sys.executable, "-m", "clipfleet.cli", "model", "export", NAME, "--out", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return out


def test_a_random_vit_is_exported_started_indexed_and_searched(
    bundle: Path,
    redis_server: RedisServer,
    redis_client: redis.Redis,
    keys: QueueKeys,
    tmp_path: Path,
) -> None:
    with (
        LiteServer(tmp_path / "milvus") as milvus,
        WorkerProcess(redis_server.url, keys, model=str(bundle), milvus_uri=milvus.uri, threads=2),
        Client(redis_server.url, queue=keys.queue, timeout=120) as client,
    ):
        indexed = client.map(requests.index_image(one, id=one.name, collection="vit") for one in PICTURES)
        assert [result.ok for result in indexed] == [True] * len(PICTURES)
        for picture in PICTURES[:3]:
            hits = client.search(image=picture, collection="vit", limit=3).hits
            assert hits[0].id == picture.name
            assert hits[0].score == pytest.approx(1.0, abs=1e-3)
        by_text = client.search("a red heart", collection="vit", limit=5).hits
        assert len(by_text) == 5
        ours = np.stack([np.asarray(client.embed_image(_opaque(one)).vector) for one in PICTURES[:4]])
        text = np.asarray(client.embed_text("a red heart").vector)
    # and open_clip itself says the same of the same weights
    images, texts = _by_open_clip([_opaque(one) for one in PICTURES[:4]], "a red heart")
    assert float(np.min(np.sum(ours * images, axis=1))) >= 0.9999
    assert float(text @ texts) >= 0.9999


def _opaque(path: Path) -> bytes:
    """On white, as we composite: open_clip itself would drop the alpha channel."""
    picture = Image.open(path).convert("RGBA")
    out = io.BytesIO()
    Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB").save(out, "PNG")
    return out.getvalue()


def _by_open_clip(pictures: list[bytes], text: str) -> tuple[Any, Any]:
    import open_clip
    import torch

    from clipfleet.models.names import parse_name
    from clipfleet.models.open_clip_source import load_source

    source = load_source(parse_name(NAME))
    model, tokenizer = source.model, open_clip.get_tokenizer("ViT-B-32")
    preprocess = open_clip.create_model_and_transforms("ViT-B-32")[2]
    with torch.no_grad():
        pixels = torch.stack([preprocess(Image.open(io.BytesIO(one))) for one in pictures])
        images = torch.nn.functional.normalize(model.encode_image(pixels), dim=-1)
        texts = torch.nn.functional.normalize(model.encode_text(tokenizer([text])), dim=-1)
    return images.numpy(), texts.numpy()[0]
