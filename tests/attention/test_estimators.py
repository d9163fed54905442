"""REINFORCE against exact enumeration of all selections of a small decoder."""

import itertools
import math

import pytest
import torch

from captioner.attention.estimators import ExpectationMixing, MovingAverage, Replay, score_function
from captioner.attention.selection import Rule, Sample, Soft
from captioner.model.decoder import Decoder
from captioner.training.objectives import (
    hard_objective,
    self_critical_objective,
    soft_objective,
    word_log_probs,
)

WORDS = torch.tensor([[[1, 4, 5, 2]]])
LENGTHS = torch.tensor([[3]])


class Path(Rule):
    """The rule that selects given regions, one a step, with the probabilities of sampling."""

    name, draws = "path", 1

    def __init__(self, path):
        self.path = iter(path)

    def __call__(self, scores, values, u=None):
        region = next(self.path)
        cumulative = scores.softmax(-1).detach().cumsum(-1)
        inside = cumulative[..., region] - scores.softmax(-1).detach()[..., region] / 2
        return Sample()(scores, values, inside[..., None])


@pytest.fixture
def decoder():
    torch.manual_seed(1)
    return Decoder(6, 4, None, 5, 5, 5, dropout=0.0).double()


@pytest.fixture
def features():
    return torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def gradient(decoder, scalar):
    parameters = list(decoder.parameters())
    parts = torch.autograd.grad(scalar, parameters, allow_unused=True, retain_graph=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, parts, strict=True)]
    )


@pytest.mark.parametrize("baseline", [0.0, -4.0])
def test_reinforce_is_unbiased(decoder, features, baseline):
    """Summed over all 27 paths by their probability it is the gradient of E[log p(y | s, a)]."""
    exact, estimated = 0.0, 0.0
    for path in itertools.product(range(3), repeat=3):
        transcript = decoder(features, WORDS, LENGTHS, Path(path))
        log_prob = transcript.per_caption(transcript.log_prob).squeeze()
        reward = transcript.per_caption(word_log_probs(transcript)).squeeze()
        exact = exact + log_prob.exp() * reward
        surrogate = reward + score_function(log_prob, reward, torch.tensor(baseline))
        estimated = estimated + log_prob.exp().detach() * gradient(decoder, surrogate)
    expected = gradient(decoder, exact)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(estimated, expected, rtol=1e-8, atol=1e-12)


def test_reward_to_go_against_the_soft_reading_is_unbiased_and_varies_less(decoder, features):
    """Over all 27 paths: the mean of the hard objective's gradient, and its spread about the mean."""
    torch.nn.init.normal_(decoder.scoring.v, std=2.0)  # selections matter
    soft = word_log_probs(decoder(features, WORDS, LENGTHS, Soft())).detach()
    drawn, average = torch.tensor([True]), MovingAverage()
    exact, probabilities, gradients = 0.0, [], {None: [], soft: []}
    for path in itertools.product(range(3), repeat=3):
        transcript = decoder(features, WORDS, LENGTHS, Path(path))
        log_prob = transcript.log_prob.sum()
        exact = exact + log_prob.exp() * word_log_probs(transcript).sum()
        probabilities.append(log_prob.exp().detach())
        average.value.copy_(soft.sum())
        average.started.fill_(True)
        for baseline, found in gradients.items():
            loss = hard_objective(transcript, average, drawn, 1.0, 0.0, soft=baseline)
            found.append(-gradient(decoder, loss.total))
    p = torch.stack(probabilities)[:, None]
    expected = gradient(decoder, exact)
    assert expected.norm() > 1e-3
    means = {baseline: (p * torch.stack(found)).sum(0) for baseline, found in gradients.items()}
    for mean in means.values():
        torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-8)
    scored = [name for name, _ in decoder.named_parameters()].index("scoring.v")
    first = sum(parameter.numel() for parameter in list(decoder.parameters())[:scored])
    spread = {
        baseline: (p * (torch.stack(found) - means[baseline]).square()).sum(0)[first : first + 5].sum()
        for baseline, found in gradients.items()
    }
    assert 0 < spread[soft] < 0.8 * spread[None]


def test_what_is_to_come_is_summed_caption_by_caption(decoder):
    words = torch.tensor([[[1, 4, 5, 2], [1, 3, 2, 0]], [[1, 5, 2, 0], [1, 2, 0, 0]]])
    transcript = decoder(torch.randn(2, 3, 4).double(), words, torch.tensor([[3, 2], [2, 1]]), Soft())
    steps = torch.arange(1.0, 9.0)
    to_go = transcript.to_go(steps)
    for caption in range(4):
        mine = transcript.caption == caption
        expected = steps[mine].flip(0).cumsum(0).flip(0)
        assert to_go[mine].tolist() == expected.tolist() and len(expected) == [3, 2, 2, 1][caption]


def test_the_probabilities_of_all_paths_sum_to_one(decoder, features):
    total = 0.0
    for path in itertools.product(range(3), repeat=3):
        transcript = decoder(features, WORDS, LENGTHS, Path(path))
        total += transcript.log_prob.sum().exp().item()
    assert total == pytest.approx(1.0, rel=1e-12)


