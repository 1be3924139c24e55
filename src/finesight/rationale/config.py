"""Where the paper, its released code and common sense differ, as switches; and the three named variants.

The numbers in brackets are the rows of the table of ambiguities in ``docs/variants.md``.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from finesight.nn.pooling_config import PoolingName
from finesight.nn.poolings import RATIONALE

VariantName = Literal["finesight", "paper", "released"]


class RationaleConfig(BaseModel):
    """All choices of the rationale. The defaults are the variant ``finesight``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # called "reading" in files of earlier versions
    variant: VariantName = Field("finesight", validation_alias=AliasChoices("variant", "reading"))
    # target: the GradCAM map G
    score: Literal["loss", "negative_loss", "positive"] = "loss"  # [1] the scalar that is differentiated
    rectify: Literal["relu", "abs"] = "abs"  # [1] "abs" keeps both halves of the zero-sum map
    gradient: Literal["summed", "own"] = "summed"  # [17] "own": heads' batch norms with the batch's statistics held
    target_scale: Literal["batch_mean", "image", "cells", "max", "std"] = "max"  # [12]
    detach_target: bool = True  # [8] does φ inside G carry gradient
    # branch: the attention map A
    projections: int = Field(32, ge=1, le=65_536)  # [16] K
    form: Literal["max", "mlp"] = "max"  # "mlp": K hidden units, ReLU and a second layer instead of the maximum
    keep: Literal["all", "top", "rest"] = "all"  # of the projections: those of highest spatial variance, or others
    keep_count: int = Field(8, ge=1)
    keep_from: int = Field(60, ge=0)  # the epoch before which all are kept
    study: tuple[int, ...] = ()  # other K to fit in the same run, beside the branch and without touching the encoder
    input_norm: Literal["none", "l2"] = "l2"  # φ as the branch sees it
    branch_norm: Literal["none", "batch"] = "none"  # [3] "batch" is conv, BN, ReLU, then max
    attention_scale: Literal["raw", "image", "batch"] = "raw"  # [4] min-max of A before the softmax
    # loss: how A is fitted to G
    softmax_over: Literal["positions", "rows"] = "positions"  # [5]
    tau: float = Field(0.4, gt=0)  # [6]
    divergence: Literal["target_attention", "attention_target"] = "target_attention"  # [2] KL(G‖A) or KL(A‖G)
    reduction: Literal["mean", "sum", "elements"] = "mean"  # [7]
    encoder_gradient: float = Field(0.0, ge=0, le=1)  # [8] the share of L_KL's gradient that reaches φ
    lam: float = Field(1.0, ge=0)  # λ
    nu: float = Field(1.0, ge=0)  # ν
    branch_lr: float | None = Field(1e-3, gt=0)  # its own Adam step; None = a part of the encoder's optimizer
    # inference: the mask A' and the feature (Eq. 8-9)
    mask_range: Literal["image", "batch"] = "image"  # [9] "batch": a feature depends on its batch-mates
    mask_divisor: Literal["shifted_max", "max"] = "shifted_max"  # [10]
    mask_power: float = Field(2.0, gt=0)  # A' to this power: above 1 it keeps to the key parts
    pooling: PoolingName = "rationale-gem"  # [11] Eq. 9 is "rationale"; the other is the mask inside GeM
    mask_total: Literal["mean", "sum"] = "mean"  # [11] "sum": "rationale" is not divided by ΣA', as Eq. 9 is printed
    # what surrounds it
    probe_input: Literal["unit", "raw"] = "unit"  # [13] what the linear probe is given
    projector: Literal["2-layer", "3-layer-bn"] = "2-layer"  # [14]
    checkpoint: Literal["last", "best"] = "last"  # [15] "best": by retrieval on a held-out slice of train, never test

    @model_validator(mode="after")
    def _enough_to_keep(self) -> Self:
        needed = {"all": 0, "top": self.keep_count, "rest": 2 * self.keep_count}[self.keep]
        if self.projections < needed:
            raise ValueError(f"keep '{self.keep}' {self.keep_count} needs {needed} projections, not {self.projections}")
        if self.study and self.keep != "all":
            raise ValueError("with other K in 'study', all projections are kept")
        if self.form == "mlp" and self.keep != "all":
            raise ValueError("a branch of form 'mlp' has no projections to keep")
        return self

    def pooling_form(self, name: str) -> str:
        """Return the name of the pooling that ``name`` means here: Eq. 9 may be a mean or a sum."""
        return f"{RATIONALE}-sum" if name == RATIONALE and self.mask_total == "sum" else name


VARIANTS: dict[VariantName, RationaleConfig] = {
    "finesight": RationaleConfig(),
    # Equations 3-9 as printed, with L_CL as the code averages it over the batch.
    "paper": RationaleConfig(
        variant="paper",
        rectify="relu",
        target_scale="batch_mean",
        input_norm="none",
        divergence="attention_target",
        encoder_gradient=1.0,
        nu=0.01,
        branch_lr=None,
        mask_divisor="max",
        mask_power=1.0,
        pooling="rationale",
        mask_total="sum",
        probe_input="raw",
        projector="3-layer-bn",
    ),
    # The public code of the MoCo form: rows instead of positions, no τ, summed KL, batch-wide ranges.
    "released": RationaleConfig(
        variant="released",
        rectify="relu",
        target_scale="batch_mean",
        detach_target=False,
        input_norm="none",
        branch_norm="batch",
        attention_scale="batch",
        softmax_over="rows",
        tau=1.0,
        reduction="sum",
        encoder_gradient=1.0,
        nu=0.01,
        branch_lr=None,
        mask_range="batch",
        mask_power=1.0,
        pooling="rationale",
        checkpoint="best",
    ),
}
