"""The backbone without training, the first row of the paper's tables."""

from __future__ import annotations

from finesight.methods.base import Method, register_method

register_method(
    "frozen", Method("the backbone as its weights are, nothing trained", None, paper="ResNet-50", order=120)
)
