"""How SGLang is started on the CPU with the stand-in kernels: environment and arguments, in one place.

Inventories copy these (they cannot import Python); `tests/unit/test_cpu_engine_settings.py` compares.
"""

from __future__ import annotations

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",  # without it SGLang does not choose its CPU code
    "TORCHDYNAMO_DISABLE": "1",  # torch.compile would ask the triton stand-in for a driver
    "HF_HUB_OFFLINE": "1",  # a path is a path; nothing is fetched
    "OMP_NUM_THREADS": "1",  # four processes on two cores otherwise thrash: 30 s for a short answer
}

# Option -> value; None for a switch. EAGLE-3 without AMX needs both split backends: plain --attention-backend
# intel_amx falls back to torch_native, which refuses EAGLE.
ARGUMENTS: dict[str, str | None] = {
    "device": "cpu",
    "prefill-attention-backend": "intel_amx",
    "decode-attention-backend": "intel_amx",
    "disable-cuda-graph": None,
    "max-total-tokens": "4096",
    "max-running-requests": "4",
    "context-length": "1024",
    "enable-metrics": None,
    "decode-log-interval": "1",  # with the default the gauges stay 0 after one short request
}


def speculative_arguments(algorithm: str, draft: str, steps: int) -> dict[str, str | None]:
    """A draft chain of ``steps`` (topk 1), the form that `predict.py` predicts."""
    return {
        "speculative-algorithm": algorithm,
        "speculative-draft-model-path": draft,
        "speculative-num-steps": str(steps),
        "speculative-eagle-topk": "1",
        "speculative-num-draft-tokens": str(steps + 1),
    }


def command_line(arguments: dict[str, str | None]) -> list[str]:
    """Options as words of a command line."""
    words: list[str] = []
    for option, value in arguments.items():
        words += [f"--{option}"] if value is None else [f"--{option}", value]
    return words
