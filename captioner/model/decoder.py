"""The decoder: an LSTM that attends to the regions before each word (Xu et al. 2015, section 3.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from captioner.attention.scoring import Additive
from captioner.attention.selection import Selection, SelectionRule


@dataclass(frozen=True)
class Memory:
    """What the decoder reads of B photographs, computed once and shared by all their captions.

    Attributes:
        values: a (B, L, F), the regions that a selection rule chooses from.
        keys: (B, L, A), the regions as the scoring function wants them.
    """

    values: Tensor
    keys: Tensor

    def __getitem__(self, images: Tensor) -> Memory:
        return Memory(self.values[images], self.keys[images])


@dataclass(frozen=True)
class State:
    """The LSTM's hidden state h and cell c, (B, n, H): n captions or beams of each photograph."""

    h: Tensor
    c: Tensor


@dataclass(frozen=True)
class Step:
    """One word's step for n captions of B photographs.

    Attributes:
        output: (B, n, E) the deep output before the vocabulary's projection.
        scores: e (B, n, L).
        selection: what the rule made of the scores.
        gate: beta (B, n).
    """

    output: Tensor
    scores: Tensor
    selection: Selection
    gate: Tensor


@dataclass(frozen=True)
class Transcript:
    """All M unpadded steps of a batch of given captions, n of each of B photographs, packed.

    Attributes:
        logits: (M, V).
        targets: (M,) the word that came.
        caption: (M,) index in B x n of the caption that the step belongs to.
        scores, weights: (M, L).
        gate: beta (M,).
        log_prob: (M,) log-probability of the selection, None where nothing was random.
        shape: (B, n).
    """

    logits: Tensor
    targets: Tensor
    caption: Tensor
    scores: Tensor
    weights: Tensor
    gate: Tensor
    log_prob: Tensor | None
    shape: tuple[int, int]

    def per_caption(self, steps: Tensor) -> Tensor:
        """Sum a quantity of the steps (M, ...) over each caption: (B, n, ...)."""
        batch, n = self.shape
        total = steps.new_zeros(batch * n, *steps.shape[1:])
        return total.index_add(0, self.caption, steps).unflatten(0, (batch, n))

    def to_go(self, steps: Tensor) -> Tensor:
        """Sum a quantity of the steps (M,) from each step to the end of its caption: (M,)."""
        order = self.caption.argsort(stable=True)
        passed = steps[order].cumsum(0)
        ends = self.per_caption(steps).flatten().cumsum(0)[self.caption[order]]
        return torch.empty_like(steps).index_copy(0, order, ends - passed + steps[order])

    def without(self, words: Sequence[int]) -> Transcript:
        """As if the model could not say these words: the others' probabilities sum to one."""
        index = torch.tensor(words, device=self.logits.device)
        return replace(self, logits=self.logits.index_fill(1, index, -torch.inf))


