"""The estimators against exact enumeration of all selections of a small, real decoder."""

import itertools
import math

import pytest
import torch

from captioner.attention.estimators import (
    ExpectationMixing,
    GumbelSoftmax,
    MovingAverage,
    Reinforce,
    annealed,
    to_go,
)
from captioner.attention.selection import Rule, Sample, Soft, entropy, selection_rule
from captioner.errors import UserError
from captioner.model.decoder import Decoder
from captioner.training.objectives import (
    hard_objective,
    self_critical_objective,
    soft_objective,
    word_log_probs,
)

WORDS = torch.tensor([[[1, 4, 5, 2]]])
LENGTHS = torch.tensor([[3]])
REGIONS, STEPS = 3, 3


class Path(Rule):
    """Draws of given regions, one step a call, with the probabilities that the rule gives them.

    selected: (B x heads, n, T, k). The uniform draws are the middles of the regions' intervals.
    """

    def __init__(self, selected, rule=None):
        self.rule, self.steps = rule or Sample(), iter(selected.unbind(2))
        self.replaced = not self.rule.name.startswith("sample:")

    name = property(lambda self: self.rule.name)
    draws = property(lambda self: self.rule.draws)

    def __call__(self, scores, values, u=None):
        left, middles = scores.detach(), []
        for region in next(self.steps)[:, : scores.shape[1]].unbind(-1):
            weights = left.softmax(-1)
            at = region.expand(weights.shape[:2])[..., None]
            middles.append(weights.cumsum(-1).gather(-1, at) - weights.gather(-1, at) / 2)
            if not self.replaced:
                left = left.scatter(-1, at, -torch.inf)
        return self.rule(scores, values, torch.cat(middles, -1))


def all_paths(choices, steps=STEPS):
    """(1, paths, T, k) of each step's choices, tuples of k regions."""
    return torch.tensor(list(itertools.product(choices, repeat=steps)))[None]


PATHS = all_paths([(0,), (1,), (2,)])


def small(scoring="additive"):
    torch.manual_seed(1)
    decoder = Decoder(6, 4, None, 5, 6, 6, scoring, dropout=0.0).double()
    with torch.no_grad():
        for parameter in decoder.scoring.parameters():
            parameter.mul_(3)  # selections matter, and no two weights are alike
    return decoder


@pytest.fixture
def decoder():
    return small()


@pytest.fixture
def features():
    return torch.randn(1, REGIONS, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def read(decoder, features, rule, n=1):
    """The caption read n times for each photograph."""
    words, lengths = WORDS.expand(len(features), n, -1), LENGTHS.expand(len(features), n)
    return decoder(decoder.read(features), words, lengths, rule)


def gradient(decoder, scalar):
    parameters = list(decoder.parameters())
    parts = torch.autograd.grad(scalar, parameters, allow_unused=True, retain_graph=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, parts, strict=True)]
    )


def assert_same(estimated, expected):
    """Within 1e-8 of the largest."""
    assert expected.abs().max() > 1e-3
    assert (estimated - expected).abs().max() <= 1e-8 * expected.abs().max()


