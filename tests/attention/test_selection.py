import math

import pytest
import torch

from captioner.attention.selection import (
    Argmax,
    Sample,
    Soft,
    chosen,
    entropy,
    inverse_transform,
    selection_rule,
)
from captioner.errors import UserError

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
SCORES = WEIGHTS.log()[None, None]
VALUES = torch.tensor([2.0, 6.0, 10.0], dtype=torch.float64)[None, :, None]


def test_soft_is_the_expected_region():
    selection = Soft()(SCORES, VALUES)
    assert selection.context.item() == pytest.approx(4.8)
    assert selection.selected is None and selection.log_prob is None


def test_sample_takes_the_first_region_whose_cumulative_weight_exceeds_u():
    selection = Sample()(SCORES, VALUES, torch.tensor([[[0.65]]], dtype=torch.float64))
    assert selection.context.item() == 6.0
    assert selection.selected.tolist() == [[[1]]]
    assert selection.log_prob.item() == pytest.approx(math.log(0.3))


def test_hard_is_soft_on_average_but_not_through_a_decoder_that_is_not_linear():
    """Squared: the mean of the squares is 32.8, the square of the mean 23.04."""
    n = 1000
    u = (torch.arange(n, dtype=torch.float64) + 0.5).view(1, n, 1) / n
    context = Sample()(SCORES.expand(1, n, 3), VALUES, u).context
    soft = Soft()(SCORES, VALUES).context.item()
    assert soft == pytest.approx(4.8) and context.mean().item() == pytest.approx(4.8)
    assert context.square().mean().item() == pytest.approx(32.8)
    assert soft**2 == pytest.approx(23.04)


@pytest.mark.parametrize(
    ("u", "region"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (1 - 1e-16, 2)]
)
def test_inverse_transform_boundaries(u, region):
    assert inverse_transform(WEIGHTS, torch.tensor(u, dtype=torch.float64)).item() == region


def test_sampled_frequencies_match_the_weights():
    u = torch.rand(1, 30_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    selected = Sample()(SCORES.expand(1, 30_000, 3), VALUES, u).selected
    counts = torch.bincount(selected.flatten(), minlength=3).double()
    expected = 30_000 * WEIGHTS
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 9.21  # the 99th percentile with two degrees of freedom


def test_sample_log_prob_has_the_gradient_of_log_softmax():
    scores = SCORES.clone().requires_grad_()
    u = torch.tensor([[[0.65]]], dtype=torch.float64)
    Sample()(scores, VALUES, u).log_prob.sum().backward()
    expected = torch.tensor([-0.5, 0.7, -0.2], dtype=torch.float64)
    torch.testing.assert_close(scores.grad[0, 0], expected)


def test_argmax_takes_the_first_of_equals():
    scores = torch.tensor([[[1.0, 3.0, 3.0]]])
    selection = Argmax()(scores, torch.tensor([[[2.0], [6.0], [10.0]]]))
    assert selection.selected.item() == 1 and selection.context.item() == 6.0


def test_each_query_selects_from_its_own_photograph():
    values = torch.arange(12.0).reshape(2, 3, 2)
    scores = torch.tensor([[[9.0, 0, 0], [0, 0, 9.0]], [[0, 9.0, 0], [9.0, 0, 0]]])
    context = Argmax()(scores, values).context
    assert context.tolist() == [[[0, 1], [4, 5]], [[8, 9], [6, 7]]]


def test_entropy_of_extreme_scores_is_a_number():
    scores = torch.tensor([[6e4, -6e4, 0.0], [0.0, 0.0, 0.0], [0.0, -torch.inf, 0.0]])
    torch.testing.assert_close(entropy(scores), torch.tensor([0.0, math.log(3), math.log(2)]))


def test_an_underflowing_weight_has_a_finite_log_probability():
    scores = torch.tensor([[[0.0, -200.0]]], requires_grad=True)
    log_weights = scores.log_softmax(-1)
    selection = chosen(log_weights, log_weights.exp(), torch.tensor([[[2.0], [6.0]]]), torch.tensor([[1]]))
    selection.log_prob.sum().backward()
    assert selection.weights[0, 0, 1].item() == 0.0 and selection.context.item() == 6.0
    assert selection.log_prob.item() == pytest.approx(-200.0)
    assert scores.grad[0, 0].tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 1e-7])
