"""Randomness that was drawn for a batch: a row for each image."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Dataclasses of tensors with N rows each."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, rows: slice | Tensor) -> Self:
        return type(self)(*(value[rows] for value in self._values()))

    def to(self, device: torch.device | str) -> Self:
        return type(self)(*(value.to(device) for value in self._values()))

    def _values(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]
