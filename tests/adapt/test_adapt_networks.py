"""The pieces of the training: reversal, penalty, batched networks, optimisers, schedules."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from covcal_cli.adapt.alignment import balanced_accuracy, domains_overlap, fit_probe
from covcal_cli.adapt.perceptrons import (
    Dropout,
    Perceptrons,
    ScheduledOptimiser,
    domain_loss,
    forecaster_loss,
    input_gradient_penalty,
    member_generators,
    reverse_gradient,
)
from covcal_cli.adapt.settings import AdaptSettings, Schedule, paper_settings
from covcal_cli.adapt.training_rows import RowStream, principal_components
from covcal_cli.errors import CovcalError

CPU = torch.device("cpu")


def perceptrons(widths: tuple[int, ...], members: int = 2, *, seed: int = 0) -> Perceptrons:
    return Perceptrons.create(widths, member_generators(seed, members, 0), CPU)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_reversal_passes_values_and_turns_gradients_around() -> None:
    values = draws(4, 3).requires_grad_()
    weights = draws(4, 3, seed=1)
    passed = reverse_gradient(values, 0.7)
    assert torch.equal(passed, values)
    (found,) = torch.autograd.grad((passed * weights).sum(), values)
    assert torch.allclose(found, -0.7 * weights)


def test_reversal_gives_psi_the_opposite_of_the_discriminators_gradient() -> None:
    """By hand: psi's gradient is that of the plain loss, times minus the coefficient."""
    psi, discriminator = perceptrons((5, 4)), perceptrons((4, 6, 1), seed=1)
    inputs = draws(1, 8, 5)

    def loss(aligned: Tensor) -> Tensor:
        logits = discriminator(aligned).squeeze(2)
        return domain_loss(logits[:, :4], logits[:, 4:], "squared").sum()

    everything = psi.parameters() + discriminator.parameters()
    plain = torch.autograd.grad(loss(psi(inputs)), everything)
    turned = torch.autograd.grad(loss(reverse_gradient(psi(inputs), 0.3)), everything)
    split = len(psi.parameters())
    for ours, theirs in zip(turned[:split], plain[:split], strict=True):
        assert torch.allclose(ours, -0.3 * theirs, atol=1e-7)
    for ours, theirs in zip(turned[split:], plain[split:], strict=True):
        assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("widths", [(4, 6, 1), (4, 6, 5, 1)])
def test_gradient_penalty_equals_double_differentiation(widths: tuple[int, ...]) -> None:
    network = perceptrons(widths, members=3)
    inputs = draws(3, 7, 4).requires_grad_()
    outputs, hidden = network.forward(inputs)
    ours = input_gradient_penalty(network, hidden)
    (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    theirs = slope.square().sum(dim=2).mean(dim=1)
    assert torch.allclose(ours, theirs, atol=1e-6)
    for mine, other in zip(
        torch.autograd.grad(ours.sum(), network.weights, retain_graph=True),
        torch.autograd.grad(theirs.sum(), network.weights),
        strict=True,
    ):
        assert torch.allclose(mine, other, atol=1e-6)


def test_members_do_not_depend_on_how_many_there_are() -> None:
    alone, among = perceptrons((4, 6, 3), members=1), perceptrons((4, 6, 3), members=3)
    inputs = draws(1, 9, 4)
    assert torch.allclose(alone(inputs)[0], among(inputs)[0], atol=1e-6)
    streams = [RowStream(7, member_generators(0, members, 1)) for members in (1, 3)]
    taken = [stream.take(5, 4) for stream in streams]
    assert torch.equal(taken[0][:, 0], taken[1][:, 0])
    dropped = [
        Dropout(0.5, member_generators(0, members, 2))(torch.ones(members, 5, 6))
        for members in (1, 3)
    ]
    assert torch.equal(dropped[0][0], dropped[1][0])


def test_row_stream_passes_over_all_rows_before_any_comes_again() -> None:
    taken = RowStream(6, member_generators(3, 1, 0)).take(4, 3).flatten().tolist()
    assert sorted(taken[:6]) == sorted(taken[6:]) == list(range(6))


def test_dropout_keeps_the_mean_and_drops_the_share() -> None:
    kept = Dropout(0.5, member_generators(0, 1, 0))(torch.ones(1, 200, 100))
    assert set(kept.flatten().tolist()) == {0.0, 2.0}
    assert abs(float(kept.mean()) - 1.0) < 0.02


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_optimiser_uses_the_schedule_and_the_settings_that_it_names(name: str) -> None:
    """Equal to torch's optimiser with the betas, momentum and decay that the presets document."""
    ours, theirs = (draws(3, 2).requires_grad_() for _ in range(2))
    schedule = Schedule("adamw" if name == "adamw" else "sgd", 0.05, 0.1, batch=1, steps=9)
    mine = ScheduledOptimiser([([ours], 1.0)], schedule, 1)
    other: torch.optim.Optimizer
    if name == "adamw":
        other = torch.optim.AdamW([theirs], lr=0.05, betas=(0.5, 0.99), weight_decay=0.1)
    else:
        other = torch.optim.SGD([theirs], lr=0.05, momentum=0.9, weight_decay=0.1)
    for step in range(9):
        mine.step((ours**4).sum(), step)
        other.zero_grad()
        (theirs**4).sum().backward()  # type: ignore[no-untyped-call]
        other.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_rows_without_label_do_not_count_in_the_forecaster_loss() -> None:
    logits, labels = draws(1, 4, 3), torch.tensor([[0, -1, 2, -1]])
    for loss in ("squared", "cross-entropy"):
        known = forecaster_loss(logits[:, ::2], labels[:, ::2], loss)
        assert torch.allclose(forecaster_loss(logits, labels, loss), known)
    nothing = torch.full_like(labels, -1)
    assert float(forecaster_loss(logits, nothing, "squared")) == 0.0


def test_losses_are_the_papers() -> None:
    """A forecaster that does not know scores 1 - 1/K; a discriminator at one half scores 1/4."""
    even = torch.zeros(1, 5, 4)
    labels = torch.tensor([[0, 1, 2, 3, 0]])
    assert float(forecaster_loss(even, labels, "squared")) == pytest.approx(0.75)
    assert float(forecaster_loss(even, labels, "cross-entropy")) == pytest.approx(math.log(4))
    assert float(domain_loss(torch.zeros(1, 3), torch.zeros(1, 9), "squared")) == 0.25


def test_paper_schedule() -> None:
    settings = paper_settings(84, None)
    schedule = settings.schedule
    assert schedule.total_steps(50_000) == 500 * 250
    assert schedule.check_interval(50_000) == 250
    rates = [schedule.rate(epoch * 250, 50_000) for epoch in (0, 99, 100, 250, 499)]
    assert rates == [1e-3, 1e-3, 5e-4, 2.5e-4, 6.25e-5]
    for iteration in (0, 1000, 10_000):
        expected = 2 / (1 + math.exp(-10 * iteration / 10_000)) - 1
        assert settings.reversal(iteration) == pytest.approx(expected, abs=1e-12)
    assert settings.stop_discriminator_error == 0.10
    assert (settings.schedule.weight_decay, settings.forecaster_weight) == (5e-4, 1.5)


@pytest.mark.parametrize(
    ("n_features", "psi", "hidden"), [(84, 84, 84), (512, 256, 100), (2048, 1000, 1000)]
)
def test_paper_widths_follow_the_features(n_features: int, psi: int, hidden: int) -> None:
    settings = paper_settings(n_features, 5e-3)
    assert settings.psi_widths == (psi,)
    assert settings.discriminator_hidden == settings.discriminator.hidden == hidden
    assert settings.schedule.weight_decay == 5e-3


def test_learning_rate_warms_up() -> None:
    schedule = Schedule("adamw", 1.0, 0.0, batch=2, steps=10, warm_up=4)
    assert [schedule.rate(step, 100) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "best"}, "default, paper"),
        ({"members": 0}, "at least 1"),
        ({"weight_decay": 0.1}, "preset 'paper'"),
        ({"preset": "paper", "weight_decay": math.nan}, "weight decay of at least 0"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CovcalError, match=words):
        AdaptSettings(**options)


