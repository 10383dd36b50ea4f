"""Stand-in for ``sgl_kernel``: the few CPU operators that SGLang needs for a dense model, in plain torch.

This is a functional test double, not a kernel. SGLang's own CPU operators exist only where its kernel
package was built from source, and only for processors with AMX. Without AMX SGLang already uses torch for
norms, linears, activations and rotary embeddings; what is left is bookkeeping (`cache`, `eagle`) and
attention (`attention`).

Everything else that the real package offers is a GPU kernel. Asking for it here raises.

Serves SGLang 0.5.19 to 0.5.23. Signatures are those of the callers in these releases, so argument names
that this stand-in has no use for (`pool_len`, scales) stay in place.
"""

from __future__ import annotations

from . import attention
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
)
from .eagle import (
    build_draft_decode_metadata_cpu,
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

__version__ = "0.0.0+aerie.standin"

attention.register()


def __getattr__(name: str):
    raise AttributeError(
        f"sgl_kernel stand-in: {name!r} is not one of the CPU operators that it provides; "
        "a GPU kernel, or an operator that a newer SGLang needs"
    )
