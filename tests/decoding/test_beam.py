import itertools

import pytest
import torch

from captioner.attention.selection import Argmax, Sample, Soft, selection_rule
from captioner.decoding.beam import Pool, beam_search
from captioner.model.decoder import Decoder
from captioner.text.vocabulary import Vocabulary

VOCABULARY = 7  # the four special tokens and three words


def random_decoder(seed):
    torch.manual_seed(seed)
    decoder = Decoder(VOCABULARY, 5, None, 6, 8, 4, dropout=0.0)
    with torch.no_grad():
        decoder.output.weight *= 6  # sharper than untrained, so that beams differ
        decoder.embedding.weight *= 10
    return decoder.eval()


@pytest.fixture
def decoder():
    return random_decoder(3)


@pytest.fixture
def features():
    return torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(4))


@torch.inference_mode()
def search(decoder, features, *settings, **named):
    return beam_search(decoder, decoder.read(features), *settings, **named)


@torch.inference_mode()
def log_probability(decoder, features, words, rule, end=True):
    """log p of a caption, word by word, without the special tokens that are never written."""
    memory = decoder.read(features[None])
    state, previous, total = decoder.start(memory), Vocabulary.start, 0.0
    for word in [*words, Vocabulary.end] if end else words:
        log_probs, state, _ = decoder.step(torch.tensor([[previous]]), state, memory, rule)
        total += log_probs[0, 0, word].item()
        previous = word
    return total


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
def test_a_wide_beam_is_exhaustive_search(decoder, features, length_penalty):
    captions = [c for length in range(4) for c in itertools.product((4, 5, 6), repeat=length)]
    for photo in features:
        scores = {
            caption: log_probability(decoder, photo, caption, Soft()) / (len(caption) + 1) ** length_penalty
            for caption in captions
        }
        best = max(scores, key=scores.__getitem__)
        found = search(decoder, photo[None], Soft(), 40, 3, length_penalty)[0]
        assert tuple(found[0].words) == best
        assert found[0].score == pytest.approx(scores[best], rel=1e-4)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.parametrize(("length_penalty", "sharper"), [(0.7, 1), (1.0, 1), (3.0, 1), (3.0, 10)])
@pytest.mark.parametrize("beam_size", [2, 3])
def test_leaving_the_batch_early_loses_nothing(monkeypatch, length_penalty, sharper, beam_size):
    """Some of these photographs' best captions end after K others have; the sharper model's much later."""
    decoder = random_decoder(8)
    with torch.no_grad():
        decoder.output.weight *= sharper
    features = torch.randn(60, 3, 5, generator=torch.Generator().manual_seed(9))
    early = search(decoder, features, Soft(), beam_size, 12, length_penalty)
    monkeypatch.setattr(Pool, "beats", lambda *_: False)
    late = search(decoder, features, Soft(), beam_size, 12, length_penalty)
    assert [pool[0].words for pool in early] == [pool[0].words for pool in late]


@pytest.mark.parametrize("rule", [Soft(), Argmax()])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_log_probabilities_are_those_of_the_words(decoder, features, rule, beam_size):
    for photo, hypotheses in zip(features, search(decoder, features, rule, beam_size, 6), strict=True):
        for hypothesis in hypotheses:
            expected = log_probability(decoder, photo, hypothesis.words, rule, hypothesis.finished)
            if hypothesis.finished:
                assert hypothesis.log_prob == pytest.approx(expected, rel=1e-4)
            assert hypothesis.word_log_probs.sum().item() <= 0
            assert len(hypothesis.words) == len(hypothesis.weights) == len(hypothesis.gate)
            assert not {0, 1, 2, 3} & set(hypothesis.words)


def test_greedy_takes_the_likeliest_word_at_each_step(decoder, features):
    for photo, (hypothesis,) in zip(features, search(decoder, features, Soft(), 1, 6), strict=True):
        memory = decoder.read(photo[None])
        state, previous, words = decoder.start(memory), Vocabulary.start, []
        weights = []
        for _ in range(6):
            log_probs, state, step = decoder.step(torch.tensor([[previous]]), state, memory, Soft())
            log_probs[..., [0, 1, 3]] = -torch.inf
            previous = log_probs.argmax().item()
            if previous == Vocabulary.end:
                break
            words.append(previous)
            weights.append(step.selection.weights[0, 0])
        assert hypothesis.words == words
        if words:
            torch.testing.assert_close(hypothesis.weights, torch.stack(weights))


def test_each_words_map_is_the_one_that_made_it(decoder, features):
    """Replaying a hypothesis gives its weights and selections, through all the beam's reordering."""
    for photo, hypotheses in zip(features, search(decoder, features, Argmax(), 4, 6), strict=True):
        for hypothesis in hypotheses:
            memory = decoder.read(photo[None])
            state, previous = decoder.start(memory), Vocabulary.start
            for t, word in enumerate(hypothesis.words):
                log_probs, state, step = decoder.step(torch.tensor([[previous]]), state, memory, Argmax())
                torch.testing.assert_close(hypothesis.weights[t], step.selection.weights[0, 0])
                assert hypothesis.selected[t].tolist() == step.selection.selected[0, 0].tolist()
                assert hypothesis.word_log_probs[t].item() == pytest.approx(
                    log_probs[0, 0, word].item(), rel=1e-4
                )
                previous = word