def estimate(decoder, features, reinforce, lambda_r=1.0, lambda_e=0.0, mixing=False):
    """The estimator's gradient, the mean over all pairs of paths, two draws, and the coin's two sides.

    Returns it and the gradient of the same by autograd from the enumerated expectation.
    """
    n = PATHS.shape[1]
    pairs = torch.tensor(list(itertools.product(range(n), repeat=2)))
    selected = PATHS[:, pairs.flatten()]
    coins = torch.tensor([False, True]) if mixing else torch.tensor([False])
    images = features.expand(len(coins), -1, -1)
    rule = Path(selected.expand(len(coins), -1, -1, -1))
    transcript = read(decoder, images, ExpectationMixing(coins, rule), 2 * len(pairs))

    def by_draw(steps):
        return transcript.padded(steps).unflatten(1, (-1, 2))

    reading = None
    if reinforce.baseline in ("argmax", "soft"):
        other = read(decoder, images, selection_rule(reinforce.baseline))
        reading = other.padded(word_log_probs(other)).detach()[:, :, None]
    log_probs = by_draw(word_log_probs(transcript))
    present = torch.ones_like(log_probs, dtype=torch.bool)
    surrogate, _, _ = reinforce(
        by_draw(transcript.log_prob),
        log_probs.detach(),
        present,
        present & ~coins[:, None, None, None],
        by_draw(transcript.states),
        reading,
    )
    uncertainty = by_draw(entropy(transcript.scores).sum(-1)).sum(-1)
    objective = log_probs.sum(-1) + lambda_r * surrogate + lambda_e * uncertainty
    drawn = read(decoder, features, Path(PATHS), n)
    p = drawn.per_caption(drawn.log_prob).exp()
    assert p.sum().item() == pytest.approx(1.0, rel=1e-12)
    pair_p = p.detach()[0, pairs].prod(-1)
    estimated = gradient(decoder, (pair_p[:, None] * objective).sum() / 2 / len(coins))

    rewards = drawn.per_caption(word_log_probs(drawn))
    h = drawn.per_caption(entropy(drawn.scores).sum(-1))
    held = p.detach()
    exact = (held * rewards + lambda_r * p * rewards.detach() + lambda_e * held * h).sum()
    if mixing:
        soft = read(decoder, features, Soft())
        exact = exact + word_log_probs(soft).sum() + lambda_e * entropy(soft.scores).sum()
    return estimated, gradient(decoder, exact / len(coins)), p


def estimator(reward, baseline, discount=1.0):
    """With a baseline that is far from zero."""
    reinforce = Reinforce(reward, baseline, discount, state_size=6).double()
    reinforce.average.value.copy_(torch.linspace(-4.0, -5.0, len(reinforce.average.value)))
    reinforce.average.started.fill_(True)
    if reinforce.learned is not None:
        torch.nn.init.normal_(reinforce.learned.weight)
    return reinforce


UNBIASED = ("none", "average", "learned", "leave-one-out", "argmax", "soft")


@pytest.mark.parametrize("mixing", [False, True], ids=["drawn", "mixed"])
@pytest.mark.parametrize("lambda_e", [0.0, 0.3])
@pytest.mark.parametrize("lambda_r", [1.0, 0.4])
@pytest.mark.parametrize("baseline", UNBIASED)
@pytest.mark.parametrize("reward", ["whole", "to-go"])
def test_reinforce_is_exact(decoder, features, reward, baseline, lambda_r, lambda_e, mixing):
    """The mean over all 27 paths by their probability, pairs of them for two draws: the exact gradient."""
    reinforce = estimator(reward, baseline)
    estimated, expected, _ = estimate(decoder, features, reinforce, lambda_r, lambda_e, mixing)
    assert_same(estimated, expected)


def test_what_is_exact_is_the_gradient_of_the_expected_log_likelihood(decoder, features):
    """With lambda_r = 1 and no entropy, by finite differences of E[log p(y | s, a)] itself."""
    estimated, _, _ = estimate(decoder, features, estimator("to-go", "leave-one-out"))

    def expectation():
        with torch.no_grad():
            drawn = read(decoder, features, Path(PATHS), 27)
            return (drawn.per_caption(drawn.log_prob).exp() * drawn.per_caption(word_log_probs(drawn))).sum()

    for parameter, start in (
        (decoder.scoring.v, "scoring.v"),
        (decoder.from_hidden.weight, "from_hidden.weight"),
    ):
        names = [name for name, _ in decoder.named_parameters()]
        first = sum(p.numel() for p in list(decoder.parameters())[: names.index(start)])
        for i in range(3):
            sides = []
            for shift in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter.view(-1)[i] += shift
                    sides.append(expectation().item())
                    parameter.view(-1)[i] -= shift
            slope = (sides[0] - sides[1]) / 2e-6
            assert estimated[first + i].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("reward", ["whole", "to-go"])
