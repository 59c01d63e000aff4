"""What ``bench/gpu.py`` counts by, and that it says why it cannot run."""

from __future__ import annotations

import open_clip
import pytest
import torch
from bench import gpu


def test_given_vit_b_32_then_its_products_are_counted_attention_too() -> None:
    model = open_clip.create_model("ViT-B-32").eval()

    counted = gpu.flops(model, (224, 224))

    # By hand: 12 layers of 12 x 768 x 768 weights on 50 tokens, and the patches, a product as two. The products of
    # tokens with tokens are 1 % more, which torch does not count for every kernel.
    layers = 12 * 12 * 768 * 768 * 50
    patches = 49 * 768 * 3 * 32 * 32
    assert counted == pytest.approx(2 * (layers + patches), rel=0.02)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_given_no_gpu_then_the_one_line_says_so() -> None:
    (only,) = gpu.run()

    assert "sees no CUDA device" in only.why
