"""Stand-in for sgl_kernel's KV-cache and request-table bookkeeping.

Shapes: ``req_to_token`` is [requests in the pool, context] and holds, for each request and position, the
slot of the KV cache; ``req_pool_indices``, ``start``, ``end`` and ``seq_lens`` are [batch]. All functions
write in place.
"""

from __future__ import annotations

import ctypes


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """Copy cache rows ``src_loc`` to ``tgt_loc`` in every buffer (keys and values of every layer).

    ``data_ptrs`` and ``strides`` (bytes per slot) are [buffers]; ``tgt_loc`` and ``src_loc`` are [moved
    slots]. All sources are read before the first target is written, since the two may overlap.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + slot * stride, stride) for slot in sources]
        for slot, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + slot * stride, row, stride)


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    """Enter the new slots ``out_cache_loc`` [sum of end - start] at positions start..end of each request."""
    for request, first, last, at in _spans(req_pool_indices, start, end):
        slots = out_cache_loc[at : at + last - first]
        req_to_token[request, first:last] = slots.to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    """The reverse: collect the slots at positions start..end of each request into ``out_cache_loc``."""
    for request, first, last, at in _spans(req_pool_indices, start, end):
        slots = req_to_token[request, first:last]
        out_cache_loc[at : at + last - first] = slots.to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, steps
):
    """Collect the ``topk * steps`` slots after each request's committed tokens, where the draft writes."""
    width = topk * steps
    for row, (request, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[request, length : length + width]
        out_cache_loc[row * width : (row + 1) * width] = slots.to(out_cache_loc.dtype)


def _spans(req_pool_indices, start, end):
    """Yield (request, first position, end position, offset into the packed tensor) for each request."""
    at = 0
    for request, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        yield request, first, last, at
        at += last - first
