"""Errors that only action plugins end with.

A plugin runs in Ansible's own process, where the cores cannot be imported, so it writes ``[code]`` and ``Next:`` into
its message by hand. The declarations here give those codes their meaning; ``docs/find_errors.py`` refuses a plugin
that prints a code which is declared nowhere.
"""

from __future__ import annotations

from .errors import ErrorKind

JOB_GONE = ErrorKind(
    "watched-job-gone",
    "A long step ran on the host, and its process ended without leaving a result: the host was rebooted, or the "
    "kernel killed the process for memory.",
)
JOB_TOO_SLOW = ErrorKind(
    "watched-job-too-slow", "A long step did not end within its time limit and was stopped."
)
