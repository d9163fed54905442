"""What holds for every selection rule, whatever the scores: extreme, masked, few or equal."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.attention.selection import NONE, by_head, entropy, selection_rule

NAMES = (
    *("soft", "sample", "argmax", "argmax:right", "argmax:random", "top:1", "top:2", "sample:2"),
    *("hard-soft:2", "hard-soft:1", "mean:3", "threshold:0.7", "threshold:1"),
)
K = {"top:2": 2, "sample:2": 2, "hard-soft:2": 2}
SCORE = st.one_of(st.floats(-3, 3, width=16), st.sampled_from([0.0, 6e4, -6e4, float("-inf")]))


@st.composite
def cases(draw, dtype=None):
    """A rule, scores (2, 3, L) with at least one finite for each query, values (2, L, 2), and draws."""
    name = draw(st.sampled_from(NAMES))
    regions = draw(st.integers(K.get(name, 1), 6))
    drawn = draw(st.lists(SCORE, min_size=6 * regions, max_size=6 * regions))
    scores = torch.tensor(drawn).view(2, 3, regions)
    safe = draw(st.lists(st.integers(0, regions - 1), min_size=6, max_size=6))
    at = torch.tensor(safe).view(2, 3, 1)
    finite = scores.gather(-1, at).clamp(min=-6e4)
    precision = dtype or draw(st.sampled_from([torch.float16, torch.float32, torch.float64]))
    scores = scores.scatter(-1, at, finite).to(precision)
    values = torch.arange(4.0 * regions).view(2, regions, 2).to(scores.dtype)
    rule = selection_rule(name)
    chance = st.one_of(st.floats(0, 1, exclude_max=True, width=32), st.sampled_from([0.0, 1 - 2**-24]))
    u = torch.tensor(draw(st.lists(chance, min_size=6 * rule.draws, max_size=6 * rule.draws)))
    return rule, scores, values, u.view(2, 3, rule.draws) if rule.draws else None


@given(cases())
@settings(max_examples=400, deadline=None)
def test_a_selection_is_made_of_regions_that_may_be_looked_at(case):
    rule, scores, values, u = case
    found = rule(scores, values, u)
    masked = scores.isneginf()
    assert found.context.isfinite().all() and found.weights.isfinite().all()
    total = found.weights.sum(-1).float()
    assert (total - 1).abs().max() < (5e-3 if scores.dtype == torch.float16 else 1e-5)
    assert (found.weights[masked] == 0).all()
    if found.selected is not None:
        there = found.selected != NONE
        assert there.any(-1).all()
        assert not masked.gather(-1, found.selected.clamp(min=0))[there].any()
        if rule.name.partition(":")[0] != "mean":
            for regions in found.selected.flatten(0, 1).tolist():
                kept = [region for region in regions if region != NONE]
                assert len(kept) == len(set(kept))
    if found.log_prob is not None:
        assert (found.log_prob <= 0).all() and found.log_prob.isfinite().all()
    there = values[:, None].float().expand(-1, 3, -1, -1)
    low = there.masked_fill(masked[..., None], torch.inf).amin(2)
    high = there.masked_fill(masked[..., None], -torch.inf).amax(2)
    assert (found.context >= low - 0.05).all() and (found.context <= high + 0.05).all()


@given(cases())
@settings(max_examples=200, deadline=None)
def test_gradients_are_numbers(case):
    rule, scores, values, u = case
    scores, values = scores.requires_grad_(), values.requires_grad_()
    found = rule(scores, values, u)
    total = found.context.sum() + found.weights.square().sum() + entropy(scores).sum()
    if found.log_prob is not None:
        total = total + found.log_prob.sum()
    total.backward()
    assert values.grad.isfinite().all()
    assert scores.grad is None or scores.grad.isfinite().all()


@given(cases(torch.float64))
@settings(max_examples=100, deadline=None)
def test_a_batch_is_what_one_by_one_is(case):
    rule, scores, values, u = case
    whole = rule(scores, values, u)
    for image in range(2):
        for n in range(3):
            one = rule(
                scores[image, n].view(1, 1, -1),
                values[image : image + 1],
                None if u is None else u[image, n].view(1, 1, -1),
            )
            torch.testing.assert_close(one.context[0, 0], whole.context[image, n])
            if whole.selected is not None:
                assert one.selected[0, 0].tolist() == whole.selected[image, n].tolist()
            if whole.log_prob is not None:
                torch.testing.assert_close(one.log_prob[0, 0], whole.log_prob[image, n])


@given(
    st.sampled_from(["soft", "argmax", "argmax:right", "top:2", "threshold:0.7", "threshold:1"]),
    st.integers(0, 2**31),
    st.permutations(range(6)),
)
@settings(max_examples=150, deadline=None)
def test_permuted_regions_give_the_permuted_selection(name, seed, order):
    """Of rules without chance; no two scores are equal but masked ones."""
    g = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(2, 3, 6, generator=g, dtype=torch.float64)
    scores[1, :, 1:4] = -torch.inf
    values, rule = torch.randn(2, 6, 2, generator=g, dtype=torch.float64), selection_rule(name)
    found, permuted = rule(scores, values), rule(scores[..., order], values[:, order])
    torch.testing.assert_close(permuted.context, found.context)
    torch.testing.assert_close(permuted.weights, found.weights[..., order])
    if found.selected is not None:
        back = torch.tensor([*order, NONE])  # the last place is that of NONE
        assert back[permuted.selected].tolist() == found.selected.tolist()


@given(st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_heads_are_rules_of_their_own(heads, seed):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, heads, 5, generator=g, dtype=torch.float64)
    values = torch.randn(2, heads, 5, 2, generator=g, dtype=torch.float64)
    rule = selection_rule("sample:2")
    u = torch.rand(2, 3, heads * 2, generator=g)
    joint = by_head(rule, scores, values, u)
    alone = [rule(scores[:, :, h], values[:, h], u[..., 2 * h : 2 * h + 2]) for h in range(heads)]
    torch.testing.assert_close(joint.context, torch.cat([one.context for one in alone], -1))
    torch.testing.assert_close(joint.weights, torch.stack([one.weights for one in alone]).mean(0))
    torch.testing.assert_close(joint.log_prob, torch.stack([one.log_prob for one in alone]).sum(0))
    assert torch.equal(joint.selected, torch.cat([one.selected for one in alone], -1))


WEIGHTS = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])


@pytest.mark.parametrize("name", ["sample", "mean:3", "sample:1", "hard-soft:1"])
def test_regions_are_drawn_as_often_as_they_weigh(name):
    rule, n = selection_rule(name), 40_000
    u = torch.rand(1, n, 1, generator=torch.Generator().manual_seed(0))
    selected = rule(WEIGHTS.log().expand(1, n, 5), torch.zeros(1, 5, 1), u).selected
    assert chi_square(torch.bincount(selected.flatten(), minlength=5), n * WEIGHTS) < 13.28


def test_sets_are_drawn_as_often_as_their_log_probability_says():
    rule, n = selection_rule("sample:2"), 40_000
    u = torch.rand(1, n, 2, generator=torch.Generator().manual_seed(0))
    found = rule(WEIGHTS.log().expand(1, n, 5), torch.zeros(1, 5, 1), u)
    pairs = found.selected[0] @ torch.tensor([5, 1])
    kinds, counts = pairs.unique(return_counts=True)
    assert len(kinds) == 20
    likely = torch.stack([found.log_prob[0][pairs == kind][0].exp() for kind in kinds])
    assert likely.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert chi_square(counts, n * likely) < 36.19  # the 99th percentile with 19 degrees of freedom


def test_equals_are_drawn_alike():
    scores = torch.tensor([2.0, 1.0, 2.0, 2.0]).expand(1, 30_000, 4)
    u = torch.rand(1, 30_000, 1, generator=torch.Generator().manual_seed(0))
    selected = selection_rule("argmax:random")(scores, torch.zeros(1, 4, 1), u).selected
    counts = torch.bincount(selected.flatten(), minlength=4)
    assert counts[1] == 0 and chi_square(counts[[0, 2, 3]], torch.full((3,), 10_000.0)) < 9.21


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum().item()
