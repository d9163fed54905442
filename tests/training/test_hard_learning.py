"""Six regions, one of which names the word: hard attention has to find it by REINFORCE alone."""

import pytest
import torch

from captioner.attention.estimators import ExpectationMixing, MovingAverage
from captioner.attention.selection import Soft
from captioner.model.decoder import Decoder
from captioner.training.objectives import hard_objective

REGIONS, NAMES, SPECIAL = 6, 5, 4


def photographs(n, generator):
    """Regions of a mark and a name each; the caption is the name in the region that is marked."""
    right = torch.randint(REGIONS, (n,), generator=generator)
    names = torch.randint(NAMES, (n, REGIONS), generator=generator)
    marks = torch.nn.functional.one_hot(right, REGIONS)[..., None]
    features = torch.cat([torch.nn.functional.one_hot(names, NAMES), 3 * marks], -1).float()
    word = names.gather(1, right[:, None]) + SPECIAL
    words = torch.cat([torch.ones_like(word), word], 1)[:, None]
    return features, words, right


def attention_on_the_right_region(lambda_r, steps=400):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    decoder = Decoder(SPECIAL + NAMES, NAMES + 1, None, 16, 16, 16, dropout=0.0)
    torch.nn.init.zeros_(decoder.scoring.v)  # attention begins at chance
    baseline = MovingAverage()
    optimizer = torch.optim.Adam(decoder.parameters(), 1e-2)
    for _ in range(steps):
        features, words, _ = photographs(64, generator)
        drawn = torch.ones(64, dtype=torch.bool)
        lengths = torch.ones(64, 1, dtype=torch.long)
        transcript = decoder(features, words, lengths, ExpectationMixing(~drawn))
        loss = hard_objective(transcript, baseline, drawn, lambda_r, lambda_e=0.0)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    features, words, right = photographs(500, generator)
    with torch.no_grad():
        transcript = decoder(features, words, torch.ones(500, 1, dtype=torch.long), Soft())
    return transcript.weights.gather(1, right[:, None]).mean().item()


def test_reinforce_finds_the_region_that_names_the_word():
    assert attention_on_the_right_region(lambda_r=1.0) > 0.95


def test_without_the_score_function_attention_stays_at_chance():
    assert attention_on_the_right_region(lambda_r=0.0) == pytest.approx(1 / REGIONS, abs=1e-6)


def test_the_wrong_sign_looks_elsewhere():
    """Gently: once nothing is read from the right region, rewards are alike and attention drifts."""
    assert attention_on_the_right_region(lambda_r=-0.3, steps=200) < 0.14