def test_projection_finds_the_directions_of_most_variance() -> None:
    scales = torch.linspace(5.0, 0.1, 60)
    source, target = draws(4000, 60) * scales, draws(900, 60, seed=1) * scales + 1.0
    projection = principal_components(lambda: iter([source]), lambda: iter([target]), 4)
    assert projection.components is not None
    pooled = np.cov(source.numpy().T, bias=True) + np.cov(target.numpy().T, bias=True)
    gap = (source.mean(0) - target.mean(0)).double().numpy() / 2
    values, vectors = np.linalg.eigh(pooled / 2 + np.outer(gap, gap))
    overlaps = np.abs(np.sum(projection.components.numpy() * vectors[:, ::-1][:, :4], axis=0))
    assert np.all(overlaps > 0.999)
    assert projection.scale == pytest.approx(math.sqrt(values[::-1][:4].mean()), rel=1e-3)


def test_projection_drops_directions_without_variance() -> None:
    flat = torch.cat([draws(50, 2), torch.ones(50, 3)], dim=1)
    projection = principal_components(lambda: iter([flat]), lambda: iter([flat[:20], flat[20:]]), 4)
    assert projection.arrays()["components"].shape == (5, 2)
    ones = torch.ones(5, 3)
    constant = principal_components(lambda: iter([ones]), lambda: iter([ones]), 2)
    assert torch.equal(constant(torch.ones(1, 3)), torch.zeros(1, 3))


def test_probe_equals_scikit_learns_regression() -> None:
    """Class-balanced, with the ridge on standardised inputs and none on the intercept."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    source, target = draws(300, 3), draws(120, 3, seed=1) + 0.7
    held_out = draws(20, 3, seed=2)
    ours = fit_probe(source.numpy(), target.numpy())(held_out.numpy())
    both = torch.cat([source, target]).double()
    centre, spread = both.mean(0), both.std(0)
    weights = np.repeat([0.5 / 300, 0.5 / 120], [300, 120])
    theirs = linear_model.LogisticRegression(C=1 / 1e-3, tol=1e-10, max_iter=1000)
    theirs.fit(((both - centre) / spread).numpy(), np.repeat([1, 0], [300, 120]), weights)
    expected = theirs.decision_function(((held_out.double() - centre) / spread).numpy())
    assert np.allclose(ours, expected, atol=1e-4)


def test_balanced_accuracy_weighs_domains_alike() -> None:
    assert balanced_accuracy(np.array([1.0, 1.0, -1.0, -1.0]), np.array([-1.0])) == 0.75


@pytest.mark.parametrize(
    ("ess_share", "mean_weight", "enough"),
    [
        (0.3, 1.0, True),
        (0.9, 0.91, True),
        (0.9, 1.09, True),
        (0.29, 1.0, False),
        (0.9, 0.89, False),
        (0.9, 1.11, False),
    ],
)
def test_training_stops_on_effective_rows_and_a_mean_weight_near_one(
    ess_share: float, mean_weight: float, enough: bool
) -> None:
    check = {"step": 300.0, "ess_share": ess_share, "mean_weight": mean_weight}
    assert domains_overlap(check, 0.3) is enough
    assert not domains_overlap(check, None)
    assert not domains_overlap({"step": 100.0}, 0.3)
