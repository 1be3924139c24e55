"""Signs, without labels, that the embeddings have collapsed.

They say nothing about how good the features are: among encoders that have not collapsed, they do not follow quality
(docs/choosing.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HEALTH_METRICS = {"embedding_spread": "embedding spread", "effective_rank": "effective rank"}  # words for people
SPREAD_FLOOR = 0.1  # of what unit vectors spread evenly over the sphere would have
RANK_FLOOR = 1.5


@torch.no_grad()
def embedding_health(embedding: Tensor) -> dict[str, Tensor]:
    """Spread and effective rank of N unit vectors; both near their floor mean collapse. (N, D)

    ``spread`` is √D times the mean standard deviation per dimension: 1 when the vectors cover the sphere evenly, 0 when
    they are all the same. The effective rank is exp(entropy) of the normalized singular values (Roy & Vetterli, 2007).
    """
    z = embedding.float()
    if not bool(torch.isfinite(z).all()):  # the SVD would fail before the loss can be reported as not a number
        nothing = torch.full((), float("nan"), device=z.device)
        return {"embedding_spread": nothing, "effective_rank": nothing}
    spread = z.std(0, correction=0).mean() * math.sqrt(z.shape[1])
    values = torch.linalg.svdvals(z)
    share = values / values.sum().clamp(min=1e-12)
    rank = torch.exp(-(share * share.clamp(min=1e-12).log()).sum())
    return {"embedding_spread": spread, "effective_rank": rank}


def collapse_warning(metrics: dict[str, float]) -> str | None:
    """Return a warning if the embeddings have collapsed, else None."""
    spread, rank = metrics["embedding_spread"], metrics["effective_rank"]
    if spread >= SPREAD_FLOOR and rank >= RANK_FLOOR:
        return None
    return (
        f"The embeddings have collapsed: all images are getting almost the same vector (spread {spread:.3f} of 1, "
        f"effective rank {rank:.1f}). The features will be of little use. Try a lower learning rate (--lr), a larger "
        "batch, or weights that are not random."
    )
