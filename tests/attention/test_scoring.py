"""Scoring functions beside their papers' formulas, written out region by region."""

import pytest
import torch

from captioner.attention.scoring import SCORING, check_mask, region_places, scoring_function
from captioner.attention.selection import Soft, selection_rule
from captioner.errors import UserError
from captioner.model.decoder import Decoder

H, F, A = 6, 6, 8  # equal, for dot
NAMES = ("additive", "dot", "general", "concat", "scaled-dot", "multi-head:2", "local:0.3")


def make(name):
    torch.manual_seed(0)
    return scoring_function(name, H, F, A).double()


def additive(scoring, h, a, place):
    query, key = scoring.query, scoring.key
    inner = query.weight @ h + key.weight @ a
    return scoring.v @ torch.tanh(inner if query.bias is None else inner + query.bias + key.bias)


def concat(scoring, h, a, place):
    joint = torch.cat([scoring.query.weight, scoring.key.weight], 1)
    return scoring.v @ torch.tanh(joint @ torch.cat([h, a]))


def local(scoring, h, a, place):
    first, _, last, _ = scoring.centre
    centre = torch.sigmoid(last.weight @ torch.tanh(first.weight @ h))
    return additive(scoring, h, a, place) - ((place - centre) ** 2).sum() / (2 * 0.3**2)


def multi_head(scoring, h, a, place):
    query, key = scoring.query(h).split(A // scoring.heads), scoring.key(a).split(A // scoring.heads)
    size = A // scoring.heads
    return torch.stack([q @ k / size**0.5 for q, k in zip(query, key, strict=True)])


FORMULAS = {
    "additive": additive,
    "dot": lambda scoring, h, a, place: h @ a,
    "general": lambda scoring, h, a, place: h @ scoring.key.weight @ a,
    "concat": concat,
    "scaled-dot": multi_head,
    "multi-head:2": multi_head,
    "local:0.3": local,
}


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_papers(name):
    scoring = make(name)
    h, a = torch.randn(2, 3, H).double(), torch.randn(2, 4, F).double()
    places = torch.rand(2, 4, 2).double()
    scores = scoring(h, scoring.keys(a, places))
    assert scores.shape == (2, 3, scoring.heads, 4) and scoring.name == name
    for image in range(2):
        for n in range(3):
            expected = [FORMULAS[name](scoring, h[image, n], a[image, i], places[image, i]) for i in range(4)]
            expected = torch.stack(expected, -1).view(scoring.heads, 4)
            torch.testing.assert_close(scores[image, n], expected)


def test_every_name_in_the_list_has_a_formula_here():
    assert [name.partition(":")[0] for name in SCORING] == [name.partition(":")[0] for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", ["soft", "argmax", "sample:2", "hard-soft:3", "threshold:0.9"])
def test_every_rule_runs_on_every_scoring_function(name, rule):
    """And permuted regions give the same words; weights are distributions over the unmasked regions."""
    torch.manual_seed(0)
    decoder = Decoder(9, 4, F, 5, H, A, name, dropout=0.0).double().eval()
    features, places = torch.randn(2, 6, 4).double(), region_places(2, 3).double()
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    words, chosen = torch.tensor([[5, 6, 7], [5, 6, 7]]), selection_rule(rule)
    memory = decoder.read(features, places, mask)
    state = decoder.start(memory, 3)
    log_probs, _, step = decoder.step(words, state, memory, chosen)
    weights = step.selection.weights
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3).double())
    assert (weights[1][:, ~mask[1]] == 0).all() and log_probs.isfinite().all()
    if step.selection.selected is not None:
        assert set(step.selection.selected[1].flatten().tolist()) <= {-1, 0, 2, 3, 5}
    if not chosen.draws:
        again = decoder.read(features[:, order], places[order], mask[:, order])
        permuted, _, other = decoder.step(words, decoder.start(again, 3), again, chosen)
        torch.testing.assert_close(permuted, log_probs)
        torch.testing.assert_close(other.selection.weights, weights[..., order])


