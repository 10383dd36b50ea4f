"""Checks of the vocabularies: the target's, the draft's, and the map between them (d2t)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .case import Case, Finding, problem
from .families import at_least, draft_class
from .files import Tensor, read_integers

_LLAMA = "srt/models/llama_eagle3.py"
_MAP = f"{_LLAMA}: hot_token_id = d2t + arange"


def vocabularies_agree(case: Case) -> Iterator[Finding]:
    """vocab_size equals the target's; draft_vocab_size is there and lm_head has that many rows."""
    target, own = case.target.number("vocab_size"), case.draft.number("vocab_size")
    if not case.eagle3 or not case.draft_is_eagle3:
        return
    if target and own and target != own:
        yield problem(
            "vocab-size",
            f"the draft's vocab_size is {own}; the target's is {target}",
            why="the draft works on the target's embedding and proposes the target's tokens",
            fix="use the draft's own target",
            source=f"{_LLAMA}: set_embed",
        )
    known = draft_class(case.draft.architecture)
    drafts, tied = case.draft.number("draft_vocab_size"), bool(case.draft.config.get("tie_word_embeddings"))
    if "draft_vocab_size" not in case.draft.config and not (known is not None and known.mla):
        yield problem(
            "draft-vocab-missing",
            "the draft's config has no draft_vocab_size",
            why="SGLang reads it as an attribute: AttributeError at start (null is fine from 0.5.2 on)",
            fix="add draft_vocab_size: the number of rows of lm_head.weight",
            source=f"{_LLAMA}: config.draft_vocab_size",
        )
        return
    if drafts is not None and own and (drafts > own or (tied and drafts != own)):
        yield problem(
            "draft-vocab-size",
            f"draft_vocab_size {drafts} does not fit vocab_size {own}"
            + (" with tie_word_embeddings" if tied else ""),
            why="the draft's tokens are a part of the target's; with tied embeddings lm_head has all of them",
            fix="let draft_vocab_size be the number of rows of lm_head.weight",
            source=f"{_LLAMA}: lm_head",
        )
    yield from _head(case, drafts, tied)


def _head(case: Case, drafts: int | None, tied: bool) -> Iterator[Finding]:
    head = case.draft.tensor("lm_head.weight")
    if not case.draft.tensors or tied:
        return
    if drafts is None:
        if not at_least(case.release, "0.5.2"):
            yield problem(
                "draft-vocab-null",
                f"draft_vocab_size is null, which {case.release} cannot read",
                why="lm_head is taken from the target from 0.5.2 on only",
                fix="use 0.5.2 or later",
                source=f"{_LLAMA}: load_lm_head_from_target",
            )
        return
    if head is None:
        yield problem(
            "lm-head-missing",
            f"draft_vocab_size is {drafts} and the draft has no lm_head.weight",
            why="the head stays at random values; it is taken from the target only when draft_vocab_size is null",
            fix="set draft_vocab_size to null where the draft shares the target's head",
            source=f"{_LLAMA}: load_lm_head_from_target",
        )
    elif head.shape[0] != drafts:
        yield problem(
            "lm-head-rows",
            f"lm_head.weight has {head.shape[0]} rows; draft_vocab_size is {drafts}",
            why="the shapes differ when the weights are loaded",
            fix="let draft_vocab_size be the number of rows",
            source=f"{_LLAMA}: lm_head",
        )


def map_fits(case: Case) -> Iterator[Finding]:
    """d2t: there where the draft has fewer tokens, one entry each, strictly increasing, and as t2d says."""
    drafts, vocab = case.draft.number("draft_vocab_size"), case.draft.number("vocab_size")
    if not case.draft_readable or drafts is None or vocab is None:
        return
    d2t = case.draft.tensor("d2t")
    if d2t is None:
        if drafts < vocab:
            yield problem(
                "d2t-missing",
                f"the draft proposes {drafts} of {vocab} tokens and has no d2t that says which",
                why="draft token k is taken for target token k; acceptance collapses (AutoModel PR #2447)",
                fix="add d2t to the checkpoint (offset from draft id to target id)",
                source=_MAP,
            )
        return
    if d2t.shape != (drafts,):
        yield problem(
            "d2t-length",
            f"d2t has shape {list(d2t.shape)}; draft_vocab_size is {drafts}",
            why="every draft token needs one entry",
            fix="use the d2t that belongs to this lm_head",
            source=_MAP,
        )
        return
    try:
        offsets = read_integers(d2t)
    except (OSError, ValueError) as error:
        yield problem(
            "d2t-unreadable", "d2t cannot be read", why=str(error), fix="store it as I64", source=_MAP
        )
        return
    yield from _map_values(case, offsets, drafts, vocab)


def _map_values(case: Case, offsets: list[int], drafts: int, vocab: int) -> Iterator[Finding]:
    targets = [draft + offset for draft, offset in enumerate(offsets)]
    outside = [target for target in targets if not 0 <= target < vocab]
    if outside:
        yield problem(
            "d2t-range",
            f"d2t maps {len(outside)} draft tokens outside of the vocabulary of {vocab}, for example to {outside[0]}",
            why="d2t holds offsets (target id = draft id + d2t); some tools write target ids instead",
            fix="store offsets: target id minus draft id",
            source=_MAP,
        )
        return
    if any(later <= earlier for earlier, later in pairwise(targets)):
        yield problem(
            "d2t-not-increasing",
            "d2t does not give strictly increasing target tokens",
            why="training numbers the draft's tokens in the order of the target's; a repeated or falling one means a "
            "map of another draft",
            fix="use the d2t that belongs to this lm_head",
            source=_MAP,
        )
        return
    yield from _map_against_mask(case, case.draft.tensor("t2d"), targets)
    if drafts < vocab and not any(offsets):
        yield problem(
            "d2t-zero",
            f"d2t is all zero: the draft would propose the first {drafts} of {vocab} tokens",
            why="a draft's vocabulary is chosen by frequency and is not the first tokens; zeros are what an "
            "uninitialised map looks like",
            fix="restore d2t from training, or accept d2t-zero where the first tokens are meant",
            source=_MAP,
        )


def _map_against_mask(case: Case, mask: Tensor | None, targets: list[int]) -> Iterator[Finding]:
    if mask is None or len(mask.shape) != 1:
        return
    try:
        marked = [token for token, used in enumerate(read_integers(mask)) if used]
    except (OSError, ValueError):
        return
    if marked != targets:
        wrong = len(set(marked) ^ set(targets))
        yield problem(
            "d2t-against-t2d",
            f"d2t and t2d of the draft name different tokens ({wrong} of {len(targets)} differ)",
            why="t2d marks the target's tokens that the draft knows; SGLang uses d2t alone, so nothing else notices",
            fix="use the pair of maps that training wrote",
            source=f"{_MAP}; t2d is skipped",
        )
