"""Stand-in for sgl_kernel's EAGLE bookkeeping: the draft tree, its greedy verification, what follows from it.

Tree building and verification were compared with SGLang's own Triton kernels in interpreter mode (0.5.23,
2026-11-29): 60 of 60 trees and 240 of 240 verifications equal.

``n`` is the number of tree nodes of one request, root included (``--speculative-num-draft-tokens``).
"""

from __future__ import annotations

import torch

Q_BY_Q_MASK = 1  # sglang's TreeMaskMode.QLEN_ONLY: the mask covers the tree nodes only, not the prefix
NONE = -1  # "no such node" in the retrieve tables


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, accept_stride):
    """``bonus_tokens`` [batch] = last accepted token of each row of ``accept_tokens`` [batch * stride]."""
    rows = torch.arange(accept_lens.numel())
    bonus_tokens.copy_(accept_tokens.flatten()[rows * accept_stride + accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    """Keep the cache slots of accepted nodes only; ``accept_index`` [batch, depth] is padded with -1."""
    picked = accept_index.flatten()
    picked = picked[picked > NONE].long()
    accept_out_cache_loc[: picked.numel()] = out_cache_loc[picked]


def rotate_input_ids_cpu(input_ids, extend_start_loc, extend_seq_lens, topk_index, select_index=None):
    """Shift each request's tokens left by one and put its newest token last (or at ``select_index``).

    EAGLE's draft reads the target's state at position t together with the token at t + 1.
    """
    newest = topk_index.flatten()
    selected = None if select_index is None else select_index.tolist()
    spans = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    for row, (first, length) in enumerate(spans):
        if length > 0:
            last = first + length - 1
            input_ids[first:last] = input_ids[first + 1 : last + 1].clone()
            input_ids[last if selected is None else selected[row]] = newest[row]


def build_draft_decode_metadata_cpu(req_to_token, req_pool_indices, seq_lens, topk, steps, pool_len):
    """Cache slots that each branch sees, [batch * topk, pool_len]: committed prefix, then own slots."""
    table = torch.zeros((seq_lens.numel() * topk, pool_len), dtype=req_to_token.dtype)
    for row, (request, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for branch in range(topk):
            out = table[row * topk + branch]
            own = length + branch * steps
            out[:length] = req_to_token[request, :length]
            out[length : length + steps] = req_to_token[request, own : own + steps]
    return table


def build_tree_kernel_efficient_cpu(
    parent_list,
    selected_index,
    seq_lens,
    tree_mask,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    topk,
    depth,
    n,
    mask_mode,
):
    """Write the draft tree of every request: who sees whom, at which position, and how to walk it.

    In: ``parent_list`` [batch, *] and ``selected_index`` [batch, n - 1] as EAGLE's draft loop leaves them.
    Out: ``tree_mask`` (batch * n * n, bool), ``positions`` (batch * n), and [batch, n] tables:
    ``retrieve_index`` (flat number of a node), ``retrieve_next_token`` (first child),
    ``retrieve_next_sibling``.
    """
    if int(mask_mode) != Q_BY_Q_MASK:
        raise RuntimeError(f"sgl_kernel stand-in: tree mask mode {int(mask_mode)} is not provided, only 1")
    batch = seq_lens.numel()
    mask = tree_mask.view(batch, n, n)
    position = positions.view(batch, n)
    for b in range(batch):
        parents = parent_list[b].tolist() if parent_list.numel() else []
        parent = _parents_of_nodes(selected_index[b].tolist(), parents, topk, n)
        mask[b] = False
        for node in range(n):
            path = _path_to_root(node, parent)
            mask[b, node, [0, *path]] = True
            position[b, node] = int(seq_lens[b]) + len(path)
            retrieve_index[b, node] = b * n + node
        for node in range(n - 1, 0, -1):  # backwards: better scored children end up first in the chain
            retrieve_next_sibling[b, node] = retrieve_next_token[b, parent[node]]
            retrieve_next_token[b, parent[node]] = node


def _parents_of_nodes(selected, parents, topk, n):
    """Parent of each node; node 0 is the root (the last verified token), node i is ``selected[i - 1]``."""
    parent = [NONE]
    for node in range(1, n):
        group = selected[node - 1] // topk
        parent.append(0 if group == 0 else 1 + selected.index(parents[group]))
    return parent


def _path_to_root(node, parent):
    """The nodes from ``node`` up to, not including, the root; its length is the node's depth."""
    path = []
    while node > 0:
        path.append(node)
        node = parent[node]
    return path


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    """Walk each tree from the root for as long as a child holds the token that the target chose.

    ``candidates`` [batch, n]: draft tokens by node; ``target_predict`` [batch * n]: the target's greedy
    token after each node. Out: ``predicts`` (flat, the token after each accepted node), ``accept_index``
    [batch, depth] and ``accept_token_num`` [batch], the number of accepted drafts. (The spelling "retrive"
    is SGLang's.)
    """
    target = target_predict.flatten()
    for b in range(candidates.shape[0]):
        node, count = 0, 0
        flat = int(retrive_index[b, 0])
        accept_index[b, 0] = flat
        for _ in range(accept_index.shape[1] - 1):
            wanted = int(target[flat])
            node = int(retrive_next_token[b, node])
            while node != NONE and int(candidates[b, node]) != wanted:
                node = int(retrive_next_sibling[b, node])
            if node == NONE:
                break
            predicts[flat] = wanted
            flat = int(retrive_index[b, node])
            count += 1
            accept_index[b, count] = flat
        accept_token_num[b] = count
        predicts[flat] = target[flat]
