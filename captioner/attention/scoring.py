"""Scoring functions: how well each region answers the decoder's state.

Each is a module of two parts: `keys(regions, places)` once an image, and `scoring(query, keys)` once a word.
The softmax of the scores is the attention distribution, from which a selection rule makes the context.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from captioner.bounds import Bounds
from captioner.errors import UserError


class Scoring(nn.Module):
    """What every scoring function has.

    Attributes:
        name: as in configurations, in `SCORING` and in models.
        heads: distributions over the regions that a query has.
    """

    name: str
    heads = 1

    def keys(self, regions: Tensor, places: Tensor | None = None) -> Tensor:
        """Regions (B, L, F), at places (B, L, 2) as `region_places` gives them, to keys (B, ...)."""
        raise NotImplementedError

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores e (B, n, heads, L) of n queries an image, the decoder's states (B, n, H)."""
        raise NotImplementedError


class Additive(Scoring):
    """v . tanh(W_q h + W_k a) (Bahdanau et al. 2015, arXiv 1409.0473; Xu et al. 2015, eq. 4)."""

    name = "additive"

    def __init__(self, query_size: int, region_size: int, size: int, bias: bool = True) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, size, bias)
        self.key = nn.Linear(region_size, size, bias)
        self.v = nn.Parameter(torch.empty(size))
        nn.init.uniform_(self.v, -(size**-0.5), size**-0.5)
        if bias:
            nn.init.zeros_(self.query.bias)  # the key's is added to it

    def keys(self, regions: Tensor, places: Tensor | None = None) -> Tensor:
        return self.key(regions)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (torch.tanh(keys[:, None] + self.query(query)[:, :, None]) @ self.v)[:, :, None]


class Concat(Additive):
    """v . tanh(W [h; a]) (Luong et al. 2015, arXiv 1508.04025, eq. 8).

    The halves of W act on the state and on the region apart, so that a region's is computed once.
    """

    name = "concat"

    def __init__(self, query_size: int, region_size: int, size: int) -> None:
        super().__init__(query_size, region_size, size, bias=False)
        bound = (query_size + region_size) ** -0.5
        for half in (self.query, self.key):
            nn.init.uniform_(half.weight, -bound, bound)


class Dot(Scoring):
    """h . a (Luong et al. 2015, eq. 8): no parameters, so the state and the regions are of one size."""

    name = "dot"

    def __init__(self, query_size: int, region_size: int, size: int) -> None:
        super().__init__()
        if query_size != region_size:
            raise UserError(
                f"dot scoring compares states with regions as they are: hidden_size ({query_size}) and "
                f"feature_size ({region_size}) must be equal, or take general"
            )

    def keys(self, regions: Tensor, places: Tensor | None = None) -> Tensor:
        return regions.transpose(1, 2)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query @ keys)[:, :, None]


class General(Dot):
    """h . W a (Luong et al. 2015, eq. 8), bilinear."""

    name = "general"

    def __init__(self, query_size: int, region_size: int, size: int) -> None:
        super().__init__(query_size, query_size, size)
        self.key = nn.Linear(region_size, query_size, bias=False)

    def keys(self, regions: Tensor, places: Tensor | None = None) -> Tensor:
        return super().keys(self.key(regions))


