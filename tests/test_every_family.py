"""Every kind of network through all that follows: steps, GradCAM, resume, encoder, explain, ONNX, search."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from finesight.data.sources import open_source
from finesight.explain.explainer import Explainer
from finesight.export.onnx import export_onnx
from finesight.features.embedder import OnnxEmbedder, TorchEmbedder
from finesight.features.encoder import Encoder
from finesight.methods.base import METHODS
from finesight.nn.distributed import world
from finesight.nn.feature_map import find_map
from finesight.rationale.gradcam import map_gradcam, pooled_gradcam
from finesight.search.build import open_or_create, update_index
from finesight.search.searcher import Searcher
from finesight.training.checkpoints import load_checkpoint, save_checkpoint
from finesight.training.config_file import write_yaml
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import save_encoder
from ranks import RANKS, in_ranks
from small import drive, small_batch, small_module, take_step
from tiny_models import FAMILIES

OBJECTIVES = ("dino", "simclr", "byol", "simsiam", "moco-v2", "barlow-twins", "vicreg", "supervised")
EXPORTED = ("tiny_swin", "tiny_rotary", "test_mambaout", "tiny_hybrid")  # a file takes ten seconds
FIXED_GRAPH = (
    "test_vit_relpos",
    "test_coatnet",
    "tiny_swin",
    "tiny_hybrid",
)  # for one size, by the net or by the exporter


def begun(name: str, method: str = "lcr", **settings: Any) -> TrainingModule:
    side = FAMILIES[name]
    local = find_map(name).map.sides.nearest(side // 2)
    sizes = {"backbone.name": name, "backbone.output_stride": 32, "views.resolution": side, "batch_size": 4}
    few = {"rationale.projections": 4} if METHODS[method].rationale or settings.get("rationale") else {}
    return small_module(method, **{**sizes, "views.local_resolution": local, **few, **settings})


@pytest.fixture(scope="module", params=FAMILIES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two steps, as training leaves it. Not to be written to."""
    torch.manual_seed(0)
    run = RunFolder(tmp_path_factory.mktemp(request.param))
    module = begun(request.param)
    before = copy.deepcopy(module.state_dict())
    for step in range(2):
        take_step(module, step)
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    still = trained - moved
    assert not still, f"never trained: {sorted(still)[:5]}"
    assert module.is_finite()
    write_yaml(module.config, run.config_file)
    save_checkpoint(run.checkpoints, 2, {"module": module.state_dict(), "optimizer": module.optimizer.state_dict()})
    save_encoder(module.config, run, module)
    return run


@pytest.fixture(scope="module")
def files(birds: Path) -> list[Path]:
    return sorted(birds.glob("test/*/*.png"))[:5]


def test_it_stops_and_goes_on_bit_for_bit(run: RunFolder) -> None:
    name = run.config().backbone.name
    whole, second = begun(name), begun(name)
    loaded = load_checkpoint(run.checkpoints)
    assert loaded is not None
    second.load_state_dict(loaded[1]["module"])
    second.optimizer.load_state_dict(loaded[1]["optimizer"])
    for step in range(3):
        take_step(whole, step)
    take_step(second, 2)
    expected = whole.state_dict()
    assert [part for part, value in second.state_dict().items() if not torch.equal(value, expected[part])] == []


