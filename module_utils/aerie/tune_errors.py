"""Errors of benchmark, profile and tune that are raised on the controller (``aerie_reports``) or by its actions."""

from __future__ import annotations

from .errors import ErrorKind

TOO_FEW_REQUESTS = ErrorKind(
    "report-too-few-requests", "A confidence interval over so few prompts would mean nothing."
)
