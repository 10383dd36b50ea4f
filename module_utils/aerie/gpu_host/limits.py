"""Checks of the host's limits: shared memory and open files."""

from __future__ import annotations

from ..errors import ErrorKind
from .facts import CAUTION, Finding, HostFacts

SHM = ErrorKind(
    "gpu-host-shm",
    "/dev/shm is smaller than wanted. NCCL passes data between GPUs through it where they have no peer-to-peer, and"
    " SGLang's processes pass requests; in a container it is 64 MiB by default.",
)
SHM_FULL = ErrorKind(
    "gpu-host-shm-full",
    "/dev/shm has less free room than wanted: files of killed processes stay there until they are deleted.",
)
NR_OPEN = ErrorKind(
    "gpu-host-nr-open",
    "The kernel's limit of open files is below the one that the server's unit asks for, so systemd cannot start it.",
)
# LimitNOFILE= of the server's unit.
UNIT_OPEN_FILES = 1048576


def check_limits(host: HostFacts, min_shm_mib: int) -> list[Finding]:
    """Shared memory of at least ``min_shm_mib`` MiB (0: not checked), and room for the unit's LimitNOFILE."""
    found = []
    if min_shm_mib and host.shm_total_mib is not None and host.shm_total_mib < min_shm_mib:
        found.append(
            Finding(
                SHM.error(
                    f"/dev/shm has {host.shm_total_mib} MiB, {min_shm_mib} are wanted",
                    next=f"mount -o remount,size={min_shm_mib}M /dev/shm, and the same in /etc/fstab; in a container"
                    f" --shm-size={min_shm_mib}m; or lower gpu_host_min_shm_mib",
                )
            )
        )
    elif min_shm_mib and host.shm_free_mib is not None and host.shm_free_mib < min_shm_mib:
        found.append(
            Finding(
                SHM_FULL.error(
                    f"/dev/shm has {host.shm_free_mib} of {host.shm_total_mib} MiB free, {min_shm_mib} are wanted",
                    next="ls -la /dev/shm; fuser -v /dev/shm/*",
                ),
                CAUTION,
            )
        )
    if host.nr_open is not None and host.nr_open < UNIT_OPEN_FILES:
        found.append(
            Finding(
                NR_OPEN.error(
                    f"fs.nr_open is {host.nr_open}, the server's unit asks for {UNIT_OPEN_FILES} open files",
                    next=f"sysctl -w fs.nr_open={UNIT_OPEN_FILES}, and the same in /etc/sysctl.d",
                )
            )
        )
    return found
