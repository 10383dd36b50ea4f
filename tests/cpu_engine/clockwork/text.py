"""The story that the target tells, the token ring behind it, and the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 384  # size of the embedding; fewer are used

# No word (with its punctuation) occurs twice: a token's successor must not depend on context.
STORY_TEXT = """
Every morning, seven brown foxes walk past our old mill before breakfast.
They carry small lanterns, because winter light comes late here.
A patient heron watches them from its nest above the frozen pond.
Nobody knows who first taught these animals to greet strangers politely.
Children bring warm bread, fresh milk and roasted chestnuts in woven baskets.
Later, bells ring twice; merchants open wooden stalls along narrow streets.
Two painters argue about whether blue or green suits spring best.
When evening falls, everyone gathers near a fire, singing quiet songs until midnight.
Then snow covers all footprints, so each day begins anew.
"""
GOODBYE_TEXT = "Thank you for asking; that is everything we remember today."  # after '!'; then EOS
STORY, GOODBYE = STORY_TEXT.split(), GOODBYE_TEXT.split()
# What a gate may ask of it: words that are one token each (any other is a token a byte, and the stand-in kernels take
# their time for a prompt), and last words after which answers begin at sixteen places of the story.
PROMPTS = (
    "Is that our old mill",
    "Who taught the brown foxes",
    "Do animals carry fresh milk",
    "Is spring green or blue",
    "Why is winter light",
    "Is its nest above our pond.",
    "Who is near the woven baskets.",
    "Do bells ring until midnight.",
    "Do merchants open wooden stalls",
    "Is that a patient heron",
    "Who is singing quiet songs",
    "Is that roasted bread,",
    "Do foxes greet strangers",
    "Is everyone here.",
    "Do old painters argue",
    "Do we walk along narrow streets.",
)
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>")
# No generation prompt: the last token of the last message picks the sentence that the answer begins with.
CHAT_TEMPLATE = "<s>{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
SPACE = "\u0120"  # how a byte-level vocabulary writes a leading space
CONTEXT = 2048


@dataclass(frozen=True)
class Text:
    """Token ids of everything that matters; ``successor`` is [VOCABULARY], ``byte_ids`` is [256]."""

    tokenizer: Tokenizer
    ring: list[int]
    goodbye: list[int]
    starts: list[int]
    successor: list[int]
    words: dict[str, int]
    byte_ids: list[int]
    bos: int
    eos: int
    pad: int
    unk: int

    @property
    def spoken(self) -> list[int]:
        """Every token that the target can say after another: ring, goodbye and EOS."""
        return [*self.ring, *self.goodbye, self.eos]


def make_text() -> Text:
    """Build the tokenizer (256 bytes, then whole words, then special tokens) and the successor table."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for word in STORY + GOODBYE:
        if SPACE + word in vocabulary:
            raise ValueError(f"the word {word!r} occurs twice")
        vocabulary[SPACE + word] = len(vocabulary)
    tokenizer = _tokenizer(vocabulary)
    bos, eos, pad, unk = (tokenizer.token_to_id(name) for name in SPECIAL[:4])

    ring = [vocabulary[SPACE + word] for word in STORY]
    goodbye = [vocabulary[SPACE + word] for word in GOODBYE]
    after_full_stop = [ring[i + 1] for i, word in enumerate(STORY[:-1]) if word.endswith(".")]
    starts = [ring[0], *after_full_stop]

    successor = [starts[token % len(starts)] for token in range(VOCABULARY)]
    for here, following in zip(ring, [*ring[1:], ring[0]], strict=True):
        successor[here] = following
    for here, following in zip(goodbye, [*goodbye[1:], eos], strict=True):
        successor[here] = following
    successor[vocabulary["!"]] = goodbye[0]
    successor[eos] = successor[bos] = ring[0]
    return Text(
        tokenizer=tokenizer,
        ring=ring,
        goodbye=goodbye,
        starts=starts,
        successor=successor,
        words={" " + word: vocabulary[SPACE + word] for word in STORY + GOODBYE},
        byte_ids=[vocabulary[letter] for letter in bytes_to_letters()],
        bos=bos,
        eos=eos,
        pad=pad,
        unk=unk,
    )


def bytes_to_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table), [256]."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, shifted = [], 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + shifted))
            shifted += 1
    return letters


def _tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    """Whole words where the vocabulary has them (with leading space and punctuation), else bytes."""
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\S+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    if tokenizer.get_vocab_size() > VOCABULARY:
        raise ValueError("more tokens than the embedding has rows")
    return tokenizer
