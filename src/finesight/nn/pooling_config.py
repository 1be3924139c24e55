"""Names of the poolings, apart from their code so that configuration stays light to import."""

from typing import Literal, get_args

PoolingName = Literal["average", "gem", "energy", "energy-gem", "rationale", "rationale-gem"]
POOLINGS: tuple[PoolingName, ...] = get_args(PoolingName)
