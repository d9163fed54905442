"""Beam search over all photographs of a batch at once; a beam of one is greedy decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from captioner.attention.selection import Selection, SelectionRule
from captioner.model.decoder import Decoder, Memory, State, Step
from captioner.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Hypothesis:
    """A caption as the search found it; T words, the end token counts in `log_prob` alone.

    Attributes:
        words: the T words' indices in the vocabulary.
        log_prob: log p(words, end) in nats.
        score: log_prob / (number of steps) ** length_penalty, what the search ranks by.
        finished: False where the end token was not the likeliest but forced, at the longest length.
        word_log_probs, weights, selected, gate: (T,), (T, L), (T, k) or None, (T,).
        heads: (T, heads, L) the weights of each head, None where there is one.
    """

    words: list[int]
    log_prob: float
    score: float
    finished: bool
    word_log_probs: Tensor
    weights: Tensor
    selected: Tensor | None
    gate: Tensor
    heads: Tensor | None


@dataclass(frozen=True)
class Record:
    """What one step did, kept to trace hypotheses back: rows of the photographs still in the batch."""

    row: dict[int, int]
    parents: Tensor
    words: Tensor
    log_probs: Tensor
    step: Step


@dataclass
class Ended:
    """A hypothesis that reached the end token, or the longest length, at a step of the search."""

    step: int
    beam: int
    log_prob: float
    score: float
    finished: bool


@dataclass
class Pool:
    """The ended hypotheses of one photograph."""

    size: int
    ended: list[Ended] = field(default_factory=list)

    def add(self, hypothesis: Ended) -> None:
        self.ended = sorted([*self.ended, hypothesis], key=lambda h: -h.score)[: self.size]

    def beats(self, bound: float) -> bool:
        """Whether the pool is full and nothing that scores at most `bound` could enter it."""
        return len(self.ended) == self.size and self.ended[-1].score >= bound


@torch.inference_mode()
def beam_search(
    decoder: Decoder,
    memory: Memory,
    rule: SelectionRule,
    beam_size: int = 3,
    max_length: int = 20,
    length_penalty: float = 0.7,
    seeds: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The best captions of each photograph, best first, at least one each.

    Hypotheses are ranked by log p / steps ** length_penalty (Wu et al. 2016, arXiv 1609.08144, with the
    plain power); 0 ranks by probability, which prefers short captions. A photograph leaves the batch when
    none of its beams, ended at the next step for nothing, would beat its ended hypotheses; with a penalty
    above 1, which long captions gain by, ended at the last step. With 0 and above 1 nothing is lost by that;
    between them a caption that is surer of its later words than of its first might be.

    Args:
        memory: of B photographs.
        rule: how contexts are selected; each beam selects for itself.
        beam_size: K.
        max_length: the most words of a caption.
        seeds: B seeds for random rules, one a photograph, so that its captions do not depend on the batch.
    """
    device, batch = memory.mean.device, len(memory)
    state = decoder.start(memory, beam_size * rule.particles)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds] if rule.draws else []
    active = list(range(batch))
    pools = [Pool(beam_size) for _ in range(batch)]
    words = torch.full((batch, beam_size), Vocabulary.start, device=device)
    totals = torch.full((batch, beam_size), -torch.inf, device=device)
    totals[:, 0] = 0.0  # all beams start alike: let one of them branch
    records: list[Record] = []
    for t in range(max_length + 1):
        u = None
        if rule.draws:
            draws = decoder.scoring.heads * rule.draws
            u = uniform([generators[i] for i in active], beam_size * rule.particles, draws, device)
        log_probs, state, step = particle_step(decoder, words, state, memory, rule, u)
        log_probs[..., Vocabulary.never] = -torch.inf
        likeliest = log_probs.argmax(-1)
        if t == max_length:
            log_probs[..., : Vocabulary.end] = log_probs[..., Vocabulary.end + 1 :] = -torch.inf
        totals, parents, words, ended = expand(totals, log_probs, beam_size)
        gained = log_probs.flatten(1).gather(1, parents * log_probs.shape[-1] + words)
        records.append(Record({i: row for row, i in enumerate(active)}, parents, words, gained, step))
        for row, beam, log_prob in ended:
            score = log_prob / (t + 1) ** length_penalty
            finished = t < max_length or bool(likeliest[row, beam] == Vocabulary.end)
            pools[active[row]].add(Ended(t, beam, log_prob, score, finished))
        best = (
            totals[:, 0] / assumed_length(t, beam_size, length_penalty, max_length) ** length_penalty
        ).tolist()
        stay = [row for row, i in enumerate(active) if not pools[i].beats(best[row])]
        if t == max_length or not stay:
            break
        keep = torch.tensor(stay, device=device)
        active = [active[row] for row in stay]
        memory, totals, words, parents = memory[keep], totals[keep], words[keep], parents[keep]
        state = reorder(state, keep, parents, rule.particles)
    return [[trace(records, i, h) for h in pool.ended] for i, pool in enumerate(pools)]


