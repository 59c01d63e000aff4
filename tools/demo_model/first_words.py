"""Start the text tower as the best bag of words: a ridge regression from subwords to image vectors.

With its blocks at rest the tower is a mean of word vectors, normed and projected. Fitting that in closed form takes
seconds and spares the first several hundred steps of training.
"""

from __future__ import annotations

import torch
from torch import Tensor
from towers import PAD, TextTower

RIDGE = 0.02
ROUNDS = 40  # of conjugate gradients
SPREAD = 0.3  # root mean square of a word vector's numbers, well above a step of the optimiser


def mean_pooling(ids: list[list[int]], vocabulary: int) -> Tensor:
    """Return texts x subwords: the share of each subword in each text, sparse."""
    cells: list[tuple[int, int]] = []
    shares: list[float] = []
    for row, line in enumerate(ids):
        real = [i for i in line if i != PAD]
        cells += [(row, i) for i in real]
        shares += [1 / len(real)] * len(real)
    where, size = torch.tensor(cells).T, (len(ids), vocabulary)
    return torch.sparse_coo_tensor(where, torch.tensor(shares), size, check_invariants=True).coalesce()


def regress(words: Tensor, vectors: Tensor) -> Tensor:
    """Return one vector a subword, ``[vocabulary, 256]``, whose means come nearest to the given vectors."""
    turned = words.t().coalesce()
    solution = torch.zeros(words.shape[1], vectors.shape[1])
    rest = torch.sparse.mm(turned, vectors)
    along, size = rest.clone(), rest.square().sum(0)
    for _ in range(ROUNDS):
        moved = torch.sparse.mm(turned, torch.sparse.mm(words, along)) + RIDGE * along
        step = size / (along * moved).sum(0)
        solution += step * along
        rest -= step * moved
        fresh = rest.square().sum(0)
        along, size = rest + (fresh / size) * along, fresh
    return solution


@torch.no_grad()
def start(tower: TextTower, ids: list[list[int]], vectors: Tensor) -> float:
    """Set word vectors and projection; returns the mean cosine of the texts to their vectors."""
    words = mean_pooling(ids, tower.embed.num_embeddings)
    solved = regress(words, vectors)
    often = torch.sparse.sum(words, 0).to_dense().sqrt()[:, None]
    _, _, basis = torch.svd_lowrank(solved * often, tower.embed.embedding_dim, niter=4)
    flat = solved @ basis
    tower.embed.weight.copy_(flat * SPREAD / flat[often[:, 0] > 0].square().mean().sqrt())
    tower.project.weight.copy_(basis)
    return torch.cosine_similarity(torch.sparse.mm(words, flat) @ basis.T, vectors).mean().item()