class MultiHead(Scoring):
    """W_q h . W_k a / sqrt(A / heads), in each head with its own part of the projections (Vaswani et al.
    2017, arXiv 1706.03762, section 3.2.2).

    Each head looks for itself: a selection rule makes a context of each, of its own part of the regions'
    values, which are joined.
    """

    name = "multi-head"

    def __init__(self, query_size: int, region_size: int, size: int, heads: int) -> None:
        super().__init__()
        for what, number in (("attention_size", size), ("the regions' size", region_size)):
            if number % heads:
                raise UserError(f"{heads} heads cannot share {what}, {number}: it must be a multiple")
        self.name, self.heads = f"multi-head:{heads}", heads
        self.scale = (size // heads) ** -0.5
        self.query = nn.Linear(query_size, size)
        self.key = nn.Linear(region_size, size)

    def keys(self, regions: Tensor, places: Tensor | None = None) -> Tensor:
        return (self.scale * self.key(regions)).unflatten(-1, (self.heads, -1)).permute(0, 2, 3, 1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        queries = self.query(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (queries @ keys).transpose(1, 2)


class ScaledDot(MultiHead):
    """W_q h . W_k a / sqrt(A) (Vaswani et al. 2017, eq. 1)."""

    def __init__(self, query_size: int, region_size: int, size: int) -> None:
        super().__init__(query_size, region_size, size, heads=1)
        self.name = "scaled-dot"


class Local(Additive):
    """Additive scores in a window: a Gaussian about a centre that the state predicts (Luong et al. 2015,
    section 3.2, local-p), in two dimensions.

    The centre is sigmoid(V tanh(W h)), in shares of the grid's height and width. Luong multiplies the weights
    by the Gaussian; here its logarithm is added to the scores, so that the weights still sum to one.

    Args:
        width: the Gaussian's standard deviation, in shares of the grid's side.
    """

    def __init__(self, query_size: int, region_size: int, size: int, width: float) -> None:
        super().__init__(query_size, region_size, size)
        self.name, self.width = f"local:{width}", width
        self.centre = nn.Sequential(
            nn.Linear(query_size, size, bias=False),
            nn.Tanh(),
            nn.Linear(size, 2, bias=False),
            nn.Sigmoid(),
        )

    def keys(self, regions: Tensor, places: Tensor | None = None) -> Tensor:
        if places is None:
            raise UserError("local scoring needs the regions' places: give region_places of their grid")
        return torch.cat([super().keys(regions), places.to(regions)], -1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        keys, places = keys[..., :-2], keys[..., -2:]
        distance = (places[:, None] - self.centre(query)[:, :, None]).square().sum(-1)
        return super().forward(query, keys) - (distance / (2 * self.width**2))[:, :, None]


PLAIN: dict[str, Callable[[int, int, int], Scoring]] = {
    "additive": Additive,
    "dot": Dot,
    "general": General,
    "concat": Concat,
    "scaled-dot": ScaledDot,
}
SCORING = (*PLAIN, "multi-head:HEADS", "local:WIDTH")
HEADS, WIDTH = Bounds(1, 1000, whole=True), Bounds(0, 100, above=True)


def scoring_function(name: str, query_size: int, region_size: int, size: int) -> Scoring:
    """The scoring function of that name, such as `additive`, `multi-head:8` or `local:0.25`.

    Args:
        query_size: H, of the decoder's state.
        region_size: F, of the regions.
        size: A, what state and regions are projected to; `dot` and `general` have none.

    Raises:
        UserError: no such function, or sizes that do not fit it.
    """
    sizes = query_size, region_size, size
    kind, _, number = name.partition(":")
    if name in PLAIN:
        return PLAIN[name](*sizes)
    if kind == "multi-head" and re.fullmatch(r"-?\d{1,9}", number):
        HEADS.check(f"HEADS in the scoring function {name!r}", int(number))
        return MultiHead(*sizes, int(number))
    if kind == "local" and re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?", number):
        WIDTH.check(f"WIDTH in the scoring function {name!r}", float(number))
        return Local(*sizes, float(number))
    raise UserError(f"unknown scoring function {name!r}: choose one of {', '.join(SCORING)}")


def region_places(rows: int, cols: int) -> Tensor:
    """The middles (L, 2) of a grid's cells, row-major, in shares of its height and width."""
    row = (torch.arange(rows) + 0.5) / rows
    col = (torch.arange(cols) + 0.5) / cols
    return torch.cartesian_prod(row, col)


def check_mask(mask: Tensor, regions: Tensor) -> None:
    """Refuse a mask, True for regions that may be looked at, that is not one of regions (B, L, F).

    Raises:
        UserError: another shape or type, or a photograph without regions to look at.
    """
    if mask.shape != regions.shape[:2] or mask.dtype != torch.bool:
        raise UserError(
            f"a mask of regions {tuple(regions.shape)} is {tuple(regions.shape[:2])} of torch.bool, not "
            f"{tuple(mask.shape)} of {mask.dtype}"
        )
    if empty := (~mask.any(-1)).nonzero().flatten().tolist():
        raise UserError(f"all regions of photographs {empty} are masked: leave at least one of each True")
