"""Scoring functions: how well each region answers a query."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Additive(nn.Module):
    """Additive attention (Bahdanau et al. 2015, arXiv 1409.0473; Xu et al. 2015, eq. 4): v . tanh(k + q).

    The keys W_a a depend on the photograph alone and are computed once; the query W_h h comes projected.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(size))
        nn.init.uniform_(self.v, -(size**-0.5), size**-0.5)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores e (B, n, L) of queries (B, n, A) against keys (B, L, A)."""
        return torch.tanh(keys[:, None] + query[:, :, None]) @ self.v
