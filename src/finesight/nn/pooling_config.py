"""Names of the poolings, apart from their code so that configuration stays light to import."""

from typing import Literal, get_args

PoolingName = Literal["average", "gem", "energy", "energy-gem", "rationale", "rationale-gem", "bilinear"]
TrainPooling = Literal["average", "rationale", "bilinear"]  # what a head sees of φ while training
OracleName = Literal["box", "box-gem"]  # controls: the mask is the annotated object, which no user's folder has
AnyPooling = str  # one of both, or "rationale:NAME" and "rationale:NAME-gem": by another branch beside the encoder's
MaskName = str  # "energy", "rationale", "rationale:NAME" or "box"
POOLINGS: tuple[PoolingName, ...] = get_args(PoolingName)
ORACLES: tuple[OracleName, ...] = get_args(OracleName)
