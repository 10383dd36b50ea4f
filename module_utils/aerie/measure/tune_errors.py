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
NO_CYCLE = ErrorKind(
    "profile-no-speculation",
    "A profile tells how a decode cycle divides into draft, verify and draft-extend, and the inventory does not "
    "speculate.",
)
NOTHING_TO_COMPARE = ErrorKind(
    "tune-nothing-to-compare",
    "The inventory's own setting runs and passed its gates, but the load could not be measured on it. Every other "
    "setting would get the same load and is compared with this one, so no further server is started.",
)
UNKNOWN_PRESET = ErrorKind("tune-preset-unknown", "A preset was asked for that does not exist.")
HIDDEN_PRESET = ErrorKind(
    "tune-preset-hidden",
    "An NCCL preset replaces the variables of one instance, and the same variables are set for the whole host or by "
    "SGLang itself: what would run is not what the preset's name says.",
)
WITHOUT_EFFECT = ErrorKind(
    "tune-setting-without-effect",
    "A setting was deployed as the very deployment of another one: a variable given with -e beats what the sweep sets.",
)
REPLACED = ErrorKind(
    "tune-server-replaced",
    "Another deployment, or none, ran at the end of a measurement than was measured: another run, or a person, changed "
    "the instance meanwhile, so the figures are of no setting.",
)
BAD_LENGTHS = ErrorKind(
    "tune-lengths-invalid",
    "A chain length is a whole number of draft steps, from 1 up; there is nothing to choose.",
)
BAD_CANDIDATE = ErrorKind(
    "tune-candidate-invalid",
    "A setting of one's own that is to be tried cannot be told apart or not be started.",
)
TOO_MANY_AT_A_TIME = ErrorKind(
    "tune-batch-above-limit",
    "More requests at a time than the server runs: the rest would wait in its queue, and the figure would be the "
    "limit's.",
)
