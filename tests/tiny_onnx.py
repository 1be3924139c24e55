"""An ONNX file with the outputs of an exported encoder, and nothing that computes."""

from __future__ import annotations

import onnx

FACTS = {"format": 1, "fingerprint": "f", "encoder": {"resolution": 32, "pooling": "average"}}


def tiny_onnx(metadata: str) -> bytes:
    """Return such a file with this text about itself."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    names = ("images", "feature", "average", "attention")
    infos = [helper.make_tensor_value_info(name, kind, [1, 4]) for name in names]
    nodes = [helper.make_node("Identity", ["images"], [name]) for name in names[1:]]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(made, {"finesight": metadata})
    content: bytes = made.SerializeToString()
    return content