def test_a_mean_that_mixes_a_draw_with_itself_shrinks_the_gradient(decoder, features, reward):
    """Of two draws to a half of the score function's part: biased, by exactly that."""
    estimated, _, p = estimate(decoder, features, estimator(reward, "mean"))
    drawn = read(decoder, features, Path(PATHS), 27)
    rewards = drawn.per_caption(word_log_probs(drawn))
    p = drawn.per_caption(drawn.log_prob).exp()
    half = gradient(decoder, (p.detach() * rewards + p * rewards.detach() / 2).sum())
    whole = gradient(decoder, (p * rewards).sum())
    assert_same(estimated, half)
    assert (half - whole).norm() > 0.01 * whole.norm()


def test_a_discount_is_biased_and_less_the_nearer_it_is_to_one(decoder, features):
    def bias(discount):
        estimated, expected, _ = estimate(decoder, features, estimator("to-go", "none", discount))
        return ((estimated - expected).norm() / expected.norm()).item()

    assert bias(1.0) < 1e-8 < 1e-3 < bias(0.9) < bias(0.5)


SETS = {
    "sample:2": list(itertools.permutations(range(REGIONS), 2)),
    "hard-soft:2": list(itertools.product(range(REGIONS), repeat=2)),
}


@pytest.mark.parametrize(("name", "choices"), SETS.items(), ids=SETS)
@pytest.mark.parametrize("reward", ["whole", "to-go"])
def test_reinforce_is_exact_for_sets(decoder, features, name, choices, reward):
    """All 6^3 or 9^3 paths: the words' likelihood has a gradient through the renormalised weights, too."""
    paths = all_paths(choices)
    assert_exact(decoder, features, Path(paths, selection_rule(name)), paths.shape[1], reward)


@pytest.mark.parametrize("scoring", ["dot", "general", "concat", "scaled-dot", "local:0.4"])
def test_reinforce_is_exact_with_every_scoring_function(features, scoring):
    torch.manual_seed(1)
    decoder = Decoder(6, 4, 6, 5, 6, 6, scoring, dropout=0.0).double()
    assert_exact(decoder, features, Path(PATHS), 27, "to-go", places=torch.rand(REGIONS, 2))


def test_reinforce_is_exact_for_heads_that_select_each_for_itself(features):
    """Two heads of two steps: 9^2 paths."""
    paths = all_paths(list(itertools.product(range(REGIONS), repeat=2)), steps=2)
    of_heads = paths[0].permute(2, 0, 1)[..., None]
    decoder = small("multi-head:2")
    assert_exact(decoder, features, Path(of_heads), paths.shape[1], "to-go", steps=2)


def assert_exact(decoder, features, rule, n, reward, places=None, steps=STEPS):
    words, lengths = WORDS[..., : steps + 1].expand(1, n, -1), torch.full((1, n), steps)
    drawn = decoder(decoder.read(features, places), words, lengths, rule)
    p = drawn.per_caption(drawn.log_prob).exp()
    assert p.sum().item() == pytest.approx(1.0, rel=1e-12)
    log_probs = word_log_probs(drawn)
    rewards = drawn.padded(log_probs.detach())[:, :, None]
    present = torch.ones_like(rewards, dtype=torch.bool)
    reinforce = estimator(reward, "average")
    surrogate, _, _ = reinforce(drawn.padded(drawn.log_prob)[:, :, None], rewards, present, present)
    objective = drawn.per_caption(log_probs) + surrogate.squeeze(2)
    estimated = gradient(decoder, (p.detach() * objective).sum())
    assert_same(estimated, gradient(decoder, (p * drawn.per_caption(log_probs)).sum()))