@pytest.mark.parametrize("rule", [Soft(), Sample(), Argmax()])
def test_a_batch_gives_what_one_by_one_gives(decoder, features, rule):
    seeds = [11, 12, 13, 14]
    together = search(decoder, features, rule, 3, 8, seeds=seeds)
    backwards = search(decoder, features.flip(0), rule, 3, 8, seeds=seeds[::-1])[::-1]
    for i, hypotheses in enumerate(together):
        alone = search(decoder, features[i : i + 1], rule, 3, 8, seeds=seeds[i : i + 1])[0]
        for others in (alone, backwards[i]):
            assert [h.words for h in hypotheses] == [h.words for h in others]
            torch.testing.assert_close(hypotheses[0].weights, others[0].weights)


def test_a_mean_of_particles_averages_the_word_distributions(decoder, features):
    """One word, greedily: its probability is the mean over the particles' draws."""
    (hypothesis,) = search(decoder, features[:1], selection_rule("mean:4"), 1, 1, seeds=[7])[0]
    u = torch.rand(4, 1, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        memory = decoder.read(features[:1])
        start = torch.full((1, 4), Vocabulary.start)
        log_probs, _, step = decoder.step(start, decoder.start(memory, 4), memory, Sample(), u[None])
    expected = log_probs[0].exp().mean(0)[hypothesis.words[0]].log()
    assert len(set(step.selection.selected.flatten().tolist())) > 1
    assert hypothesis.word_log_probs.item() == pytest.approx(expected.item(), rel=1e-5)
    assert hypothesis.selected[0].tolist() == step.selection.selected.flatten().tolist()


@pytest.mark.parametrize("name", ["sample:2", "hard-soft:2", "mean:3", "argmax:random"])
def test_random_rules_give_in_a_batch_what_they_give_one_by_one(decoder, features, name):
    rule, seeds = selection_rule(name), [11, 12, 13, 14]
    together = search(decoder, features, rule, 3, 8, seeds=seeds)
    for i, hypotheses in enumerate(together):
        alone = search(decoder, features[i : i + 1], rule, 3, 8, seeds=seeds[i : i + 1])[0]
        assert [h.words for h in hypotheses] == [h.words for h in alone]


def test_random_selection_depends_on_the_seed_alone(decoder, features):
    first, second = (search(decoder, features, Sample(), 1, 12, seeds=[5] * 4) for _ in range(2))
    other = search(decoder, features, Sample(), 1, 12, seeds=[6] * 4)
    selected = [[h[0].selected.tolist() for h in run] for run in (first, second, other)]
    assert selected[0] == selected[1] != selected[2]


def test_an_unfinished_hypothesis_is_returned_flagged_with_its_weights(decoder, features):
    with torch.no_grad():
        decoder.output.bias[Vocabulary.end] = -1e4
    for photo, hypotheses in zip(features, search(decoder, features, Argmax(), 3, 5), strict=True):
        for hypothesis in hypotheses:
            words = hypothesis.words
            assert not hypothesis.finished and len(words) == 5
            assert hypothesis.weights.shape == (5, 3) and hypothesis.selected.shape == (5, 1)
            without, forced = (log_probability(decoder, photo, words, Argmax(), end) for end in (False, True))
            assert hypothesis.word_log_probs.sum().item() == pytest.approx(without, rel=1e-4)
            assert hypothesis.log_prob == pytest.approx(forced, rel=1e-4)
            assert forced < without - 9000
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / 6**0.7, rel=1e-4)


def test_a_caption_is_unfinished_exactly_where_the_limit_cut_it(decoder):
    """Under drawn selections, whose captions end at all lengths."""
    features = 3 * torch.randn(80, 3, 5, generator=torch.Generator().manual_seed(4))

    def greedy(photos, length):
        seeds = range(80)[photos]
        found = search(decoder, features[photos], Sample(), 1, length, seeds=list(seeds))
        return [hypotheses[0] for hypotheses in found]

    ended = [(i, h) for i, h in enumerate(greedy(slice(None), 30)) if h.finished and len(h.words) > 1]
    assert len(ended) > 5
    for i, hypothesis in ended:
        length = len(hypothesis.words)
        (fits,), (cut,) = greedy(slice(i, i + 1), length), greedy(slice(i, i + 1), length - 1)
        assert fits.finished and fits.words == hypothesis.words
        assert not cut.finished and cut.words == hypothesis.words[:-1]


def test_a_caption_of_no_words_has_no_weights(decoder, features):
    with torch.no_grad():
        decoder.output.bias[Vocabulary.end] = 1e4
    hypothesis = search(decoder, features, Argmax(), 1, 5)[0][0]
    assert hypothesis.words == [] and hypothesis.finished
    assert hypothesis.weights.shape == (0, 3) and hypothesis.selected.shape == (0, 1)
