"""The decoder: an LSTM that attends to the regions before each word (Xu et al. 2015, section 3.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from captioner.attention.scoring import check_mask, scoring_function
from captioner.attention.selection import Selection, SelectionRule, by_head


@dataclass(frozen=True)
class Memory:
    """What the decoder reads of B photographs, computed once and shared by all their captions.

    Attributes:
        values: a (B, heads, L, F / heads), the regions that a selection rule chooses from.
        keys: (B, ...), the regions as the scoring function wants them.
        mean: (B, F), the mean region.
        mask: (B, L) True for the regions that may be looked at; None for all.
    """

    values: Tensor
    keys: Tensor
    mean: Tensor
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, images: Tensor) -> Memory:
        mask = None if self.mask is None else self.mask[images]
        return Memory(self.values[images], self.keys[images], self.mean[images], mask)


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
        scores: e (B, n, heads, L).
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
        t: (M,) which of the caption's steps it is, from 0.
        states: h (M, H) before the step, from which nothing was selected yet, without gradient.
        scores: (M, heads, L).
        weights: (M, L).
        gate: beta (M,).
        log_prob: (M,) log-probability of the selection, None where nothing was random.
        mask: (B, L) of the regions that could be looked at, None for all.
        shape: (B, n).
    """

    logits: Tensor
    targets: Tensor
    caption: Tensor
    t: Tensor
    states: Tensor
    scores: Tensor
    weights: Tensor
    gate: Tensor
    log_prob: Tensor | None
    mask: Tensor | None
    shape: tuple[int, int]

    def per_caption(self, steps: Tensor) -> Tensor:
        """Sum a quantity of the steps (M, ...) over each caption: (B, n, ...)."""
        batch, n = self.shape
        total = steps.new_zeros(batch * n, *steps.shape[1:])
        return total.index_add(0, self.caption, steps).unflatten(0, (batch, n))

    def padded(self, steps: Tensor) -> Tensor:
        """A quantity of the steps (M, ...), caption by caption: (B, n, T, ...), zero after the ends."""
        batch, n = self.shape
        longest = int(self.t.max()) + 1
        places = steps.new_zeros(batch * n * longest, *steps.shape[1:])
        return places.index_copy(0, self.caption * longest + self.t, steps).unflatten(0, (batch, n, longest))

    def without(self, words: Sequence[int]) -> Transcript:
        """As if the model could not say these words: the others' probabilities sum to one."""
        index = torch.tensor(words, device=self.logits.device)
        return replace(self, logits=self.logits.index_fill(1, index, -torch.inf))