def test_a_weight_that_underflows_is_never_drawn(u):
    scores = torch.tensor([[[-200.0, 0.0, -200.0]]])
    selection = Sample()(scores, torch.tensor([[[2.0], [6.0], [10.0]]]), torch.tensor([[[u]]]))
    assert selection.selected.item() == 1 and selection.log_prob.item() == 0.0


def test_right_and_random_ties_of_argmax():
    scores, values = torch.tensor([[[3.0, 1.0, 3.0]]]), torch.tensor([[[2.0], [6.0], [10.0]]])
    assert Argmax("right")(scores, values).selected.item() == 2
    drawn = [Argmax("random")(scores, values, torch.tensor([[[u]]])).selected.item() for u in (0.49, 0.51)]
    assert drawn == [0, 2]


def test_top_renormalises_the_likeliest():
    selection = selection_rule("top:2")(SCORES, VALUES)
    assert selection.context.item() == pytest.approx((0.5 * 2 + 0.3 * 6) / 0.8)
    assert selection.selected.tolist() == [[[0, 1]]] and selection.log_prob is None


def test_a_set_is_drawn_without_replacement():
    u = torch.tensor([[[0.65, 0.75]]], dtype=torch.float64)
    selection = selection_rule("sample:2")(SCORES, VALUES, u)
    assert selection.selected.tolist() == [[[1, 2]]]  # of 5/7 and 2/7 that are left, 0.75 is beyond the first
    assert selection.context.item() == pytest.approx((0.3 * 6 + 0.2 * 10) / 0.5)
    assert selection.log_prob.item() == pytest.approx(math.log(0.3 * 0.2 / 0.7))


def test_a_region_that_is_drawn_twice_counts_once():
    u = torch.tensor([[[0.65, 0.1, 0.7]]], dtype=torch.float64)
    selection = selection_rule("hard-soft:3")(SCORES, VALUES, u)
    assert selection.selected.tolist() == [[[1, 0, -1]]]
    assert selection.context.item() == pytest.approx((0.5 * 2 + 0.3 * 6) / 0.8)
    assert selection.log_prob.item() == pytest.approx(math.log(0.3 * 0.5 * 0.3))


@pytest.mark.parametrize(
    ("p", "regions"), [(0.1, [0, -1, -1]), (0.6, [0, 1, -1]), (0.81, [0, 1, 2]), (1.0, [0, 1, 2])]
)
def test_a_threshold_takes_the_smallest_set_that_reaches_it(p, regions):
    assert selection_rule(f"threshold:{p}")(SCORES, VALUES).selected.tolist() == [[regions]]


@pytest.mark.parametrize(
    "name", ["argmax:right", "argmax:random", "top:4", "sample:4", "mean:5", "threshold:0.9"]
)
def test_a_rule_is_known_by_its_name(name):
    assert selection_rule(name).name == name


@pytest.mark.parametrize("name", ["threshold:0.9999999", "threshold:0.00001", "threshold:1", "top:04"])
def test_a_rules_name_gives_the_same_rule(name):
    rule = selection_rule(name)
    assert selection_rule(rule.name) == rule


@pytest.mark.parametrize("name", ["top:0", "mean:-1", "threshold:2", "threshold:0", "sample:x", "argmax:up"])
def test_a_number_that_cannot_be_is_refused_by_the_rules_name(name):
    with pytest.raises(UserError, match=name):
        selection_rule(name)


@pytest.mark.parametrize("name", ["top:4", "sample:4", "hard-soft:4"])
def test_more_regions_than_there_are_are_refused(name):
    with pytest.raises(UserError, match="4 regions cannot be selected of 3"):
        selection_rule(name)(SCORES, VALUES)


def test_unknown_rule_names_the_known_ones():
    with pytest.raises(UserError, match=r"'softest'.*soft, sample, argmax"):
        selection_rule("softest")