def test_masked_regions_are_as_if_they_were_not_there():
    torch.manual_seed(0)
    decoder = Decoder(9, 4, F, 5, H, A, dropout=0.0, gist=0.4).double()
    features = torch.randn(1, 6, 4).double()
    there = torch.tensor([0, 2, 3, 5])
    mask = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, there, True)
    few, masked = decoder.read(features[:, there]), decoder.read(features, mask=mask)
    word = torch.tensor([[5]])
    expected, state, _ = decoder.step(word, decoder.start(few), few, Soft())
    found, other, _ = decoder.step(word, decoder.start(masked), masked, Soft())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(other.c, state.c)


def test_heads_select_each_for_itself_from_their_part_of_the_values():
    """Two heads by hand: their contexts are joined, their weights' mean is shown."""
    torch.manual_seed(0)
    decoder = Decoder(9, 4, F, 5, H, A, "multi-head:2", dropout=0.0).double()
    features = torch.randn(1, 5, 4).double()
    memory = decoder.read(features)
    values = decoder.normalise(decoder.project(features))[0]
    _, _, step = decoder.step(torch.tensor([[5]]), decoder.start(memory), memory, selection_rule("argmax"))
    first, second = step.scores[0, 0].argmax(-1).tolist()
    assert first != second
    torch.testing.assert_close(
        step.selection.context[0, 0], torch.cat([values[first, :3], values[second, 3:]])
    )
    torch.testing.assert_close(step.selection.weights[0, 0], step.scores[0, 0].softmax(-1).mean(0))
    assert step.selection.selected.flatten().tolist() == [first, second]


def test_the_window_looks_where_its_centre_is():
    """With a narrow window the weight is on the region nearest to the predicted centre."""
    scoring = scoring_function("local:0.05", H, F, A)
    places = region_places(3, 4).expand(1, 12, 2)
    with torch.no_grad():
        scoring.v.zero_()
        h = torch.randn(1, 5, H)
        centres = scoring.centre(10 * h)
        weights = scoring(10 * h, scoring.keys(torch.randn(1, 12, F), places)).softmax(-1)
    nearest = torch.cdist(centres, places).argmin(-1)
    assert weights[:, :, 0].argmax(-1).tolist() == nearest.tolist()


def test_places_are_the_middles_of_cells():
    expected = [[row, col] for row in (1 / 4, 3 / 4) for col in (1 / 6, 1 / 2, 5 / 6)]
    torch.testing.assert_close(region_places(2, 3), torch.tensor(expected))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bilinear", "'bilinear'.*additive, dot, general, concat, scaled-dot, multi-head:HEADS, local:WIDTH"),
        ("multi-head", "'multi-head'.*multi-head:HEADS"),
        ("multi-head:0", "HEADS in the scoring function 'multi-head:0' must be from 1 to 1000, not 0"),
        ("multi-head:3", "3 heads cannot share attention_size, 8"),
        ("local:0", "WIDTH in the scoring function 'local:0' must be above 0"),
        ("local:-1", "WIDTH in the scoring function 'local:-1' must be above 0"),
    ],
)
def test_what_cannot_be_made_is_said(name, message):
    with pytest.raises(UserError, match=message):
        scoring_function(name, H, F, A)


def test_sizes_that_do_not_fit():
    with pytest.raises(UserError, match=r"hidden_size \(6\) and feature_size \(5\) must be equal"):
        scoring_function("dot", 6, 5, 8)
    with pytest.raises(UserError, match="4 heads cannot share the regions' size, 6"):
        scoring_function("multi-head:4", 6, 6, 8)
    with pytest.raises(UserError, match="needs the regions' places"):
        make("local:0.3").keys(torch.zeros(1, 2, F).double())


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.tensor([[True, False], [False, False]]), r"all regions of photographs \[1\] are masked"),
        (torch.tensor([[True, False]]), r"\(2, 2\) of torch.bool, not \(1, 2\)"),
        (torch.ones(2, 2), "not .* of torch.float32"),
    ],
)
def test_masks_that_cannot_be(mask, message):
    with pytest.raises(UserError, match=message):
        check_mask(mask, torch.zeros(2, 2, 3))
