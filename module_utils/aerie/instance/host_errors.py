"""What the operating system refused, said like any other error: a full disk, a file system that turned read-only."""

from __future__ import annotations

import errno

from ..errors import AerieError, ErrorKind

HOST_REFUSED = ErrorKind(
    "host-refused",
    "The operating system refused to read or write a file: a full disk, a read-only file system, or the like. What was "
    "being written was left as it was before.",
)

NEXT = {
    errno.ENOSPC: "df -h {place}; df -i {place}   # make room, then run again",
    errno.EDQUOT: "quota; df -h {place}   # make room, then run again",
    errno.EROFS: "findmnt --target {place}; dmesg   # a disk error turns a file system read-only",
}


def host_error(error: OSError) -> AerieError:
    """The error for what ``error`` says."""
    place = str(error.filename or "the state directory")
    return HOST_REFUSED.error(
        f"{place}: {error.strerror or error}",
        evidence=[f"{errno.errorcode.get(error.errno or 0, 'unknown')} while a step was at work"],
        next=NEXT.get(
            error.errno or 0, "look at that file and its file system: ls -ld, findmnt, dmesg"
        ).format(place=place),
    )
