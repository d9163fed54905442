import torch

from captioner.attention.selection import Sample, Soft
from captioner.decoding.sampling import sample_captions
from captioner.model.decoder import Decoder
from captioner.text.vocabulary import Vocabulary


def small(vocabulary=7):
    torch.manual_seed(0)
    return Decoder(vocabulary, 5, 6, 6, 6, 6, dropout=0.0).eval()


def test_captions_come_as_the_decoder_reads_them():
    words, lengths = sample_captions(small(), torch.randn(3, 4, 5), Sample(), n=6, max_length=9)
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
    words, _ = sample_captions(decoder, features, Soft(), n=20_000, max_length=1)
    memory = decoder.read(features)
    start = torch.full((1, 1), Vocabulary.start)
    log_probs, _, _ = decoder.step(start, decoder.start(memory), memory, Soft())
    allowed = torch.tensor([2, 4, 5, 6])
    expected = log_probs.detach()[0, 0, allowed].softmax(0)
    drawn = torch.bincount(words[0, :, 1], minlength=7)[allowed] / 20_000
    torch.testing.assert_close(drawn, expected, atol=0.015, rtol=0)