def test_the_hard_objective_has_the_gradient_of_equation_13(decoder, features):
    torch.manual_seed(0)
    baseline = MovingAverage()
    baseline(torch.tensor([-2.0]))
    transcript = decoder(features, WORDS, LENGTHS, Path([2, 0, 1]))
    loss = hard_objective(transcript, baseline, torch.tensor([True]), lambda_r=0.3, lambda_e=0.2)
    reward = word_log_probs(transcript).sum()
    weights = transcript.weights
    uncertainty = -(weights * weights.log()).sum()
    objective = reward + 0.3 * (reward.detach() + 2.0) * transcript.log_prob.sum() + 0.2 * uncertainty
    again = decoder(features, WORDS, LENGTHS, Path([2, 0, 1]))
    torch.testing.assert_close(again.log_prob, transcript.log_prob)
    torch.testing.assert_close(
        gradient(decoder, loss.total), -gradient(decoder, objective), rtol=1e-6, atol=1e-9
    )


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
    hard = decoder(features, WORDS, LENGTHS, ExpectationMixing(torch.tensor([True])))
    soft = decoder(features, WORDS, LENGTHS, Soft())
    loss = hard_objective(hard, MovingAverage(), torch.tensor([False]), lambda_r=1.0, lambda_e=0.0)
    torch.testing.assert_close(loss.total, soft_objective(soft, doubly_stochastic=0.0).total)


def test_the_baseline_follows_the_rewards_of_what_was_drawn_only(decoder, features):
    """Two photographs, of which the second takes the expectation."""
    words, lengths = WORDS.expand(2, -1, -1), LENGTHS.expand(2, -1)
    transcript = decoder(
        features.expand(2, -1, -1), words, lengths, ExpectationMixing(torch.tensor([False, True]))
    )
    baseline = MovingAverage()
    hard_objective(transcript, baseline, torch.tensor([True, False]), lambda_r=1.0, lambda_e=0.0)
    reward = transcript.per_caption(word_log_probs(transcript))
    torch.testing.assert_close(baseline.value, reward[0].mean().to(baseline.value.dtype))
    assert not torch.allclose(reward[0], reward[1])


def test_moving_average_follows_the_paper_and_travels_with_the_state():
    baseline = MovingAverage()
    assert baseline(torch.tensor([-4.0, -6.0])).item() == -5.0
    assert baseline(torch.tensor([-15.0])).item() == -5.0
    assert baseline(torch.tensor([0.0])).item() == pytest.approx(0.9 * -5 + 0.1 * -15)
    restored = MovingAverage()
    restored.load_state_dict(baseline.state_dict())
    assert restored(torch.tensor([0.0])).item() == pytest.approx(0.9 * -6.0)


def test_uniform_weights_of_four_words_on_four_regions_are_doubly_stochastic():
    decoder = Decoder(8, 4, None, 5, 5, 5, dropout=0.0)
    torch.nn.init.zeros_(decoder.scoring.v)
    words = torch.tensor([[[1, 4, 5, 6, 7, 2, 0]]])
    transcript = decoder(torch.randn(1, 4, 4), words, torch.tensor([[5]]), Soft())
    with_penalty = soft_objective(transcript, doubly_stochastic=1.0)
    assert with_penalty.figures["coverage"].item() == pytest.approx(0.0, abs=1e-12)
    assert math.isclose(with_penalty.total.item(), soft_objective(transcript, 0.0).total.item(), rel_tol=1e-6)


def test_self_critical_training_is_unbiased(decoder, features):
    """Summed over all pairs of one-word captions, by probability: the gradient of the expected reward."""
    rewards = torch.tensor([0.3, 2.0, -1.0, 0.0, 5.0, 1.0], dtype=torch.float64)

    def read(words):
        captions = torch.tensor([[[1, word] for word in words]])
        return decoder(features, captions, torch.ones(1, len(words), dtype=torch.long), Soft())

    log_probs = word_log_probs(read(range(6)))
    expected = gradient(decoder, (log_probs.exp() * rewards).sum())
    estimated = 0.0
    for pair in itertools.product(range(6), repeat=2):
        loss = self_critical_objective(read(pair), rewards[list(pair)][None]).total
        estimated = estimated - log_probs[list(pair)].sum().exp().detach() * gradient(decoder, loss)
    assert expected.norm() > 1e-2
    torch.testing.assert_close(estimated, expected, rtol=1e-8, atol=1e-12)


def test_self_critical_training_of_hard_attention_is_unbiased(decoder, features):
    """The same, over all pairs of a region and a word each."""
    rewards = torch.tensor([0.3, 2.0, -1.0, 0.0, 5.0, 1.0], dtype=torch.float64)
    drawn = torch.tensor([False])

    def read(draws):
        captions = torch.tensor([[[1, word] for _, word in draws]])
        selected = torch.tensor([[[region] for region, _ in draws]])
        lengths = torch.ones(1, len(draws), dtype=torch.long)
        return decoder(features, captions, lengths, Replay(selected, drawn))

    everything = list(itertools.product(range(3), range(6)))
    whole = read(everything)
    log_probs = whole.log_prob + word_log_probs(whole)
    assert log_probs.exp().sum().item() == pytest.approx(1.0)
    expected = gradient(
        decoder, sum(p.exp() * rewards[y] for p, (_, y) in zip(log_probs, everything, strict=True))
    )
    estimated = 0.0
    for i, j in itertools.product(range(18), repeat=2):
        pair = [everything[i], everything[j]]
        loss = self_critical_objective(read(pair), rewards[[y for _, y in pair]][None]).total
        estimated = estimated - (log_probs[i] + log_probs[j]).exp().detach() * gradient(decoder, loss)
    torch.testing.assert_close(estimated, expected, rtol=1e-8, atol=1e-12)
