from pathlib import Path

import numpy as np
import pytest
import torch
from objectives import assert_slopes, bare, images, normal, outputs, pictures, seeded, small

from finesight.training.config import RuntimeConfig, build_config
from finesight.training.train_images import prepare_data
from reference.dino import cross_entropy
from small import SMALL


def reference(logits: np.ndarray, labels: list[int]) -> np.ndarray:
    """(N,): minus the logarithm of the true class's share; nothing where it is unknown."""
    one_hot = np.eye(logits.shape[1])
    return np.array(
        [0.0 if label < 0 else cross_entropy(one_hot[label], row) for row, label in zip(logits, labels, strict=True)]
    )


@pytest.mark.parametrize("labels", [[0, 1, 2, 0], [2, -1, 1, -1], [-1, -1, -1, 0]])
@pytest.mark.parametrize("training", [False, True])
def test_per_image_losses_against_loops_end_to_end(labels: list[int], training: bool) -> None:
    objective, views = small("supervised").train(training), pictures(4, views=1)
    output = objective(views, seeded(), torch.tensor(labels))
    logits = outputs(objective, views[0]).detach().numpy()
    np.testing.assert_allclose(output.loss.detach().numpy(), reference(logits, labels), rtol=1e-8, atol=1e-14)
    assert all((loss == 0) == (label == -1) for loss, label in zip(output.loss.tolist(), labels, strict=True))


def test_gradients_against_finite_differences() -> None:
    objective = bare("supervised", 4)
    weight, bias = objective.head.weight.detach().numpy(), objective.head.bias.detach().numpy()
    assert_slopes(objective, lambda z: reference(z @ weight.T + bias, [0, 1, 2]).mean(), normal(3, 4))


def test_a_batch_without_any_label_teaches_nothing() -> None:
    objective = small("supervised")
    output = objective(pictures(views=1), seeded(), torch.full((5,), -1))
    output.loss.mean().backward()
    assert not output.loss.any()
    assert all(p.grad is not None and not p.grad.any() for p in objective.parameters())


def test_accuracy_counts_the_images_that_are_right() -> None:
    objective = bare("supervised", 3)
    objective.head.weight.data, objective.head.bias.data = torch.eye(3).double(), torch.zeros(3).double()
    views = [images(torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2]])]
    accuracy = objective(views, seeded(), torch.tensor([0, 1, 2, 0])).metrics["accuracy"]
    assert accuracy.item() == pytest.approx(0.75)


def test_embedding_is_the_pooled_vector() -> None:
    """There is no projector: the health of the features themselves is watched."""
    objective, views = small("supervised").eval(), pictures(views=1)
    output = objective(views, seeded(), torch.zeros(5, dtype=torch.long))
    pooled = output.pooled.detach()
    torch.testing.assert_close(output.embedding.detach(), pooled / pooled.norm(dim=1, keepdim=True))
    assert torch.equal(output.target, output.embedding)
    assert output.positive is None


def test_images_without_a_label_are_not_trained_on(birds: Path, tmp_path: Path) -> None:
    files = sorted(birds.glob("train/*/*.png"))
    names = [file.parent.name if number % 3 else "" for number, file in enumerate(files)]
    rows = [f"{file},{name}" for file, name in zip(files, names, strict=True)]
    (tmp_path / "some.csv").write_text("\n".join(["path,label", *rows]))
    config = {**SMALL, "method": "supervised", "validation.fraction": 0.0, "data": str(tmp_path / "some.csv")}
    cache, images, _ = prepare_data(build_config(config), RuntimeConfig(progress=False))
    assert len(cache) == 48
    assert cache.source.labels is not None
    assert images.tolist() == [i for i in range(48) if cache.source.labels[i] >= 0]
    assert len(images) == 32