def test_gradcam_is_that_of_finite_differences(run: RunFolder) -> None:
    """Of the whole map, through a pooling that is no average; and of the average, by either way."""
    encoder = Encoder.load(run.root)
    side, draw = encoder.config.resolution, torch.Generator().manual_seed(0)
    with torch.no_grad():
        phi = encoder.maps(torch.randn(2, 3, side, side, generator=draw)).double()
    weights = torch.randn(phi.shape[1], generator=draw, dtype=torch.float64)

    def score(values: torch.Tensor) -> torch.Tensor:
        return (values.square().mean((2, 3)).sqrt() @ weights).tanh()  # (N,)

    phi.requires_grad_()
    cam = map_gradcam(phi, score(phi))
    step = 1e-6
    for n, row, column in ((0, 0, 0), (1, phi.shape[2] - 1, phi.shape[3] - 1), (1, 0, phi.shape[3] // 2)):
        cell = phi.detach().clone()
        cell[n, :, row, column] *= 1 + step  # along φ itself: the derivative is gᵀφ
        slope = (score(cell) - score(phi.detach())).sum() / step
        assert cam[n, row, column].item() == pytest.approx(slope.item(), rel=1e-3, abs=1e-7)
    pooled = phi.mean((2, 3))
    value = (pooled @ weights).tanh()
    torch.testing.assert_close(pooled_gradcam(phi, pooled, value), map_gradcam(phi, value))


def test_it_is_saved_embedded_and_explained(run: RunFolder, files: list[Path]) -> None:
    explainer, encoder = Explainer.load(run.root), Encoder.load(run.root)
    features = encoder.embed(files)
    assert features.shape == (5, encoder.channels)
    torch.testing.assert_close(Encoder.load(run.root, exact=True).embed(files), features, rtol=1e-4, atol=1e-5)
    found = explainer(files)
    cells = find_map(run.config().backbone.name).map.stride
    grid = (encoder.config.resolution // cells,) * 2
    assert found.mask.shape == (5, *grid)
    assert found.gradcam is not None
    assert found.gradcam.shape == (5, *grid)
    for of in ("mask", "energy", "gradcam"):
        assert np.isfinite(found.heat(0, of)).all()
    assert found.overlay(0, "gradcam").shape == (encoder.config.resolution, encoder.config.resolution, 3)


@pytest.mark.slow
@pytest.mark.parametrize("run", EXPORTED, indirect=True)
def test_it_is_exported_and_searched_without_torch(
    run: RunFolder, birds: Path, files: list[Path], tmp_path: Path
) -> None:
    name, encoder = run.config().backbone.name, Encoder.load(run.root)
    exported = export_onnx(run.root, tmp_path / "model.onnx", tolerance=1e-4, progress=False)
    assert max(one.relative for one in exported.differences) < 1e-4
    side, sides = encoder.config.resolution, encoder.backbone.map.sides
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    fixed = name in FIXED_GRAPH
    sizes = [side] if fixed else [side, sides.at_least(2 * side)]
    for pixels in sizes:  # through one graph
        images = np.random.default_rng(pixels).integers(0, 256, (2, pixels, pixels, 3), dtype=np.uint8)
        (got,) = session.run(["feature"], {"images": images})
        wanted = encoder.encode(encoder.normalize(images), [encoder.config.pooling]).features[encoder.config.pooling]
        np.testing.assert_allclose(got, wanted, atol=1e-4 * float(wanted.abs().max()))
    if fixed:
        axes = session.get_inputs()[0].shape
        assert axes[1:3] == [side, side]
    assert any("px only" in note for note in exported.warnings) == (fixed and not sides.fixed)
    embedders = TorchEmbedder.load(run.root), OnnxEmbedder(tmp_path / "model.onnx")
    source = open_source(birds)
    some = source.select(np.arange(0, len(source), 9))
    index = open_or_create(tmp_path / "index", embedders[0], run.root, source.root)
    update_index(index, embedders[0], some)
    query = source.file(9)
    for embedder in embedders:
        assert embedder.framing == encoder.config.framing
        answer = Searcher(index, embedder).by_picture(query, 3)
        assert Path(source.root) / answer.hits[0].path == Path(query)
        assert answer.hits[0].score == pytest.approx(1, abs=1e-4)
        part = Searcher(index, embedder).by_picture(query, 3, box=(0.3, 0.3, 0.4, 0.4))
        assert len(part.hits) == 3
    index.close()


@pytest.mark.parametrize("method", OBJECTIVES)
def test_every_objective_learns_from_tokens_with_the_rationale(method: str) -> None:
    module = begun("test_vit", method, rationale=True)
    before = copy.deepcopy(module.state_dict())
    for step in range(2):
        take_step(module, step)
    assert module.is_finite()
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    for part in ("objective.backbone.model.blocks.0.attn.qkv.weight", "rationale.branch.filters.weight"):
        assert part in moved


# --- several processes, half precision --------------------------------------------------------------------------------


def gradients(rank: int | None) -> dict[str, torch.Tensor]:
    """Of GradCAM's kind and of the loss, activations checkpointed, on half the batch or on all of it."""
    network = begun("test_vit").double().objective.backbone
    network.checkpoint_activations()
    views = torch.randn(2 * RANKS, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
    rows = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    wrapped = DistributedDataParallel(network, broadcast_buffers=False) if world()[1] > 1 else network
    phi = wrapped(views[rows])
    cam = map_gradcam(phi, phi.square().mean((1, 2, 3)))
    (phi.square().mean() + (cam.detach() * phi.abs().mean(1)).mean()).backward()
    return {name: value.grad for name, value in network.named_parameters() if value.grad is not None}


@pytest.mark.slow
def test_two_processes_with_checkpointed_activations(tmp_path: Path) -> None:
    whole, shares = gradients(None), in_ranks(gradients, tmp_path)
    for share in shares:
        assert share.keys() == whole.keys()
        for name, values in whole.items():
            # timm interpolates position embeddings in single precision
            torch.testing.assert_close(share[name], values, rtol=1e-3, atol=1e-6 * float(values.abs().max()))


@pytest.mark.parametrize("name", ["test_vit", "tiny_swin", "test_mambaout"])
def test_steps_in_half_precision(half_precision: None, name: str) -> None:
    module, exact = begun(name), begun(name)
    with torch.autocast("cpu", torch.bfloat16):
        drive(module, small_batch(0, 4))
    drive(exact, small_batch(0, 4))
    assert module.is_finite()
    assert module.metrics["loss"] == pytest.approx(exact.metrics["loss"], rel=0.05)
