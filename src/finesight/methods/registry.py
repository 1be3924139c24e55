"""Every objective by its name. A new one is a file and a line here."""

from __future__ import annotations

from finesight.methods.barlow_twins import BarlowTwins
from finesight.methods.base import Objective
from finesight.methods.byol import BYOL
from finesight.methods.cvsa import CVSA
from finesight.methods.dino import DINO
from finesight.methods.lewel import LEWEL
from finesight.methods.lewel_byol import LEWELBYOL
from finesight.methods.moco import MoCo
from finesight.methods.simclr import SimCLR
from finesight.methods.simsiam import SimSiam
from finesight.methods.supervised import Supervised
from finesight.methods.vicreg import VICReg

OBJECTIVES: dict[str, type[Objective]] = {
    "barlow-twins": BarlowTwins,
    "byol": BYOL,
    "cvsa": CVSA,
    "dino": DINO,
    "lewel": LEWEL,
    "lewel-byol": LEWELBYOL,
    "moco": MoCo,
    "simclr": SimCLR,
    "simsiam": SimSiam,
    "supervised": Supervised,
    "vicreg": VICReg,
}