def attention_gradient(decoder, scalar):
    parts = torch.autograd.grad(scalar, list(decoder.scoring.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


def attention_gradients(decoder, features, reinforce):
    """Each path's gradient (27, P) of the attention's parameters, and the paths' probabilities."""
    drawn = read(decoder, features, Path(PATHS), 27)
    log_probs = word_log_probs(drawn)
    rewards = drawn.padded(log_probs.detach())[:, :, None]
    present = torch.ones_like(rewards, dtype=torch.bool)
    reading = None
    if reinforce.baseline in ("argmax", "soft"):
        other = read(decoder, features, selection_rule(reinforce.baseline))
        reading = other.padded(word_log_probs(other)).detach()[:, :, None]
    surrogate, _, _ = reinforce(
        drawn.padded(drawn.log_prob)[:, :, None], rewards, present, present, reading=reading
    )
    objective = (drawn.per_caption(log_probs) + surrogate.squeeze(2)).flatten()
    rows = [attention_gradient(decoder, one) for one in objective]
    return torch.stack(rows), drawn.per_caption(drawn.log_prob).exp().detach().flatten()


def variance(gradients, p):
    mean = p @ gradients
    return (p @ (gradients - mean).square()).sum().item()


def test_baselines_and_rewards_to_go_reduce_the_variance(decoder, features):
    def spread(reward, baseline):
        reinforce = Reinforce(reward, baseline).double()
        drawn = read(decoder, features, Path(PATHS), 27)
        p = drawn.per_caption(drawn.log_prob).exp().detach()
        each = (p.flatten()[:, None] * drawn.padded(word_log_probs(drawn))[0].detach()).sum(0)
        if reward == "to-go":
            reinforce.average.value[:STEPS] = each
        else:
            reinforce.average.value.copy_(each.sum())
        reinforce.average.started.fill_(True)
        return variance(*attention_gradients(decoder, features, reinforce))

    none, average = spread("whole", "none"), spread("whole", "average")
    assert 0 < average < 0.5 * none
    assert spread("to-go", "none") < none
    assert 0 < spread("to-go", "average") < 0.8 * average
    assert 0 < spread("to-go", "soft") < 0.8 * average


def test_rewards_to_go():
    rewards = torch.tensor([[1.0, 2.0, 4.0], [8.0, 0.0, 0.0]])
    assert to_go(rewards).tolist() == [[7, 6, 4], [8, 0, 0]]
    assert to_go(rewards, 0.5).tolist() == [[3, 4, 4], [8, 0, 0]]
    assert to_go(rewards, 0.0).tolist() == rewards.tolist()


def test_the_surrogate_by_hand():
    """Two draws of a caption of two words, and of one of one word."""
    rewards = torch.tensor([[[[-1.0, -2.0], [-3.0, -5.0]], [[-4.0, 0.0], [-6.0, 0.0]]]])
    present = torch.tensor([[[[True, True]] * 2, [[True, False]] * 2]])
    log_prob = torch.tensor([[[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.0], [0.6, 0.0]]]])

    def surrogate(*settings, **more):
        reinforce = Reinforce(*settings)
        reinforce.average.value.fill_(-2.0)
        reinforce.average.started.fill_(True)
        found, b, _ = reinforce(log_prob, rewards, present, present, **more)
        return found.flatten().tolist(), b.flatten(0, 2).tolist(), reinforce.average.value.tolist()

    found, _, _ = surrogate("whole", "none")
    assert found == pytest.approx([-3 * 0.3, -8 * 0.7, -4 * 0.5, -6 * 0.6])
    found, b, after = surrogate("whole", "average")
    assert b == [[-2, -2]] * 4 and after == pytest.approx([0.9 * -2 + 0.1 * (-3 - 8 - 4 - 6) / 4])
    assert found == pytest.approx([-1 * 0.3, -6 * 0.7, -2 * 0.5, -4 * 0.6])
    found, b, after = surrogate("to-go", "average")
    assert b == [[-4, -2], [-4, -2], [-2, 0], [-2, 0]]
    expected = [0.9 * -2 + 0.1 * (-1 - 3 - 4 - 6) / 4, 0.9 * -2 + 0.1 * (-2 - 5) / 2, -2]
    assert after[:3] == pytest.approx(expected)
    assert found == pytest.approx([0.1, -4 * 0.3 - 3 * 0.4, -2 * 0.5, -4 * 0.6])
    found, b, _ = surrogate("to-go", "leave-one-out")
    assert b == [[-8, -5], [-3, -2], [-6, 0], [-4, 0]]
    assert found == pytest.approx([5 * 0.1 + 3 * 0.2, -5 * 0.3 - 3 * 0.4, 2 * 0.5, -2 * 0.6])
    found, _, _ = surrogate("to-go", "soft", 0.5, reading=torch.tensor([[[[-1.0, -1.0]], [[-1.0, 0.0]]]]))
    assert found == pytest.approx([-0.5 * 0.1 - 1 * 0.2, -4 * 0.3 - 4 * 0.4, -3 * 0.5, -5 * 0.6])


def test_a_learned_baseline_learns_the_rewards_of_its_states():
    torch.manual_seed(0)
    reinforce = Reinforce("to-go", "learned", state_size=4)
    optimizer = torch.optim.Adam(reinforce.parameters(), 0.05)
    direction, errors = torch.randn(4), []
    for _ in range(200):
        states = torch.randn(16, 1, 1, 2, 4)
        rewards = states @ direction - 3
        there = torch.ones_like(rewards, dtype=torch.bool)
        _, _, error = reinforce(torch.zeros_like(rewards), rewards, there, there, states)
        optimizer.zero_grad()
        error.sum().backward()
        optimizer.step()
        errors.append(error.mean().item())
    assert sum(errors[-20:]) < 0.7 * sum(errors[:20])


def test_the_learned_baseline_has_no_part_in_the_loss_but_learns_by_it(decoder, features):
    reinforce = estimator("whole", "learned")
    transcript = read(decoder, features, ExpectationMixing(torch.tensor([False])))
    loss = hard_objective(transcript, reinforce, torch.tensor([True]), 0.7, 0.0)
    advantage = transcript.padded(word_log_probs(transcript)).sum() - loss.figures["baseline"]
    weight, bias = torch.autograd.grad(
        loss.total, [reinforce.learned.weight, reinforce.learned.bias], retain_graph=True
    )
    b = -4 + reinforce.learned(transcript.states).flatten()
    reward = word_log_probs(transcript).sum()
    torch.testing.assert_close(bias.sum(), (b - reward).sum())
    torch.testing.assert_close(weight.flatten(), ((b - reward)[:, None] * transcript.states).sum(0))
    torch.testing.assert_close(advantage, reward - b[0])
    surrogate = ((reward - b).detach() * transcript.log_prob).sum()
    torch.testing.assert_close(loss.total, -reward - 0.7 * surrogate)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Reinforce("half"), "'half'.*whole, to-go"),
        (lambda: Reinforce(baseline="zero"), "'zero'.*none, average, learned"),
        (lambda: Reinforce("to-go", discount=1.5), "discount must be from 0 to 1, not 1.5"),
        (lambda: Reinforce(baseline="learned"), "state_size"),
        (lambda: GumbelSoftmax(-1.0), "temperature must be above 0, not -1.0"),
        (lambda: GumbelSoftmax(0.0), "temperature must be above 0, not 0.0"),
    ],
)
def test_settings_that_cannot_be_name_the_allowed_ones(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("baseline", ["leave-one-out", "mean"])
def test_a_comparison_of_draws_needs_two(baseline):
    one = torch.zeros(1, 1, 1, 2)
    with pytest.raises(UserError, match="at least 2, not 1"):
        Reinforce("whole", baseline)(one, one, one == 0, one == 0)


def test_the_hard_objective_has_the_gradient_of_equation_13(decoder, features):
    reinforce = Reinforce()
    reinforce.average.value.fill_(-2.0)
    reinforce.average.started.fill_(True)
    transcript = read(decoder, features, Path(torch.tensor([[[[2], [0], [1]]]])))
    loss = hard_objective(transcript, reinforce, torch.tensor([True]), lambda_r=0.3, lambda_e=0.2)
    reward = word_log_probs(transcript).sum()
    weights = transcript.weights
    uncertainty = -(weights * weights.log()).sum()
    objective = reward + 0.3 * (reward.detach() + 2.0) * transcript.log_prob.sum() + 0.2 * uncertainty
    assert_same(gradient(decoder, loss.total), -gradient(decoder, objective))


def test_the_hard_objective_is_the_mean_over_draws_and_captions(decoder, features):
    """Two captions, the second absent in the second photograph, of three draws each."""
    torch.manual_seed(0)
    words = torch.tensor([[[1, 4, 5, 2], [1, 5, 2, 0]], [[1, 3, 2, 0], [1, 0, 0, 0]]])
    lengths = torch.tensor([[3, 2], [2, 0]])
    u = torch.rand(2, 6, 3, 1)
    images = torch.cat([features, features.flip(1)])

    def loss(photos, captions, draws, chances):
        memory = decoder.read(images[photos])
        words_, lengths_ = words[photos][:, captions], lengths[photos][:, captions]
        repeated = words_.repeat_interleave(draws, 1), lengths_.repeat_interleave(draws, 1)
        transcript = decoder(memory, *repeated, ExpectationMixing(torch.zeros(len(photos)).bool()), chances)
        drawn = torch.ones(len(photos), dtype=torch.bool)
        return hard_objective(transcript, estimator("to-go", "none"), drawn, 1.0, 0.1, 0.1, draws).total

    whole = loss([0, 1], [0, 1], 3, u)
    parts = [
        loss([photo], [caption], 1, u[photo : photo + 1, 3 * caption + draw][:, None])
        for photo, caption in ((0, 0), (0, 1), (1, 0))
        for draw in range(3)
    ]
    torch.testing.assert_close(whole, torch.stack(parts).mean())


def monte_carlo(decoder, features, temperature, straight_through, n=20_000):
    """The mean gradient of the attention's parameters over n relaxed draws, and its standard error."""
    parts = []
    for seed in range(10):
        torch.manual_seed(seed)
        rule = GumbelSoftmax(temperature, straight_through)
        transcript = read(decoder, features, rule, n // 10)
        mean = word_log_probs(transcript).sum() / (n // 10)
        parts.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(mean, list(decoder.scoring.parameters()))])
        )
    found = torch.stack(parts)
    return found.mean(0), (found.var(0).sum() / 10).sqrt().item()


