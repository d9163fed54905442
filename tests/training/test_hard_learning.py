"""Six regions, one of which names the word: every estimator has to find it."""

import pytest
import torch

from captioner.attention.estimators import BASELINES, ExpectationMixing, GumbelSoftmax, Reinforce
from captioner.attention.selection import Soft, selection_rule
from captioner.model.decoder import Decoder
from captioner.training.objectives import hard_objective, word_log_probs

# With few names a model may look at the marked region but where it has one of them, and say that one whenever
# it sees no mark.
REGIONS, NAMES, SPECIAL = 6, 12, 4


def photographs(n, generator):
    """Regions of a mark and a name each; the caption is the name in the region that is marked."""
    right = torch.randint(REGIONS, (n,), generator=generator)
    names = torch.randint(NAMES, (n, REGIONS), generator=generator)
    marks = torch.nn.functional.one_hot(right, REGIONS)[..., None]
    features = torch.cat([torch.nn.functional.one_hot(names, NAMES), 3 * marks], -1).float()
    word = names.gather(1, right[:, None]) + SPECIAL
    words = torch.cat([torch.ones_like(word), word], 1)[:, None]
    return features, words, right


def attention_on_the_right_region(
    lambda_r=1.0, steps=400, rule=None, draws=1, reward="whole", baseline="average", scoring="additive"
):
    """The weight of the region that names the word, after training from attention at chance."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    decoder = Decoder(SPECIAL + NAMES, NAMES + 1, None, 16, 16, 16, scoring, dropout=0.0)
    torch.nn.init.zeros_(decoder.scoring.v)
    reinforce = Reinforce(reward, baseline, state_size=16)
    optimizer = torch.optim.Adam([*decoder.parameters(), *reinforce.parameters()], 1e-2)
    drawn = torch.ones(64, dtype=torch.bool)
    for _ in range(steps):
        features, words, _ = photographs(64, generator)
        memory = decoder.read(features)
        lengths = torch.ones(64, 1, dtype=torch.long)
        reading = None
        if baseline in ("argmax", "soft"):
            other = decoder(memory, words, lengths, selection_rule(baseline))
            reading = other.padded(word_log_probs(other)).detach().repeat_interleave(draws, 1)
        repeated = words.repeat_interleave(draws, 1), lengths.repeat_interleave(draws, 1)
        transcript = decoder(memory, *repeated, ExpectationMixing(~drawn, rule))
        loss = hard_objective(transcript, reinforce, drawn, lambda_r, 0.0, draws=draws, reading=reading)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    features, words, right = photographs(500, generator)
    with torch.no_grad():
        transcript = decoder(decoder.read(features), words, torch.ones(500, 1, dtype=torch.long), Soft())
    return transcript.weights.gather(1, right[:, None]).mean().item()


@pytest.mark.parametrize("reward", ["whole", "to-go"])
@pytest.mark.parametrize("baseline", BASELINES)
def test_reinforce_finds_the_region_that_names_the_word(reward, baseline):
    draws = 2 if baseline in ("leave-one-out", "mean") else 1
    assert attention_on_the_right_region(reward=reward, baseline=baseline, draws=draws) > 0.95


@pytest.mark.parametrize("straight_through", [False, True])
def test_relaxed_draws_find_it(straight_through):
    assert attention_on_the_right_region(rule=GumbelSoftmax(0.7, straight_through)) > 0.95


@pytest.mark.parametrize("name", ["top:4", "soft", "threshold:0.9"])
def test_rules_without_chance_find_it(name):
    assert attention_on_the_right_region(rule=selection_rule(name)) > 0.95


@pytest.mark.parametrize("name", ["sample:2", "hard-soft:4"])
def test_sets_find_it(name):
    assert attention_on_the_right_region(rule=selection_rule(name)) > 0.95


def test_without_the_score_function_attention_stays_at_chance():
    assert attention_on_the_right_region(lambda_r=0.0) == pytest.approx(1 / REGIONS, abs=1e-6)


def test_the_wrong_sign_looks_elsewhere():
    """Gently: once nothing is read from the right region, rewards are alike and attention drifts."""
    assert attention_on_the_right_region(lambda_r=-0.3, steps=200) < 0.14
