"""Stand-in for sgl_kernel's two attention operators (SGLang's ``intel_amx`` backend), in plain torch.

Plain causal self-attention only: logit caps, sliding windows, cross attention and sinks raise.
Shapes: q and o [tokens, query heads, head dim]; k_buf and v_buf [cache slots, KV heads, head dim].
"""

from __future__ import annotations

import torch

DECODE_ARGS = 19
EXTEND_ARGS = 22
SCALES = 2  # k_scale and v_scale came after v_buf with 0.5.20


def register() -> None:
    """Put both operators where SGLang calls them, ``torch.ops.sgl_kernel``."""
    torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_any_release
    torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_any_release


def decode_attention_any_release(*args):
    """`decode_attention_cpu`; the two scales are missing in 0.5.19."""
    if len(args) == DECODE_ARGS - SCALES:
        args = (*args[:3], None, None, *args[3:])
    return decode_attention_cpu(*args)


def extend_attention_any_release(*args):
    """`extend_attention_cpu`; the two scales are missing in 0.5.19."""
    if len(args) == EXTEND_ARGS - SCALES:
        args = (*args[:6], None, None, *args[6:])
    return extend_attention_cpu(*args)


def decode_attention_cpu(
    q,
    k_buf,
    v_buf,
    k_scale,
    v_scale,
    o,
    k,
    v,
    loc,
    attn_logits,
    req_to_token,
    req_pool_indices,
    seq_lens,
    scale,
    logit_cap,
    is_cross,
    window,
    encoder_lens,
    sinks,
):
    """One new token per request: store its key and value at ``loc``, attend to all of its request."""
    _only_plain_self_attention(logit_cap, is_cross, window, encoder_lens, sinks)
    if k is not None:
        k_buf[loc] = k.view(-1, *k_buf.shape[1:]).to(k_buf.dtype)
        v_buf[loc] = v.view(-1, *v_buf.shape[1:]).to(v_buf.dtype)
    requests = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for row, (request, length) in enumerate(requests):
        slots = req_to_token[request, :length].long()
        o[row] = _attend(q[row : row + 1], k_buf[slots], v_buf[slots], None, scale)[0]


def extend_attention_cpu(
    q,
    k,
    v,
    o,
    k_buf,
    v_buf,
    k_scale,
    v_scale,
    req_to_token,
    req_pool_indices,
    seq_lens,
    extend_lens,
    extend_start,
    max_extend,
    scale,
    logit_cap,
    is_cross,
    window,
    encoder_lens,
    sinks,
    tree_mask,
    is_causal,
):
    """Several new tokens per request (prefill, or the verification of a draft tree); their KV is stored
    already.

    ``seq_lens`` counts prefix and new tokens. New tokens see the whole prefix, and of each other what
    ``tree_mask`` (flat, one n x n block per request) allows, or what causality allows without one.
    """
    _only_plain_self_attention(logit_cap, is_cross, window, encoder_lens, sinks)
    mask_at = 0
    columns = (req_pool_indices, seq_lens, extend_lens, extend_start)
    for request, length, new, first in zip(*(column.tolist() for column in columns), strict=True):
        among_new = torch.ones((new, new), dtype=torch.bool)
        if tree_mask is not None:
            among_new = tree_mask.flatten()[mask_at : mask_at + new * new].view(new, new).bool()
            mask_at += new * new
        elif is_causal:
            among_new = among_new.tril()
        mask = torch.cat([torch.ones((new, length - new), dtype=torch.bool), among_new], dim=1)
        slots = req_to_token[request, :length].long()
        o[first : first + new] = _attend(q[first : first + new], k_buf[slots], v_buf[slots], mask, scale)


def _attend(q, k, v, mask, scale):
    """q [new, query heads, dim], k and v [seen, KV heads, dim], mask [new, seen] or None -> like q."""
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None].to(q.dtype),
        v.transpose(0, 1)[None].to(q.dtype),
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1)


def _only_plain_self_attention(logit_cap, is_cross, window, encoder_lens, sinks):
    if logit_cap or is_cross or window > 0 or encoder_lens is not None or sinks is not None:
        raise RuntimeError("sgl_kernel stand-in: plain self-attention only, no cap, window, cross or sinks")
