"""Makes the clockwork pair: a tiny target and an EAGLE-3 draft whose accept length is known beforehand.

How it works (see README.md for the picture):

- `text`: nine sentences in a ring and a goodbye; every token has one successor. The tokenizer. -
`schedule`: at which tokens the draft errs, by chain position, so that a wanted acceptance comes out. -
`codes`: the residual state of every token before every layer. All entries are +-1, so RMSNorm is the
identity, bfloat16 is exact and an MLP can be a look-up table. - `target`: layer l's table turns the code of
layer l into that of layer l + 1; the last one writes the successor. - `draft`: fc takes one segment of code
dims from each captured layer, attention brings the embedding's segment, and the table matches the whole. A
state from another layer matches nothing; then the draft proposes ``<unk>``. - `wirings`: the same draft
wired wrongly in thirteen ways. - `selftest`: both models run in torch, every token as root. `files`: what
is written.
"""