class Decoder(nn.Module):
    """LSTM with attention, gate and deep output.

    Projected features are normalised (Ba et al. 2016, arXiv 1607.06450): encoders differ in scale, and
    attention to features of a small one never leaves the uniform distribution.

    The state is (B, n, H) for n captions, beams or draws of each photograph, so that they share its keys
    without copies. All products with h_{t-1}, the LSTM's, the query's and the gate's, are one.

    Args:
        vocabulary_size: V, with the special tokens.
        region_size: D, the size of the encoder's features.
        feature_size: F, what the features are projected to first; None does not project them.
        embedding_size: E, also the size of the deep output.
        hidden_size: H.
        attention_size: A.
        dropout: on embedded words, regions and the deep output.
        gist: the share that the mean region has in each region's value. With 0, the paper's model, a
            hard selection shows a word one region and nothing of the scene around it; Anderson et al. (2018,
            arXiv 1707.07998) give the mean region at each word, too.
    """

    def __init__(
        self,
        vocabulary_size: int,
        region_size: int,
        feature_size: int | None = 512,
        embedding_size: int = 384,
        hidden_size: int = 384,
        attention_size: int = 384,
        dropout: float = 0.5,
        gist: float = 0.0,
    ) -> None:
        super().__init__()
        self.sizes = {
            "feature_size": feature_size,
            "embedding_size": embedding_size,
            "hidden_size": hidden_size,
            "attention_size": attention_size,
        }
        self.region_size = region_size
        self.gist = gist
        self.hidden_size, self.attention_size = hidden_size, attention_size
        values = feature_size or region_size
        self.project = nn.Linear(region_size, values) if feature_size else nn.Identity()
        self.normalise = nn.LayerNorm(values)
        self.keys = nn.Linear(values, attention_size)
        self.scoring = Additive(attention_size)
        self.initial = nn.Linear(values, 2 * hidden_size)
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.from_word = nn.Linear(embedding_size, 4 * hidden_size, bias=False)
        self.from_context = nn.Linear(values, 4 * hidden_size, bias=False)
        self.from_hidden = nn.Linear(hidden_size, 4 * hidden_size + attention_size + 1)
        self.output_hidden = nn.Linear(hidden_size, embedding_size)
        self.output_context = nn.Linear(values, embedding_size, bias=False)
        self.output = nn.Linear(embedding_size, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.output.bias)
        h = self.hidden_size
        for gate in range(4):
            nn.init.orthogonal_(self.from_hidden.weight.data[gate * h : (gate + 1) * h])
        with torch.no_grad():
            self.from_hidden.bias.zero_()
            self.from_hidden.bias[h : 2 * h] = 1.0  # remember at first: Jozefowicz et al. 2015

    def read(self, features: Tensor) -> Memory:
        """Project region features (B, L, D), once for all words and captions."""
        values = self.normalise(self.project(features))
        if self.gist:
            values = values.lerp(values.mean(1, keepdim=True), self.gist)
        return Memory(self.dropout(values), self.keys(values))

    def start(self, memory: Memory, n: int = 1) -> State:
        """h_0 and c_0: tanh of one layer of the mean region, the same for n captions of each photograph."""
        h, c = torch.tanh(self.initial(memory.values.mean(1))).chunk(2, -1)
        return State(*(x[:, None].expand(-1, n, -1).contiguous() for x in (h, c)))

    def step(
        self,
        words: Tensor,
        state: State,
        memory: Memory,
        rule: SelectionRule,
        u: Tensor | None = None,
    ) -> tuple[Tensor, State, Step]:
        """Read words (B, n) and give log p (B, n, V) of the next, the new state, and what was attended."""
        embedded = self.embedding(words)
        state, step = self.advance(embedded, self.from_word(embedded), state, memory, rule, u)
        return self.output(step.output).log_softmax(-1), state, step

    def advance(
        self,
        embedded: Tensor,
        word_gates: Tensor,
        state: State,
        memory: Memory,
        rule: SelectionRule,
        u: Tensor | None = None,
    ) -> tuple[State, Step]:
        """One step from an embedded word (B, n, E) and its part (B, n, 4H) of the LSTM's input."""
        h = self.hidden_size
        gates, query, gate = self.from_hidden(state.h).split([4 * h, self.attention_size, 1], -1)
        scores = self.scoring(query, memory.keys)
        selection = rule(scores, memory.values, u)
        gate = torch.sigmoid(gate)
        context = gate * selection.context
        i, f, o, g = (gates + word_gates + self.from_context(context)).split(h, -1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        new = State(torch.sigmoid(o) * torch.tanh(c), c)
        output = embedded + self.output_hidden(new.h) + self.output_context(context)
        return new, Step(self.dropout(output), scores, selection, gate.squeeze(-1))

    def forward(self, features: Tensor, words: Tensor, lengths: Tensor, rule: SelectionRule) -> Transcript:
        """Read given captions (teacher forcing).

        Args:
            features: (B, L, D).
            words: (B, n, T + 1) start token, words, end token, padding; the captions of a photograph
                longest first, so that the loop's later steps run over the first columns only.
            lengths: (B, n) number of steps, the end token's included; 0 for a caption that is not there.
            rule: how contexts are selected.
        """
        memory = self.read(features)
        batch, n = lengths.shape
        state = self.start(memory, n)
        embedded = self.dropout(self.embedding(words[..., :-1]))
        word_gates = self.from_word(embedded)
        longest = lengths.amax(0).tolist()
        steps: list[Step] = []
        kept: list[Tensor] = []
        for t in range(max(longest)):
            k = sum(length > t for length in longest)
            state, step = self.advance(
                embedded[:, :k, t],
                word_gates[:, :k, t],
                State(state.h[:, :k], state.c[:, :k]),
                memory,
                rule,
            )
            steps.append(step)
            kept.append(self.positions(lengths[:, :k], t, n))
        return self.pack(steps, kept, words, (batch, n))

    @staticmethod
    def positions(lengths: Tensor, t: int, n: int) -> Tensor:
        """(B, k) index in B x n of the captions that have a step t, -1 for those that have ended."""
        batch, k = lengths.shape
        device = lengths.device
        caption = torch.arange(batch, device=device)[:, None] * n + torch.arange(k, device=device)
        return torch.where(lengths > t, caption, -1)

    def pack(
        self, steps: list[Step], kept: list[Tensor], words: Tensor, shape: tuple[int, int]
    ) -> Transcript:
        """Put the unpadded steps one after the other; the vocabulary's projection is one product."""
        index = torch.cat([positions.flatten() for positions in kept])
        rows = (index >= 0).nonzero().squeeze(-1)
        caption = index[rows]
        t = torch.repeat_interleave(
            torch.arange(len(kept), device=index.device),
            torch.tensor([positions.numel() for positions in kept], device=index.device),
        )[rows]

        def packed(parts: list[Tensor]) -> Tensor:
            return torch.cat([part.flatten(0, 1) for part in parts])[rows]

        log_probs = [step.selection.log_prob for step in steps]
        return Transcript(
            logits=self.output(packed([step.output for step in steps])),
            targets=words.flatten(0, 1)[caption, t + 1],
            caption=caption,
            scores=packed([step.scores for step in steps]),
            weights=packed([step.selection.weights for step in steps]),
            gate=packed([step.gate for step in steps]),
            log_prob=packed([p for p in log_probs if p is not None]) if log_probs[0] is not None else None,
            shape=shape,
        )