def assumed_length(t: int, beam_size: int, length_penalty: float, max_length: int) -> int:
    """The number of steps by which a beam that goes on after step t is judged.

    A penalty of at most 1 seldom makes up for what further words cost: it is as if the beam ended next.
    """
    if beam_size == 1:
        return t + 1  # greedy decoding never looks back
    if length_penalty <= 1:
        return t + 2  # the end token's step is the next at the earliest
    return max_length + 1


def uniform(generators: list[torch.Generator], n: int, draws: int, device: torch.device) -> Tensor:
    """Uniform draws (B, n, draws), each photograph's from its own generator."""
    return torch.stack([torch.rand(n, draws, generator=g) for g in generators]).to(device)


def particle_step(
    decoder: Decoder, words: Tensor, state: State, memory: Memory, rule: SelectionRule, u: Tensor | None
) -> tuple[Tensor, State, Step]:
    """The decoder's step for words (B, K), with `rule.particles` states (B, K P, H) of each beam.

    A beam's word distribution, weights and gate are the means over its particles; its selected regions are
    all of theirs.
    """
    n = rule.particles
    log_probs, state, step = decoder.step(words.repeat_interleave(n, 1), state, memory, rule, u)
    if n == 1:
        return log_probs, state, step

    def by_beam(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (-1, n))

    found = step.selection
    assert found.selected is not None
    selection = Selection(
        by_beam(found.context).mean(2), by_beam(found.weights).mean(2), by_beam(found.selected).flatten(2)
    )
    mean = Step(
        by_beam(step.output).mean(2), by_beam(step.scores).mean(2), selection, by_beam(step.gate).mean(2)
    )
    return by_beam(log_probs).logsumexp(2) - math.log(n), state, mean


def expand(
    totals: Tensor, log_probs: Tensor, beam_size: int
) -> tuple[Tensor, Tensor, Tensor, list[tuple[int, int, float]]]:
    """Continue each photograph's beams by their best words.

    Returns the totals, parents and words (B, K) of the beams that go on, and those among the best K
    continuations that end: (row, beam, log_prob).
    """
    vocabulary = log_probs.shape[-1]
    candidates = (totals[..., None] + log_probs).flatten(1)
    # At most K of the best 2 K can be ends, one of each beam: K are left to go on.
    best, index = candidates.topk(min(2 * beam_size, candidates.shape[1]), 1)
    parents, words = index // vocabulary, index % vocabulary
    ends = words == Vocabulary.end
    ranked = ends[:, :beam_size] & best[:, :beam_size].isfinite()
    ended = [
        (row, int(parents[row, place]), float(best[row, place])) for row, place in ranked.nonzero().tolist()
    ]
    going = best.masked_fill(ends, -torch.inf)
    order = going.sort(dim=1, descending=True, stable=True).indices[:, :beam_size]
    return going.gather(1, order), parents.gather(1, order), words.gather(1, order), ended


def reorder(state: State, keep: Tensor, parents: Tensor, particles: int) -> State:
    """The states of the photographs to keep, each beam's particles from its parent's."""
    own = torch.arange(particles, device=parents.device)
    parents = (parents[..., None] * particles + own).flatten(1)
    return State(state.h[keep[:, None], parents], state.c[keep[:, None], parents])


def trace(records: list[Record], image: int, ended: Ended) -> Hypothesis:
    """Follow a hypothesis back to its first word."""
    beam = ended.beam
    path: list[tuple[Record, int, int]] = []
    log_probs: list[Tensor] = []
    words: list[int] = []
    for record in reversed(records[: ended.step]):
        row = record.row[image]
        words.append(int(record.words[row, beam]))
        log_probs.append(record.log_probs[row, beam])
        beam = int(record.parents[row, beam])
        path.append((record, row, beam))
    path.reverse()
    like = records[0].step

    def steps(get: Callable[[Step], Tensor]) -> Tensor:
        """Stack a (B, K, ...) tensor of the steps along the path: (T, ...)."""
        if not path:
            return get(like).new_zeros(0, *get(like).shape[2:]).cpu()
        return torch.stack([get(record.step)[row, beam] for record, row, beam in path]).cpu()

    return Hypothesis(
        words=words[::-1],
        log_prob=ended.log_prob,
        score=ended.score,
        finished=ended.finished,
        word_log_probs=torch.stack(log_probs[::-1]).cpu() if words else steps(lambda step: step.gate),
        weights=steps(lambda step: step.selection.weights),
        selected=None if like.selection.selected is None else steps(selected_regions),
        gate=steps(lambda step: step.gate),
        heads=steps(lambda step: step.scores).softmax(-1) if like.scores.shape[2] > 1 else None,
    )


def selected_regions(step: Step) -> Tensor:
    assert step.selection.selected is not None
    return step.selection.selected
