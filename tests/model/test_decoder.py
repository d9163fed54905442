import pytest
import torch

from captioner.attention.selection import Argmax, Soft
from captioner.model.decoder import Decoder, State
from captioner.training.objectives import soft_objective, word_log_probs


@pytest.fixture
def decoder():
    torch.manual_seed(0)
    return Decoder(9, 6, 5, 4, 7, 3, dropout=0.0).double()


@pytest.fixture
def features():
    return torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


WORDS = torch.tensor([[[1, 4, 5, 6, 2], [1, 7, 2, 0, 0]], [[1, 8, 4, 2, 0], [1, 0, 0, 0, 0]]])
SOFT = Soft()
LENGTHS = torch.tensor([[4, 2], [3, 0]])


def read(decoder, features, rule=SOFT):
    return decoder(decoder.read(features), WORDS, LENGTHS, rule)


def test_a_step_is_the_papers(decoder, features):
    """Equations 1 to 9 written out for one photograph and one word, beside the module."""
    memory = decoder.read(features[:1])
    a = decoder.normalise(decoder.project(features[0]))
    mean = decoder.initial(a.mean(0)).tanh()
    h, c = mean[:7], mean[7:]
    state = decoder.start(memory)
    torch.testing.assert_close(state.h[0, 0], h)

    scoring = decoder.scoring
    e = torch.stack([scoring.v @ torch.tanh(scoring.key(region) + scoring.query(h)) for region in a])
    alpha = e.softmax(0)
    weight, bias = decoder.from_hidden.weight, decoder.from_hidden.bias
    beta = torch.sigmoid(weight[28] @ h + bias[28])
    z = beta * sum(alpha[i] * a[i] for i in range(4))
    y = decoder.embedding.weight[5]
    gates = decoder.from_word.weight @ y + weight[:28] @ h + bias[:28] + decoder.from_context.weight @ z
    i, f, o, g = gates[:7], gates[7:14], gates[14:21], gates[21:]
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    deep = y + decoder.output_hidden(h) + decoder.output_context.weight @ z
    expected = decoder.output(deep).log_softmax(0)

    log_probs, new, step = decoder.step(torch.tensor([[5]]), state, memory, Soft())
    torch.testing.assert_close(log_probs[0, 0], expected)
    torch.testing.assert_close(new.h[0, 0], h)
    torch.testing.assert_close(step.selection.weights[0, 0], alpha)
    torch.testing.assert_close(step.gate[0, 0], beta)


def test_the_gist_is_the_mean_regions_share_of_a_hard_selection(decoder, features):
    """And of nothing else: the first state, the mean itself, stays as it was."""
    a = decoder.normalise(decoder.project(features))
    before = decoder.start(decoder.read(features))
    decoder.gist = 0.25
    memory = decoder.read(features)
    torch.testing.assert_close(decoder.start(memory).h, before.h)
    _, _, step = decoder.step(torch.tensor([[5], [6]]), before, memory, Argmax())
    for image, region in enumerate(step.selection.selected.flatten()):
        expected = 0.75 * a[image, region] + 0.25 * a[image].mean(0)
        torch.testing.assert_close(step.selection.context[image, 0], expected)
    torch.testing.assert_close(memory.keys, decoder.scoring.keys(memory.values[:, 0]))


def test_teacher_forcing_equals_step_by_step(decoder, features):
    transcript = read(decoder, features, Argmax())
    total = transcript.per_caption(word_log_probs(transcript))
    for image, caption in ((0, 0), (0, 1), (1, 0)):
        memory = decoder.read(features[image : image + 1])
        state, expected = decoder.start(memory), 0.0
        for t in range(LENGTHS[image, caption]):
            word, following = WORDS[image, caption, t : t + 2]
            log_probs, state, _ = decoder.step(word.view(1, 1), state, memory, Argmax())
            expected += log_probs[0, 0, following]
        torch.testing.assert_close(total[image, caption], expected)


def test_padding_and_absent_captions_count_for_nothing(decoder, features):
    transcript = read(decoder, features)
    assert len(transcript.targets) == 9
    assert transcript.per_caption(word_log_probs(transcript))[1, 1] == 0
    longer = torch.nn.functional.pad(WORDS, (0, 3))
    again = decoder(decoder.read(features), longer, LENGTHS, Soft())
    torch.testing.assert_close(soft_objective(again).total, soft_objective(transcript).total)
    alone = decoder(decoder.read(features[1:]), WORDS[1:, :1], LENGTHS[1:, :1], Soft())
    torch.testing.assert_close(
        transcript.per_caption(transcript.weights)[1, 0], alone.per_caption(alone.weights)[0, 0]
    )


def test_captions_share_a_photograph_without_touching_each_other(decoder, features):
    memory = decoder.read(features)
    states = State(torch.randn(2, 3, 7).double(), torch.randn(2, 3, 7).double())
    words = torch.tensor([[4, 5, 6], [7, 8, 4]])
    log_probs, _, step = decoder.step(words, states, memory, Soft())
    for column in range(3):
        one = State(states.h[:, column, None], states.c[:, column, None])
        alone, _, single = decoder.step(words[:, column, None], one, memory, Soft())
        torch.testing.assert_close(log_probs[:, column], alone[:, 0])
        torch.testing.assert_close(step.selection.weights[:, column], single.selection.weights[:, 0])


def test_the_gradient_is_right(decoder, features):
    parameter = decoder.scoring.v
    loss = soft_objective(read(decoder, features), 1.0, 0.1).total
    (analytic,) = torch.autograd.grad(loss, parameter)
    for i in range(len(parameter)):
        sides = []
        for shift in (1e-6, -2e-6):
            with torch.no_grad():
                parameter[i] += shift
            sides.append(soft_objective(read(decoder, features), 1.0, 0.1).total.item())
        with torch.no_grad():
            parameter[i] += 1e-6
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(analytic[i].item(), rel=1e-4, abs=1e-8)


def test_the_encoders_scale_does_not_matter(features):
    decoder = Decoder(9, 6, None, 4, 7, 3, dropout=0.0).double()
    small, large = (
        decoder(decoder.read(scale * features), WORDS, LENGTHS, Soft()).logits for scale in (10.0, 1000.0)
    )
    torch.testing.assert_close(small, large, rtol=1e-4, atol=1e-5)