@pytest.mark.parametrize("straight_through", [False, True])
def test_relaxed_draws_are_biased(decoder, features, straight_through):
    """By far more than chance at temperature 1; the relaxation's bias falls with the temperature."""
    drawn = read(decoder, features, Path(PATHS), 27)
    p = drawn.per_caption(drawn.log_prob).exp()
    expectation = (p * drawn.per_caption(word_log_probs(drawn))).sum()
    exact = attention_gradient(decoder, expectation)
    warm, error = monte_carlo(decoder, features, 1.0, straight_through)
    assert (warm - exact).norm().item() > 5 * error
    assert torch.cosine_similarity(warm, exact, 0) > 0.5
    if not straight_through:
        cold, _ = monte_carlo(decoder, features, 0.2, straight_through)
        assert (cold - exact).norm() < 0.5 * (warm - exact).norm()


def test_a_gumbel_draw_is_a_draw_from_the_weights():
    weights = torch.tensor([0.5, 0.3, 0.2])
    scores, values = weights.log().expand(1, 20_000, 3), torch.tensor([[[2.0], [6.0], [10.0]]])
    torch.manual_seed(0)
    selection = GumbelSoftmax(0.7, straight_through=True)(scores, values)
    counts = torch.bincount(selection.selected.flatten(), minlength=3)
    chi_square = ((counts - 20_000 * weights) ** 2 / (20_000 * weights)).sum().item()
    assert chi_square < 9.21  # the 99th percentile with two degrees of freedom
    torch.testing.assert_close(selection.context.squeeze(-1), values[0, selection.selected.squeeze(-1), 0])


