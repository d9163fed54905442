import pytest
import torch

from captioner.attention.estimators import ExpectationMixing
from captioner.attention.selection import Sample, Soft, selection_rule
from captioner.decoding.sampling import sample_captions
from captioner.model.decoder import Decoder
from captioner.text.vocabulary import Vocabulary


def small(vocabulary=7, scoring="additive"):
    torch.manual_seed(0)
    return Decoder(vocabulary, 5, 6, 6, 6, 6, scoring, dropout=0.0).eval()


def test_captions_come_as_the_decoder_reads_them():
    decoder = small()
    draws = sample_captions(decoder, decoder.read(torch.randn(3, 4, 5)), Sample(), n=6, max_length=9)
    words, lengths = draws.words, draws.lengths
    assert draws.u.shape == (3, 6, words.shape[2] - 1, 1)
    assert words.shape[:2] == lengths.shape == (3, 6) and words.shape[2] <= 10
    assert (lengths.diff(dim=1) <= 0).all() and lengths.min() >= 1
    assert (words[..., 0] == Vocabulary.start).all()
    for caption, length in zip(words.flatten(0, 1).tolist(), lengths.flatten().tolist(), strict=True):
        said, padding = caption[1 : length + 1], caption[length + 1 :]
        assert set(padding) <= {Vocabulary.pad}
        assert not set(said) & {Vocabulary.pad, Vocabulary.start, Vocabulary.unknown}
        assert Vocabulary.end not in said[:-1]
        assert said[-1] == Vocabulary.end or length == 9


def test_words_are_drawn_as_often_as_they_are_likely():
    decoder, features = small(), torch.randn(1, 4, 5)
    memory = decoder.read(features)
    words = sample_captions(decoder, memory, Soft(), n=20_000, max_length=1).words
    start = torch.full((1, 1), Vocabulary.start)
    log_probs, _, _ = decoder.step(start, decoder.start(memory), memory, Soft())
    allowed = torch.tensor([2, 4, 5, 6])
    expected = log_probs.detach()[0, 0, allowed].softmax(0)
    drawn = torch.bincount(words[0, :, 1], minlength=7)[allowed] / 20_000
    torch.testing.assert_close(drawn, expected, atol=0.015, rtol=0)


@pytest.mark.parametrize("name", ["sample", "sample:2", "hard-soft:3"])
@pytest.mark.parametrize("scoring", ["additive", "multi-head:2"])
def test_what_is_read_again_is_what_was_drawn(name, scoring):
    """Words and selections stay together when captions are sorted: read with the same draws they are again
    as likely."""
    decoder, drawn = small(scoring=scoring), []
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(2)  # selections depend on what came before
    rule = selection_rule(name)

    class Watched(ExpectationMixing):
        def __call__(self, scores, values, u=None):
            selection = super().__call__(scores, values, u)
            drawn.append(selection.log_prob.unflatten(0, (2, -1)).sum(1))
            return selection

    memory = decoder.read(torch.randn(2, 4, 5))
    watched = Watched(torch.tensor([False, False]), rule)
    draws = sample_captions(decoder, memory, watched, n=8, max_length=9)
    assert draws.lengths.unique().numel() > 2
    then = torch.stack(drawn, -1)
    transcript = decoder(memory, draws.words, draws.lengths, rule, draws.u)
    for image in range(2):
        for caption, length in enumerate(draws.lengths[image].tolist()):
            now = transcript.log_prob[transcript.caption == image * 8 + caption]
            assert any(torch.allclose(now, other[:length], atol=1e-5) for other in then[image])
