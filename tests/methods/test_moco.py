from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives import pictures, seeded, small, units
from pydantic import ValidationError
from torch import Tensor, nn

from finesight.methods.moco import MoCoConfig, info_nce
from finesight.nn.distributed import shuffled_forward
from reference.gradcam import average, differences
from reference.infonce import dot
from reference.infonce import head as head_reference
from reference.infonce import info_nce as info_nce_reference
from small import small_module

# --- InfoNCE ------------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 4),
    dim=st.integers(1, 6),
    queue=st.integers(0, 9),
    temperature=st.sampled_from([1e-3, 0.05, 0.2, 1.0, 10.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_info_nce_against_loops(n: int, dim: int, queue: int, temperature: float, seed: int) -> None:
    q, k = units(n, dim, seed=seed), units(n, dim, seed=seed + 1)
    negatives = units(queue, dim, seed=seed + 2) if queue else torch.zeros(0, dim, dtype=torch.float64)
    loss, positive, negative = info_nce(q, k, negatives, temperature)
    expected = info_nce_reference(q.numpy(), k.numpy(), negatives.numpy(), temperature)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-9, atol=1e-12 / temperature)
    np.testing.assert_allclose(positive.numpy(), [dot(a, b) for a, b in zip(q.numpy(), k.numpy(), strict=True)])
    assert negative.shape == (n, queue)
    np.testing.assert_allclose(negative.numpy(), q.numpy() @ negatives.numpy().T)


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_info_nce_gradients_against_finite_differences(temperature: float) -> None:
    q, k, queue = units(3, 4).requires_grad_(), units(3, 4, seed=1), units(7, 4, seed=2)
    info_nce(q, k, queue, temperature)[0].sum().backward()
    assert q.grad is not None
    slope = differences(
        lambda x: float(info_nce_reference(x, k.numpy(), queue.numpy(), temperature).sum()), q.detach().numpy()
    )
    np.testing.assert_allclose(q.grad.numpy(), slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("temperature", [1e-3, 1e-6])
def test_info_nce_of_extreme_logits_in_single_precision(temperature: float) -> None:
    """Logits of a million: neither overflow nor a wrong value, on the best and on the worst case."""
    axes = torch.eye(3)
    q = axes[:1].requires_grad_()
    for key, negatives, expected in (
        (axes[:1], -axes[:1].repeat(4, 1), 0.0),
        (-axes[:1], axes[:1], 2 / temperature),
        (axes[:1], axes[:1].repeat(9, 1), np.log(10)),
    ):
        loss, _, _ = info_nce(q, key, negatives, temperature)
        (slope,) = torch.autograd.grad(loss.sum(), q)
        assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-5 + 1e-7 / temperature)
        assert torch.isfinite(slope).all()


# --- shuffled keys ------------------------------------------------------------------------------------------------


class Recorder:
    """Answers with its input and remembers who came together."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []

    def __call__(self, images: Tensor) -> Tensor:
        self.groups.append(images[:, 0].long().tolist())
        return images * 2


@given(n=st.integers(1, 150), group=st.integers(2, 40), seed=st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_keys_come_back_in_order_from_sub_batches_of_about_the_group(n: int, group: int, seed: int) -> None:
    images, network = torch.arange(n, dtype=torch.float32)[:, None].repeat(1, 3), Recorder()
    assert torch.equal(shuffled_forward(network, images, seeded(seed), group), images * 2)
    assert sorted(chain(*network.groups)) == list(range(n))
    sizes = [len(members) for members in network.groups]
    assert max(sizes) - min(sizes) <= 1
    if n >= 4:  # batch norm needs two images, and one group alone would hide nothing
        assert min(sizes) >= 2
        assert len(sizes) >= 2
        assert max(sizes) <= 1.5 * group + 1
    else:
        assert len(sizes) == 1


def test_keys_without_batch_statistics_are_computed_together() -> None:
    """The permutation is drawn all the same: what is drawn after it must not change."""
    images, network, generator, other = torch.arange(80.0)[:, None], Recorder(), seeded(3), seeded(3)
    assert torch.equal(shuffled_forward(network, images, generator, None), images * 2)
    assert network.groups == [list(range(80))]
    torch.randperm(80, generator=other)
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=other))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"backbone.freeze": 2, "backbone.frozen_norm": True}, [16]),
        ({"backbone.freeze": 2}, [8, 8]),  # the norms of later stages normalize by the batch
        ({"backbone.frozen_norm": True}, [8, 8]),  # keeps its bits
        ({}, [8, 8]),
    ],
)
def test_keys_are_cut_into_groups_where_that_matters(options: dict[str, Any], sizes: list[int]) -> None:
    module = small_module("moco-v2", **options, batch_size=16).train()
    seen: list[int] = []
    module.objective.key_backbone.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    views = [torch.randn(16, 3, 32, 32, generator=seeded(i)) for i in range(2)]
    whole = module.objective(views, seeded())
    assert seen == sizes
    if len(sizes) == 1:
        alone = torch.cat([module.objective(views_of, seeded()).target for views_of in split(views)])
        assert (whole.target - alone).norm() <= 1e-6 * alone.norm()


def split(views: list[Tensor]) -> list[list[Tensor]]:
    """Return each image of the views alone."""
    return [[view[i : i + 1] for view in views] for i in range(len(views[0]))]


def test_batch_norm_sees_shuffled_sub_batches() -> None:
    images = torch.randn(10, 3, dtype=torch.float64, generator=seeded())
    norm = nn.BatchNorm1d(3, momentum=0.1).double()
    keys = shuffled_forward(norm, images, seeded(5), group=5)
    order = torch.randperm(10, generator=seeded(5)).numpy()
    expected, mean, var = np.zeros((10, 3)), np.zeros(3), np.ones(3)
    for members in np.array_split(order, 2):
        x = images.numpy()[members]
        expected[members] = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
        mean, var = 0.9 * mean + 0.1 * x.mean(0), 0.9 * var + 0.1 * x.var(0, ddof=1)
    np.testing.assert_allclose(keys.numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(norm.running_var.numpy(), var, rtol=1e-10)
    assert not keys.requires_grad
    assert not np.allclose(expected, nn.BatchNorm1d(3).double()(images).detach().numpy(), atol=0.1)


# --- the objective ------------------------------------------------------------------------------------------------


def layers_of(head: nn.Module) -> list[tuple[np.ndarray, np.ndarray]]:
    linear = [layer for layer in head if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in linear]


def test_per_image_losses_against_loops_end_to_end() -> None:
    objective, views = small("moco").eval(), pictures()
    output = objective(views, seeded())
    phi, key_phi = objective.backbone(views[0]).detach().numpy(), objective.key_backbone(views[1]).numpy()
    q = head_reference(average(phi), layers_of(objective.head))
    k = head_reference(average(key_phi), layers_of(objective.key_head))
    expected = info_nce_reference(q, k, objective.queue.vectors.numpy(), 0.2)
    np.testing.assert_allclose(output.loss.detach().numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(output.embedding.detach().numpy(), q, rtol=1e-8)
    np.testing.assert_allclose(output.target.numpy(), k, rtol=1e-8)
    assert output.metrics["positive_similarity"].item() == pytest.approx((q * k).sum(1).mean())
    negative = (q @ objective.queue.vectors.numpy().T).mean()
    assert output.metrics["negative_similarity"].item() == pytest.approx(negative)
    assert objective.average_pooled


@pytest.mark.parametrize("name", ["cvsa", "lewel", "moco"])
def test_only_the_keys_norms_depend_on_the_step_seed(name: str) -> None:
    views = pictures(8)
    first, again, other = (small(name)(views, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.loss, again.loss)
    assert torch.equal(first.target, again.target)
    assert torch.equal(first.embedding, other.embedding)
    assert not torch.allclose(first.target, other.target)


@pytest.mark.parametrize("name", ["lewel", "moco"])
@pytest.mark.parametrize(("size", "batch"), [(13, 6), (4, 6), (2, 5), (6, 6)])
def test_after_a_step_the_queues_have_one_key_of_each_image(name: str, size: int, batch: int) -> None:
    objective = small(name, queue=size)
    queues = [objective.queue] if name == "moco" else [objective.queue, objective.aligned_queue]
    before = [queue.vectors.clone() for queue in queues]
    output = objective(pictures(batch), seeded())
    assert all(torch.equal(queue.vectors, old) for queue, old in zip(queues, before, strict=True))
    objective.after_step(output)
    kept = min(size, batch)
    keys = [output.target] if name == "moco" else [output.target, output.aligned_key]
    for queue, new, old in zip(queues, keys, before, strict=True):
        assert int(queue.pointer) == batch % size
        assert torch.equal(torch.roll(queue.vectors, -(batch % size), 0)[-kept:], new[-kept:])
        assert size <= batch or torch.equal(queue.vectors[batch:], old[batch:])


@pytest.mark.parametrize("queue", [0, -5, 2.5, "many"])
def test_a_queue_holds_at_least_one_key(queue: object) -> None:
    with pytest.raises(ValidationError, match="queue"):
        MoCoConfig.model_validate({"queue": queue})
    assert MoCoConfig(queue=1).queue == 1
    assert MoCoConfig().queue == "auto"