def test_a_relaxed_draw_by_hand():
    u = torch.tensor([[[0.3, 0.9, 0.5]]], dtype=torch.float64)
    scores = torch.tensor([[[1.0, -1.0, 0.5]]], dtype=torch.float64)
    values = torch.tensor([[[2.0], [6.0], [10.0]]], dtype=torch.float64)
    expected = ((scores.softmax(-1).log() - (-u.log()).log()) / 0.4).softmax(-1)
    selection = GumbelSoftmax(0.4)(scores, values, u)
    torch.testing.assert_close(selection.context, expected @ values)
    assert selection.selected is None and selection.log_prob is None


def test_a_straight_through_draw_has_the_gradient_of_the_relaxed_one():
    u, values = torch.rand(2, 3, 4), torch.randn(2, 4, 5)
    gradients = []
    for straight_through in (False, True):
        scores = torch.linspace(-1, 1, 24).reshape(2, 3, 4).requires_grad_()
        GumbelSoftmax(0.5, straight_through)(scores, values, u).context[..., 0].sum().backward()
        gradients.append(scores.grad)
    torch.testing.assert_close(*gradients)


def test_extreme_chances_and_masks_of_a_relaxed_draw_are_numbers():
    scores = torch.tensor([[[0.0, -torch.inf, 3.0]]], requires_grad=True)
    for u in (0.0, 1 - 2**-24):
        selection = GumbelSoftmax(0.5)(scores, torch.ones(1, 3, 2), torch.full((1, 1, 3), u))
        selection.context.sum().backward()
        assert selection.context.isfinite().all() and scores.grad.isfinite().all()


