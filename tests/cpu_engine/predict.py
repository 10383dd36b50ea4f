"""What a clockwork pair must generate and accept, from the tables in `pair.json`. No torch, no model.

In the target every token has exactly one successor, so greedy text is a walk. At chain position k (counted
from 0) the right draft errs exactly when the true token is in ``wrong[k]``; in a wrong wiring it always
errs. With ``--speculative-eagle-topk 1`` that fixes every verification, hence the histogram, the text and
both accept lengths.

    pair = load("pair/pair.json")
    one = predict(pair, last_token(pair, "Tell me a story"), max_new_tokens=64, steps=3)
    total([one]).accept_length           # what sglang_accept_rate must measure for this prompt, exactly
    expected_accept_length(pair, 3)      # what long answers settle to
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PIECE = re.compile(r" ?\S+|\s+")  # the tokenizer's pieces: a word with its leading space and punctuation


@dataclass(frozen=True)
class Pair:
    """The tables of one pair.

    ``successor`` [vocabulary]: token after each token. ``wrong``: per chain position, the true tokens that
    the draft misses; the last entry holds for all deeper positions. ``starts``: first tokens of the
    sentences.
    """

    successor: tuple[int, ...]
    wrong: tuple[frozenset[int], ...]
    ring: tuple[int, ...]
    starts: tuple[int, ...]
    eos: int
    words: dict[str, int]
    byte_ids: tuple[int, ...]
    raw: dict

    def drafts_accepted(self, root: int, steps: int) -> int:
        """Drafts that a verification accepts when ``root`` is the last verified token."""
        token = root
        for position in range(steps):
            token = self.successor[token]
            if token in self.wrong[min(position, len(self.wrong) - 1)]:
                return position
        return steps


@dataclass(frozen=True)
class Prediction:
    """One request. ``histogram[i]``: verifications with i accepted drafts; ``tokens``: the output."""

    histogram: tuple[int, ...]
    tokens: tuple[int, ...]
    finish: str  # "stop" or "length"

    @property
    def verify_ct(self) -> int:
        """Number of verifications (SGLang's ``spec_verify_ct``)."""
        return sum(self.histogram)


@dataclass(frozen=True)
class Total:
    """Several requests together, by Aerie's definitions."""

    histogram: tuple[int, ...]
    verify_ct: int
    completion_tokens: int
    accept_length: float  # sum(completion_tokens - 1) / sum(verify_ct)
    accept_length_served: float  # SGLang's own: sum(completion_tokens) / sum(verify_ct)
    accept_length_drafts: float  # 1 + accepted drafts / verifications, tokens cut off at the end included
    accept_rate: float  # accepted drafts / proposed drafts


def load(path: str | Path) -> Pair:
    """Read a `pair.json`."""
    return from_tables(json.loads(Path(path).read_text()))


def from_tables(raw: dict) -> Pair:
    """The content of a `pair.json` as a `Pair`."""
    return Pair(
        successor=tuple(raw["successor"]),
        wrong=tuple(frozenset(tokens) for tokens in raw["wrong"]),
        ring=tuple(raw["ring"]),
        starts=tuple(raw["starts"]),
        eos=raw["eos"],
        words=raw["words"],
        byte_ids=tuple(raw["byte_ids"]),
        raw=raw,
    )


def last_token(pair: Pair, content: str) -> int:
    """Id of the last token of a prompt or of a chat's last message, which picks how the answer begins.

    The chat template adds nothing after the last message. ``content`` must not contain special tokens.
    """
    pieces = PIECE.findall(content)
    if not pieces:
        raise ValueError("an empty prompt has no last token")
    word = pair.words.get(pieces[-1])
    return pair.byte_ids[pieces[-1].encode()[-1]] if word is None else word


def predict(
    pair: Pair, last: int, max_new_tokens: int, steps: int, *, ignore_eos: bool = False, right: bool = True
) -> Prediction:
    """The exact answer to a prompt that ends with token ``last``; ``right``: the draft is wired as it
    should be.

    The first token comes from the prefill, so it is no part of a verification.
    """
    histogram = [0] * (steps + 1)
    token = pair.successor[last]
    tokens = [token]

    def ended() -> bool:
        return token == pair.eos and not ignore_eos

    while len(tokens) < max_new_tokens and not ended():
        accepted = pair.drafts_accepted(token, steps) if right else 0
        histogram[accepted] += 1
        for _ in range(accepted + 1):
            token = pair.successor[token]
            tokens.append(token)
            if ended():
                break
    stopped = ended() and len(tokens) <= max_new_tokens
    return Prediction(tuple(histogram), tuple(tokens[:max_new_tokens]), "stop" if stopped else "length")


def predict_all(
    pair: Pair,
    lasts: Iterable[int],
    max_new_tokens: int,
    steps: int,
    *,
    ignore_eos: bool = False,
    right: bool = True,
) -> Total:
    """Several prompts, given by their last tokens, taken together."""
    return total(
        predict(pair, last, max_new_tokens, steps, ignore_eos=ignore_eos, right=right) for last in lasts
    )


def total(predictions: Iterable[Prediction]) -> Total:
    """Sum over requests; ValueError when there was no verification at all."""
    many = list(predictions)
    histogram = tuple(sum(column) for column in zip(*(p.histogram for p in many), strict=True))
    verify_ct = sum(histogram)
    if verify_ct == 0:
        raise ValueError("no verification: the answers are one token long")
    tokens = sum(len(p.tokens) for p in many)
    drafts = accepted_drafts(histogram)
    return Total(
        histogram=histogram,
        verify_ct=verify_ct,
        completion_tokens=tokens,
        accept_length=(tokens - len(many)) / verify_ct,
        accept_length_served=tokens / verify_ct,
        accept_length_drafts=1 + drafts / verify_ct,
        accept_rate=drafts / (verify_ct * (len(histogram) - 1)),
    )


def accepted_drafts(histogram: Sequence[int]) -> int:
    """Number of accepted drafts in a histogram of verifications by accepted drafts."""
    return sum(accepted * count for accepted, count in enumerate(histogram))


def expected_accept_length(pair: Pair, steps: int, *, right: bool = True) -> float:
    """Accept length that a long answer settles to, end effects aside; 1.0 for a wrong wiring.

    The roots of the verifications walk the ring of sentences and end up in a cycle; this is the mean over it.
    """
    return orbit(pair, pair.starts[0], steps) if right else 1.0


def orbit(pair: Pair, start: int, steps: int) -> float:
    """Mean tokens per verification over the cycle that is reached from ``start``."""
    advances: list[int] = []
    first_seen: dict[int, int] = {}
    root = start
    while root not in first_seen:
        first_seen[root] = len(advances)
        advance = pair.drafts_accepted(root, steps) + 1
        advances.append(advance)
        for _ in range(advance):
            root = pair.successor[root]
    cycle = advances[first_seen[root] :]
    return sum(cycle) / len(cycle)
