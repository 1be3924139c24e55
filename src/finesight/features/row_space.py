"""Train a linear probe on wide features in as many coordinates as there are images."""

from collections.abc import Iterator
from functools import cached_property

import torch

from finesight.features.wide import WideRows

BATCH = 256
GRAM_BLOCK = 256 * 2**20  # bytes of the features that it is summed from at a time
JITTER = 2.0**-25  # half the last bit of float32 at 1; at least n² 2⁻⁵³, which Cholesky needs where images are copies

Rows = torch.Tensor | WideRows


class RowSpace:
    """n rows of D ≫ n dimensions in n coordinates that have the same inner products.

    The weights that SGD learns from zero are a sum of multiples of the rows, and depend on the inner products of the
    rows alone. On the rows of the Gram matrix's Cholesky factor it therefore takes the same steps as on the features
    themselves, up to rounding, at n / D of the cost; ``lift`` turns what it learned into weights of the features.
    Copies of an image make the matrix singular: ``JITTER`` times its square is added to each row's own product, too
    little to be seen in float32.
    """

    def __init__(self, x: Rows, *, jitter: float = JITTER, block_bytes: int | None = None) -> None:
        self.x, self.block_bytes = x, block_bytes or GRAM_BLOCK
        cosines = _gram(x, self.block_bytes)
        self.norm = cosines.diagonal().sqrt()
        self.divisor = torch.where(self.norm > 0, self.norm, 1.0)
        cosines.div_(self.divisor).div_(self.divisor[:, None]).diagonal().add_(jitter)
        self.factor: torch.Tensor = torch.linalg.cholesky(cosines)  # (n, n), of the rows at length 1

    @cached_property
    def rows(self) -> torch.Tensor:
        """The rows in the new coordinates, (n, n)."""
        return (self.factor * self.norm[:, None]).float()

    def lift(self, weight: torch.Tensor) -> torch.Tensor:
        """Turn weights and bias for ``rows`` into those for the features. (G, C, n + 1) -> (G, C, D + 1)"""
        flat = weight[..., :-1].flatten(0, 1).double()  # (G*C, n)
        shares = torch.linalg.solve_triangular(self.factor, flat, upper=False, left=False) / self.divisor
        lifted = weight.new_empty(*weight.shape[:2], self.x.shape[1] + 1)
        for columns, block in _column_blocks(self.x, self.block_bytes):
            lifted[..., columns] = (shares @ block).view(*weight.shape[:2], -1).to(weight.dtype)
        lifted[..., -1] = weight[..., -1]
        return lifted


def _gram(x: Rows, block_bytes: int) -> torch.Tensor:
    """Return the inner products of the rows (n, n) in float64; only the lower triangle, which Cholesky reads."""
    gram = torch.zeros(len(x), len(x), dtype=torch.float64)
    for _, block in _column_blocks(x, block_bytes):
        for start in range(0, len(x), BATCH):
            gram[start:, start : start + BATCH].addmm_(block[start:], block[start : start + BATCH].T)
    return gram


def _column_blocks(x: Rows, block_bytes: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield (n, D) in float64, some columns at a time."""
    step = max(1, block_bytes // (8 * max(1, len(x))))
    for start in range(0, x.shape[1], step):
        columns = slice(start, min(start + step, x.shape[1]))
        part = x[:, columns]
        yield columns, part.tensor(torch.float64) if isinstance(part, WideRows) else part.double()