def test_a_temperature_falls_geometrically():
    assert [annealed(2.0, 0.5, p) for p in (0.0, 0.5, 1.0, 1.5)] == pytest.approx([2.0, 1.0, 0.5, 0.5])


def test_expectation_mixing_is_soft_for_the_images_of_the_coin_and_hard_for_the_others():
    scores = torch.randn(2, 3, 4)
    values = torch.randn(2, 4, 5)
    u = torch.rand(2, 3, 1)
    selection = ExpectationMixing(torch.tensor([True, False]))(scores, values, u)
    soft, drawn = Soft()(scores, values), Sample()(scores, values, u)
    torch.testing.assert_close(selection.context[0], soft.context[0])
    torch.testing.assert_close(selection.context[1], drawn.context[1])
    assert selection.log_prob[0].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(selection.log_prob[1], drawn.log_prob[1])


def test_with_the_expectation_everywhere_the_hard_objective_is_the_soft_likelihood(decoder, features):
    hard = read(decoder, features, ExpectationMixing(torch.tensor([True])))
    soft = read(decoder, features, Soft())
    loss = hard_objective(hard, Reinforce(), torch.tensor([False]), lambda_r=1.0, lambda_e=0.0)
    torch.testing.assert_close(loss.total, soft_objective(soft, doubly_stochastic=0.0).total)


@pytest.mark.parametrize("reward", ["whole", "to-go"])
def test_the_average_follows_the_rewards_of_what_was_drawn_only(decoder, features, reward):
    """Two photographs, of which the second takes the expectation."""
    torch.manual_seed(0)
    images = features.expand(2, -1, -1)
    transcript = read(decoder, images, ExpectationMixing(torch.tensor([False, True])))
    reinforce = Reinforce(reward)
    hard_objective(transcript, reinforce, torch.tensor([True, False]), lambda_r=1.0, lambda_e=0.0)
    rewards = transcript.padded(word_log_probs(transcript)).detach()[:, 0].float()
    first, second = rewards if reward == "to-go" else rewards.sum(1, keepdim=True)
    torch.testing.assert_close(reinforce.average.value[: len(first)], first)
    assert not torch.allclose(first, second)
    assert reinforce.average.started.sum() == len(first)