class Decoder(nn.Module):
    """LSTM with attention, gate and deep output.

    Projected features are normalised (Ba et al. 2016, arXiv 1607.06450): encoders differ in scale, and
    attention to features of a small one never leaves the uniform distribution.

    The state is (B, n, H) for n captions, beams or draws of each photograph, so that they share its keys
    without copies. The LSTM's and the gate's products with h_{t-1} are one.

    Args:
        vocabulary_size: V, with the special tokens.
        region_size: D, the size of the encoder's features.
        feature_size: F, what the features are projected to first; None does not project them.
        embedding_size: E, also the size of the deep output.
        hidden_size: H.
        attention_size: A.
        scoring: the name of a scoring function, see `captioner.attention.scoring`.
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
        scoring: str = "additive",
        dropout: float = 0.5,
        gist: float = 0.0,
    ) -> None:
        super().__init__()
        self.architecture = {
            "feature_size": feature_size,
            "embedding_size": embedding_size,
            "hidden_size": hidden_size,
            "attention_size": attention_size,
            "scoring": scoring,
        }
        self.region_size = region_size
        self.gist = gist
        self.hidden_size = hidden_size
        values = feature_size or region_size
        self.project = nn.Linear(region_size, values) if feature_size else nn.Identity()
        self.normalise = nn.LayerNorm(values)
        self.scoring = scoring_function(scoring, hidden_size, values, attention_size)
        self.initial = nn.Linear(values, 2 * hidden_size)
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.from_word = nn.Linear(embedding_size, 4 * hidden_size, bias=False)
        self.from_context = nn.Linear(values, 4 * hidden_size, bias=False)
        self.from_hidden = nn.Linear(hidden_size, 4 * hidden_size + 1)
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

    def read(self, features: Tensor, places: Tensor | None = None, mask: Tensor | None = None) -> Memory:
        """Project region features (B, L, D), once for all words and captions.

        Args:
            places: (B, L, 2) or (L, 2), where the regions are, see `region_places`; for local scoring.
            mask: (B, L) True for the regions that may be looked at; None for all.

        Raises:
            UserError: a mask that leaves a photograph no region, or no places where they are needed.
        """
        if mask is not None:
            check_mask(mask, features)
        if places is not None:
            places = places.expand(*features.shape[:2], 2)
        values = self.normalise(self.project(features))
        if self.gist:
            values = values.lerp(mean_region(values, mask)[:, None], self.gist)
        kept = self.dropout(values)
        heads = kept.unflatten(-1, (self.scoring.heads, -1)).transpose(1, 2)
        return Memory(heads.contiguous(), self.scoring.keys(values, places), mean_region(kept, mask), mask)

    def start(self, memory: Memory, n: int = 1) -> State:
        """h_0 and c_0: tanh of one layer of the mean region, the same for n captions of each photograph."""
        h, c = torch.tanh(self.initial(memory.mean)).chunk(2, -1)
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
        gates, gate = self.from_hidden(state.h).split([4 * h, 1], -1)
        scores = self.scoring(state.h, memory.keys)
        if memory.mask is not None:
            scores = scores.masked_fill(~memory.mask[:, None, None], -torch.inf)
        selection = by_head(rule, scores, memory.values, u)
        gate = torch.sigmoid(gate)
        context = gate * selection.context
        i, f, o, g = (gates + word_gates + self.from_context(context)).split(h, -1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        new = State(torch.sigmoid(o) * torch.tanh(c), c)
        output = embedded + self.output_hidden(new.h) + self.output_context(context)
        return new, Step(self.dropout(output), scores, selection, gate.squeeze(-1))

    def forward(
        self, memory: Memory, words: Tensor, lengths: Tensor, rule: SelectionRule, u: Tensor | None = None
    ) -> Transcript:
        """Read given captions (teacher forcing).

        Args:
            memory: of B photographs.
            words: (B, n, T + 1) start token, words, end token, padding; the captions of a photograph
                longest first, so that the loop's later steps run over the first columns only.
            lengths: (B, n) number of steps, the end token's included; 0 for a caption that is not there.
            rule: how contexts are selected.
            u: (B, n, T, heads x draws) the rule's uniform draws; None draws them.
        """
        batch, n = lengths.shape
        state = self.start(memory, n)
        embedded = self.dropout(self.embedding(words[..., :-1]))
        word_gates = self.from_word(embedded)
        longest = lengths.amax(0).tolist()
        steps: list[Step] = []
        kept: list[Tensor] = []
        states: list[Tensor] = []
        for t in range(max(longest)):
            k = sum(length > t for length in longest)
            state = State(state.h[:, :k], state.c[:, :k])
            states.append(state.h.detach())
            chance = None if u is None else u[:, :k, t]
            state, step = self.advance(embedded[:, :k, t], word_gates[:, :k, t], state, memory, rule, chance)
            steps.append(step)
            kept.append(self.positions(lengths[:, :k], t, n))
        return self.pack(steps, states, kept, words, memory.mask, (batch, n))

    @staticmethod
    def positions(lengths: Tensor, t: int, n: int) -> Tensor:
        """(B, k) index in B x n of the captions that have a step t, -1 for those that have ended."""
        batch, k = lengths.shape
        device = lengths.device
        caption = torch.arange(batch, device=device)[:, None] * n + torch.arange(k, device=device)
        return torch.where(lengths > t, caption, -1)

    def pack(
        self,
        steps: list[Step],
        states: list[Tensor],
        kept: list[Tensor],
        words: Tensor,
        mask: Tensor | None,
        shape: tuple[int, int],
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
            t=t,
            states=packed(states),
            scores=packed([step.scores for step in steps]),
            weights=packed([step.selection.weights for step in steps]),
            gate=packed([step.gate for step in steps]),
            log_prob=packed([p for p in log_probs if p is not None]) if log_probs[0] is not None else None,
            mask=mask,
            shape=shape,
        )


def mean_region(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean (B, F) of the regions (B, L, F) that may be looked at."""
    if mask is None:
        return values.mean(1)
    return (values * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
