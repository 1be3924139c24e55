import numpy as np
import pytest
import torch

from finesight.rationale.branch import FittingBranch
from finesight.rationale.config import RationaleConfig
from reference.rationale import branch as branch_reference
from reference.rationale import responses_statistics, two_layers


def make(channels: int = 6, **switches: object) -> FittingBranch:
    torch.manual_seed(0)
    return FittingBranch(channels, RationaleConfig.model_validate({"projections": 4, **switches})).double()


def filters(branch: FittingBranch) -> np.ndarray:
    return branch.filters.weight.detach().numpy()[:, :, 0, 0]


@pytest.mark.parametrize("input_norm", ["none", "l2"])
@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (1, 6, 1, 1)])
def test_maximum_over_the_projections(input_norm: str, shape: tuple[int, ...]) -> None:
    branch = make(input_norm=input_norm)
    phi = torch.randn(shape, dtype=torch.float64)
    expected = branch_reference(phi.numpy(), filters(branch), unit=input_norm == "l2")
    np.testing.assert_allclose(branch(phi).detach().numpy(), expected, rtol=1e-12)


def test_responses_are_one_map_for_each_projection() -> None:
    branch = make(input_norm="none")
    phi = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    responses = branch.responses(phi)
    assert responses.shape == (2, 4, 3, 4)
    for k, filter_k in enumerate(filters(branch)):
        alone = branch_reference(phi.numpy(), filter_k[None], unit=False)
        np.testing.assert_allclose(responses[:, k].detach().numpy(), alone, rtol=1e-12)
    assert torch.equal(branch(phi), responses.amax(1))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_form(training: bool) -> None:
    """Convolution, BN, ReLU, then the maximum; the statistics of the batch in training, the kept ones after."""
    branch = make(input_norm="none", branch_norm="batch").train(training)
    assert branch.norm is not None
    with torch.no_grad():
        branch.norm.weight.uniform_(-1.5, 1.5)
        branch.norm.bias.uniform_(-0.5, 0.5)
        branch.norm.running_mean.uniform_(-0.2, 0.2)
        branch.norm.running_var.uniform_(0.5, 2)
    mean, var = branch.norm.running_mean.numpy().copy(), branch.norm.running_var.numpy().copy()
    phi = torch.randn(3, 6, 4, 5, dtype=torch.float64)
    if training:
        mean, var = responses_statistics(phi.numpy(), filters(branch))
    norm = {"mean": mean, "var": var, "weight": branch.norm.weight.detach().numpy()}
    norm["bias"] = branch.norm.bias.detach().numpy()
    expected = branch_reference(phi.numpy(), filters(branch), unit=False, norm=norm)
    attention = branch(phi).detach().numpy()
    np.testing.assert_allclose(attention, expected, rtol=1e-10, atol=1e-12)
    assert attention.min() >= 0
    assert (branch.responses(phi) == 0).any()


def test_only_the_winning_projection_learns_from_a_cell() -> None:
    branch = make(input_norm="none")
    phi = torch.randn(1, 6, 1, 1, dtype=torch.float64)
    branch(phi).sum().backward()
    assert branch.filters.weight.grad is not None
    winner = int(branch.responses(phi)[0, :, 0, 0].argmax())
    moved = branch.filters.weight.grad[:, :, 0, 0].abs().sum(1).nonzero().flatten().tolist()
    assert moved == [winner]
    assert torch.equal(branch.filters.weight.grad[winner], phi[0])


def test_blank_cells_stay_finite() -> None:
    branch = make(input_norm="l2")
    phi = torch.zeros(2, 6, 3, 3, dtype=torch.float64, requires_grad=True)
    attention = branch(phi)
    attention.sum().backward()
    assert torch.equal(attention, torch.zeros_like(attention))
    assert torch.isfinite(phi.grad).all()
    assert torch.isfinite(branch.filters.weight.grad).all()


# --- ablations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("input_norm", ["none", "l2"])
@pytest.mark.parametrize("projections", [1, 5])
def test_two_layers_in_place_of_the_maximum(input_norm: str, projections: int) -> None:
    branch = make(form="mlp", input_norm=input_norm, projections=projections)
    phi = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    assert branch.mix is not None
    mix, bias = branch.mix.weight.detach().numpy()[0, :, 0, 0], branch.mix.bias.item()
    assert bias != 0
    expected = two_layers(phi.numpy(), filters(branch), mix, bias, unit=input_norm == "l2")
    np.testing.assert_allclose(branch(phi).detach().numpy(), expected, rtol=1e-10, atol=1e-13)
    assert branch(phi).shape == (2, 3, 4)
    assert len({name for name, _ in branch.named_parameters()}) == 3
    branch(phi).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in branch.parameters())


def test_the_maximum_is_over_what_is_kept() -> None:
    branch = make(projections=6, keep="top", keep_count=2)
    phi = torch.randn(3, 6, 4, 5, dtype=torch.float64)
    everything = branch(phi)
    assert torch.equal(everything, branch.responses(phi).amax(1)), "before the choice all are"
    branch.keep([1, 4])
    expected = branch_reference(phi.numpy(), filters(branch)[[1, 4]], unit=True)
    np.testing.assert_allclose(branch(phi).detach().numpy(), expected, rtol=1e-12)
    assert not torch.equal(branch(phi), everything)
    assert torch.equal(branch(phi), branch.responses(phi)[:, [1, 4]].amax(1))
    branch.keep([0])
    assert torch.equal(branch(phi), branch.responses(phi)[:, 0]), "a later choice replaces it"


def test_what_is_not_kept_learns_nothing_more() -> None:
    branch = make(projections=6, keep="rest", keep_count=3, input_norm="none")
    phi = torch.randn(3, 6, 4, 5, dtype=torch.float64)

    def learning() -> list[int]:
        branch.zero_grad()
        branch(phi).square().sum().backward()
        assert branch.filters.weight.grad is not None
        assert torch.isfinite(branch.filters.weight.grad).all()
        return branch.filters.weight.grad.abs().sum((1, 2, 3)).nonzero().flatten().tolist()

    assert learning() == list(range(6))
    branch.keep([0, 2, 5])
    assert learning() == [0, 2, 5]


def test_the_choice_is_part_of_the_state_where_one_is_to_be_made() -> None:
    plain, chosen, fresh = make(), make(keep="top", keep_count=2), make(keep="top", keep_count=2)
    assert "kept" not in plain.state_dict(), "encoders of before know of no choice"
    chosen.keep([3])
    fresh.load_state_dict(chosen.state_dict())
    phi = torch.randn(2, 6, 3, 3, dtype=torch.float64)
    assert torch.equal(fresh(phi), chosen(phi))
    assert torch.equal(fresh(phi), fresh.responses(phi)[:, 3])


@pytest.mark.parametrize("switches", [{}, {"form": "mlp"}, {"input_norm": "none", "branch_norm": "batch"}])
def test_single_precision_under_autocast(switches: dict[str, object]) -> None:
    torch.manual_seed(0)
    branch = FittingBranch(256, RationaleConfig.model_validate(switches)).eval()
    phi = torch.rand(2, 256, 3, 3).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = branch(phi)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, branch(phi.float()))