def test_moving_average_follows_the_paper_and_travels_with_the_state():
    def move(baseline, *rewards):
        rewards = torch.tensor(rewards)[:, None]
        return baseline(rewards, torch.ones_like(rewards, dtype=torch.bool)).item()

    baseline = MovingAverage()
    assert move(baseline, -4.0, -6.0) == -5.0
    assert move(baseline, -15.0) == -5.0
    assert move(baseline, 0.0) == pytest.approx(0.9 * -5 + 0.1 * -15)
    restored = MovingAverage()
    restored.load_state_dict(baseline.state_dict())
    assert move(restored, 0.0) == pytest.approx(0.9 * -6.0)


def test_what_is_not_counted_moves_no_average():
    average = MovingAverage(2)
    counted = torch.tensor([[True, False], [False, False]])
    average(torch.tensor([[-4.0, -9.0], [-8.0, -9.0]]), counted)
    assert average.value.tolist() == [-4, 0] and average.started.tolist() == [True, False]


def test_uniform_weights_of_four_words_on_four_regions_are_doubly_stochastic():
    decoder = Decoder(8, 4, None, 5, 5, 5, dropout=0.0)
    torch.nn.init.zeros_(decoder.scoring.v)
    words = torch.tensor([[[1, 4, 5, 6, 7, 2, 0]]])
    transcript = decoder(decoder.read(torch.randn(1, 4, 4)), words, torch.tensor([[5]]), Soft())
    with_penalty = soft_objective(transcript, doubly_stochastic=1.0)
    assert with_penalty.figures["coverage"].item() == pytest.approx(0.0, abs=1e-12)
    assert math.isclose(with_penalty.total.item(), soft_objective(transcript, 0.0).total.item(), rel_tol=1e-6)


def test_self_critical_training_is_unbiased(decoder, features):
    """Summed over all pairs of one-word captions, by probability: the gradient of the expected reward."""
    rewards = torch.tensor([0.3, 2.0, -1.0, 0.0, 5.0, 1.0], dtype=torch.float64)

    def say(words):
        captions = torch.tensor([[[1, word] for word in words]])
        lengths = torch.ones(1, len(words), dtype=torch.long)
        return decoder(decoder.read(features), captions, lengths, Soft())

    log_probs = word_log_probs(say(range(6)))
    expected = gradient(decoder, (log_probs.exp() * rewards).sum())
    estimated = 0.0
    for pair in itertools.product(range(6), repeat=2):
        loss = self_critical_objective(say(pair), rewards[list(pair)][None]).total
        estimated = estimated - log_probs[list(pair)].sum().exp().detach() * gradient(decoder, loss)
    assert_same(estimated, expected)


def test_self_critical_training_of_hard_attention_is_unbiased(decoder, features):
    """The same, over all pairs of a region and a word each."""
    rewards = torch.tensor([0.3, 2.0, -1.0, 0.0, 5.0, 1.0], dtype=torch.float64)

    def say(draws):
        captions = torch.tensor([[[1, word] for _, word in draws]])
        selected = torch.tensor([[[[region]] for region, _ in draws]])
        lengths = torch.ones(1, len(draws), dtype=torch.long)
        return decoder(decoder.read(features), captions, lengths, Path(selected))

    everything = list(itertools.product(range(3), range(6)))
    whole = say(everything)
    log_probs = whole.log_prob + word_log_probs(whole)
    assert log_probs.exp().sum().item() == pytest.approx(1.0)
    expected = gradient(
        decoder, sum(p.exp() * rewards[y] for p, (_, y) in zip(log_probs, everything, strict=True))
    )
    estimated = 0.0
    for i, j in itertools.product(range(18), repeat=2):
        pair = [everything[i], everything[j]]
        loss = self_critical_objective(say(pair), rewards[[y for _, y in pair]][None]).total
        estimated = estimated - (log_probs[i] + log_probs[j]).exp().detach() * gradient(decoder, loss)
    assert_same(estimated, expected)
