"""Errors of benchmark, profile and tune that are raised on the controller (``aerie_reports``) or by its actions."""

from __future__ import annotations

from ..errors import ErrorKind

TOO_FEW_REQUESTS = ErrorKind(
    "report-too-few-requests", "A confidence interval over so few prompts would mean nothing."
)
NO_CHAIN = ErrorKind(
    "tune-no-chain",
    "Tuning varies the length of a draft chain, so the inventory's own setting has to speculate with one (topk 1).",
)
UNKNOWN_PRESET = ErrorKind("tune-preset-unknown", "A preset was asked for that does not exist.")
