"""From the GPUs that an instance names to what SGLang understands.

SGLang parses CUDA_VISIBLE_DEVICES with ``int()`` (read in 0.5.17), so UUIDs become indices. A MIG instance has no
index for CUDA: with the index of its GPU, CUDA takes that GPU's first instance, so it can be named only where it is
the only one. CUDA sees one MIG instance a process, and MIG instances have no peer-to-peer: no tensor parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import AerieError, ErrorKind
from ..gpu.nvml import NOT_FOUND, parse_selection
from .facts import GpuFacts, Instance

MIG_PARALLEL = ErrorKind(
    "gpu-host-mig-tensor-parallel",
    "Tensor parallelism over GPUs in MIG mode cannot work: CUDA uses one MIG instance a process and gives MIG instances"
    " no peer-to-peer.",
)
MIG_INDEX = ErrorKind(
    "gpu-host-mig-index",
    "SGLang takes GPUs by index only, and an index stands for a GPU's first MIG instance: one of several cannot be"
    " named.",
)
DEVICES = ErrorKind(
    "gpu-host-too-few-gpus", "The instance names fewer GPUs than its tensor parallelism needs."
)


def translate(
    selection: Sequence[str] | None, gpus: Sequence[GpuFacts], tensor_parallel: int = 1
) -> list[int]:
    """Indices for CUDA_VISIBLE_DEVICES (with CUDA_DEVICE_ORDER=PCI_BUS_ID, NVML's order).

    selection: indices, ``index:instance`` or UUIDs; None: all GPUs. The order is kept, repeats are dropped.
    Raises gpu-selection, gpu-not-found, gpu-host-mig-tensor-parallel, gpu-host-mig-index, gpu-host-too-few-gpus.
    """
    words = [str(gpu.index) for gpu in gpus] if selection is None else parse_selection(selection)
    chosen = [_find(word, gpus) for word in words]
    if tensor_parallel > 1:
        mig = [gpu for gpu, _ in chosen if gpu.mig]
        if mig:
            raise MIG_PARALLEL.error(
                f"Tensor parallel size {tensor_parallel} on GPUs in MIG mode",
                evidence=[gpu.label for gpu in mig],
                next=f"name GPUs without MIG, or switch it off: nvidia-smi -i {mig[0].index} -mig 0 (ends everything on"
                " it), or use tensor parallel size 1",
            )
    for gpu, instance in chosen:
        if gpu.mig:
            _check_instance(gpu, instance)
    indices = list(dict.fromkeys(gpu.index for gpu, _ in chosen))
    if len(indices) < tensor_parallel:
        raise DEVICES.error(
            f"Tensor parallel size {tensor_parallel} and {len(indices)} GPUs: {', '.join(map(str, indices)) or 'none'}",
            next="name more GPUs or lower tensor_parallel_size",
        )
    return indices


def _check_instance(gpu: GpuFacts, instance: Instance | None) -> None:
    shown = [f"{gpu.index}:{one.index} {one.name}, {one.uuid}" for one in gpu.instances]
    if len(gpu.instances) == 1 or (instance is None and not gpu.instances):
        return
    name = "an instance" if instance is None else f"instance {instance.index}"
    raise MIG_INDEX.error(
        f"SGLang cannot be given {name} of {gpu.label}, which has {len(gpu.instances)}",
        evidence=shown,
        next="make one instance of that GPU (nvidia-smi mig -lgi), or use a GPU without MIG",
    )


def _find(word: str, gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, Instance | None]:
    pair = re.fullmatch(r"(\d+)(?::(\d+))?", word)
    for gpu in gpus:
        if pair is None and gpu.uuid == word:
            return gpu, None
        for instance in gpu.instances:
            if instance.uuid == word or word == f"{gpu.index}:{instance.index}":
                return gpu, instance
        if pair is not None and pair.group(2) is None and int(pair.group(1)) == gpu.index:
            return gpu, None
    raise _not_found(word, gpus)


def _not_found(word: str, gpus: Sequence[GpuFacts]) -> AerieError:
    shown = [f"the driver shows {gpu.index}: {gpu.name}, {gpu.uuid}" for gpu in gpus]
    shown += [
        f"the driver shows {gpu.index}:{one.index}: {one.name}, {one.uuid}"
        for gpu in gpus
        for one in gpu.instances
    ]
    return NOT_FOUND.error(
        f"GPU {word} is not there", evidence=shown, next="nvidia-smi -L, then correct the instance's GPUs"
    )
