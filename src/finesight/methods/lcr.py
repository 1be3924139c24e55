"""LCR (Shu et al., 2023): the rationale beside MoCo v2, and the forms of it that the paper compares."""

from __future__ import annotations

from finesight.methods.base import Method, register_method
from finesight.methods.defaults import FOCUSED_CROPS, REACHES_ENCODER

register_method(
    "lcr",
    Method("MoCo v2 with the rationale; its mask pools the features", "moco", rationale=True, paper="Ours", order=0),
)
register_method(
    "lcr+contrastive-crop",
    Method(
        "LCR with crops about what the network finds interesting",
        "moco",
        rationale=True,
        paper="Ours+ContrastiveCrop",
        settings=FOCUSED_CROPS,
        order=0,
    ),
)
register_method(
    "lcr-multitask",
    Method(
        "the rationale as a second task alone: it reaches the encoder, features are averaged",
        "moco",
        rationale=True,
        pooling="average",
        paper="Ours-MultiTask",
        settings=REACHES_ENCODER,
        order=0,
    ),
)
register_method(
    "lcr-dual-pooling",
    Method(
        "the mask pools while training too; collapses in the paper",
        "moco",
        rationale=True,
        pooling="rationale",
        paper="Ours-DualPooling",
        settings={"train_pooling": "rationale"},
        order=0,
    ),
)
register_method(
    "lcr-mlp",
    Method(
        "a branch of two layers in place of the maximum over projections",
        "moco",
        rationale=True,
        paper="MLP",
        settings={"rationale.form": "mlp"},
        order=0,
    ),
)
register_method(
    "lcr-single",
    Method("a branch of one projection", "moco", rationale=True, settings={"rationale.projections": 1}, order=0),
)
