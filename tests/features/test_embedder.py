"""An embedder makes the encoder's own features, of length 1; a region narrows them as the definition says."""

from __future__ import annotations

import json
import pkgutil
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from close import same_rows
from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder, unit
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import fingerprint
from finesight.features.preprocess import WHOLE, picture_view
from finesight.nn.poolings import offered_poolings
from finesight.search.open_embedder import open_embedder
from indexes import empty_index, small_encoder
from reference.nearest import cover


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_encoder(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def embedder(run: Path) -> TorchEmbedder:
    return TorchEmbedder.load(run)


@pytest.fixture
def files(picture: Callable[..., Path]) -> list[Path]:
    sizes = [(40, 30), (300, 90), (33, 64), (37, 37)]
    return [picture(f"{n}.png", size, n) for n, size in enumerate(sizes)]


def test_the_encoders_own_features(embedder: TorchEmbedder, files: list[Path]) -> None:
    embeddings = embedder.encode([picture_view(file, 32) for file in files])
    assert embedder.spaces == ("rationale-gem", "average")
    for space in ("rationale-gem", "average"):
        raw = embedder.encoder.embed(files, space).numpy()
        for embedding, row in zip(embeddings, raw, strict=True):
            assert same_rows(embedding.features[space][None], unit(row)[None])
            np.testing.assert_allclose(embedding.features[space], row / np.linalg.norm(row), atol=1e-6)
            assert np.linalg.norm(embedding.features[space]) == pytest.approx(1, abs=1e-6)
    assert same_rows([embedding.mask for embedding in embeddings], embedder.encoder.attend(files))
    alone = embedder.encode([picture_view(files[2], 32)])[0]
    assert all(same_rows(alone.features[space][None], embeddings[2].features[space][None]) for space in embedder.spaces)
    assert not np.array_equal(embeddings[0].features["average"], embeddings[1].features["average"])


def test_masks_that_depend_on_their_batch_do_not(tmp_path: Path, files: list[Path]) -> None:
    """The variant ``released`` takes its range over the batch: an index needs features that are an image's own."""
    run = small_encoder(tmp_path / "run")
    config = json.loads((run / "encoder/encoder.json").read_text())
    config["rationale"]["mask_range"] = "batch"
    (run / "encoder/encoder.json").write_text(json.dumps(config))
    embedder = TorchEmbedder.load(run)
    views = [picture_view(file, 32) for file in files]
    for view, embedding in zip(views, embedder.encode(views), strict=True):
        assert np.array_equal(embedder.encode([view])[0].features["rationale-gem"], embedding.features["rationale-gem"])


def test_a_zero_vector_stays_zero() -> None:
    assert unit(np.zeros((2, 3), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]


# --- regions ----------------------------------------------------------------------------------------------------------


def test_a_region_weighs_each_cell_by_its_share(embedder: TorchEmbedder, files: list[Path]) -> None:
    encoder = embedder.encoder
    poolings = {name: pooling for name, pooling in offered_poolings().items() if not pooling.needs_class_token}
    views, regions = encoder.prepare(files[:1]), torch.zeros(1, 32, 32)
    regions[:, 3:20, 10:29] = 1
    narrow, whole = encoder.encode(views, tuple(poolings), regions=regions), encoder.encode(views, tuple(poolings))
    everything = encoder.encode(views, tuple(poolings), regions=torch.ones_like(regions))
    share = torch.from_numpy(cover((10 / 32, 3 / 32, 19 / 32, 17 / 32), WHOLE, 4))[None].float()
    assert encoder.branch is not None
    with torch.no_grad():
        made = encoder.backbone.outputs(views, earlier=True)
        phi, responses = made.phi, encoder.branch.responses(made.phi)
    for name, pooling in poolings.items():
        more = {"earlier": made.earlier} if pooling.needs_earlier else {}
        torch.testing.assert_close(narrow.features[name], pooling(phi, whole.masks, responses, share, **more))
        torch.testing.assert_close(everything.features[name], whole.features[name])
        assert not torch.allclose(narrow.features[name], whole.features[name], rtol=1e-3)
    assert torch.equal(narrow.masks["rationale"], whole.masks["rationale"])


def test_regions_of_a_batch_are_each_its_own(embedder: TorchEmbedder, files: list[Path]) -> None:
    box = (0.2, 0.3, 0.4, 0.3)
    views = [picture_view(file, 32, box) for file in files]
    embeddings = embedder.encode(views, [box, None, box, None])
    plain = embedder.encode(views)
    for n, (embedding, other) in enumerate(zip(embeddings, plain, strict=True)):
        for space in embedder.spaces:
            assert same_rows(embedding.features[space][None], other.features[space][None]) == (n % 2 == 1)
    alone = embedder.encode(views[:1], [box])[0].features["average"]
    assert same_rows(alone[None], embeddings[0].features["average"][None])
    with pytest.raises(ValueError, match="regions"):
        embedder.encode(views, [box])
    with pytest.raises(ValueError, match="regions"):
        embedder.encoder.encode(embedder.encoder.prepare(files), ("average",), regions=torch.ones(1, 32, 32))


# --- which encoder ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_content(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    mark = fingerprint(run)
    assert fingerprint(run / "encoder") == fingerprint(copy) == mark
    config = copy / "encoder/encoder.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(dict(reversed(content.items()))))  # the same, written otherwise
    assert fingerprint(copy) == mark
    config.write_text(json.dumps({**content, "resolution": 40}))
    assert fingerprint(copy) != mark
    config.write_text(json.dumps(content))
    weights = load_file(copy / "encoder/encoder.safetensors")
    weights["branch.filters.weight"][0, 0] += 1e-3
    save_file(weights, copy / "encoder/encoder.safetensors")
    assert fingerprint(copy) != mark
    (copy / "encoder/encoder.safetensors").unlink()
    with pytest.raises(FineSightError, match="cannot be read"):
        fingerprint(copy)


def test_another_encoder_is_refused(run: Path, tmp_path: Path) -> None:
    index = empty_index(tmp_path / "index")
    with pytest.raises(FineSightError, match="made by another encoder"):
        open_embedder("torch", index, run)
    with pytest.raises(FineSightError, match=r"no engine 'tensorflow'.*torch, onnx"):
        open_embedder("tensorflow", index)


def test_search_needs_no_torch() -> None:
    import finesight.search
    from test_imports import modules_after

    modules = [one.name for one in pkgutil.walk_packages(finesight.search.__path__, "finesight.search.")]
    loaded = modules_after(f"import {', '.join(modules)}")
    assert {"finesight.search.faiss_index", "finesight.search.milvus_index"} <= loaded
    assert not loaded & {"torch", "faiss", "pymilvus", "sklearn"}


def test_embedding_costs_hardly_more_than_the_backbone(tmp_path: Path) -> None:
    """Mask, two poolings and normalizing, counted in operations of the profiler: well below a tenth."""
    encoder = Encoder.load(small_encoder(tmp_path))
    view = torch.randn(1, 3, 32, 32)
    encoder.encode(view, ())  # the first time, the network is made ready
    with torch.profiler.profile(with_flops=True) as seen:
        encoder.encode(view, ("rationale-gem", "average"))
    with torch.profiler.profile(with_flops=True) as bare, torch.no_grad():
        encoder.backbone(view)
    both, alone = (sum(event.flops or 0 for event in one.key_averages()) for one in (seen, bare))
    assert alone > 0
    assert both < 1.1 * alone


def test_many_images_take_less_time_than_one_by_one(tmp_path: Path) -> None:
    """In seconds of the processor and by turns: seven times as fast here, as the network is small."""
    run = small_encoder(tmp_path)
    fast, exact = Encoder.load(run), Encoder.load(run, exact=True)
    views, ratios = torch.randn(32, 3, 32, 32), []
    for _ in range(5):
        seconds = []
        for encoder in (fast, exact):
            began = time.process_time()
            encoder.encode(views, ("rationale-gem", "average"))
            seconds.append(time.process_time() - began)
        ratios.append(seconds[1] / seconds[0])
    assert sorted(ratios)[2] > 1.5, ratios
