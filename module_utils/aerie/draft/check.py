"""Judge a target and a draft for one release, before anything is started.

Pure but for reading two model directories and, where one is given, the installed source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import AerieError, ErrorKind
from ..release.rules import version_key
from .case import PROBLEM, Case, Finding, Settings
from .checks import findings as run_checks
from .confirm import Confirmation, confirm
from .families import USE_AUX_READ, at_least
from .files import UNREADABLE, Checkpoint, read_checkpoint
from .ids import DraftIds, read_draft_ids
from .source_method import CannotInterpret
from .wiring import recommended, target_rules, wiring

FAILED = ErrorKind(
    "draft-check-failed",
    "The draft, the target, the release and the settings do not fit together. Each problem has a code of its own and "
    "says what would go wrong, why, and what to change; nothing was started.",
)
BAD_RELEASE = ErrorKind(
    "draft-check-release", "The option release of the draft check is no SGLang release number."
)


@dataclass(frozen=True)
class Report:
    """The judgement: the case, what the rules rest on, and what was found."""

    case: Case
    confirmation: Confirmation
    problems: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    def as_result(self) -> dict[str, Any]:
        """What the module returns."""
        case = self.case
        rule = case.rules.rule
        return {
            "captured": case.wiring.as_result() if case.wiring else None,
            "recommended_ids": case.recommended,
            "recommended_ids_reason": case.recommended_reason,
            "served_ids": None if case.ids is None else list(case.ids),
            "layer_ids_rule": None if rule is None else {"name": rule.name, "meaning": rule.meaning},
            "basis": self.confirmation.basis,
            "problems": [finding.as_result() for finding in self.problems],
            "notes": [finding.as_result() for finding in self.warnings],
            "target_architecture": case.target.architecture,
            "target_layers": case.layers,
            "draft_architecture": case.draft.architecture,
            "target_config_sha256": case.target.config_sha256,
            "draft_config_sha256": case.draft.config_sha256,
        }

    def error(self) -> AerieError | None:
        """All problems as one error, or None."""
        if not self.problems:
            return None
        count = len(self.problems)
        evidence = []
        for finding in self.problems:
            evidence += [f"{finding.code}: {finding.what}", f"  why: {finding.why}", f"  fix: {finding.fix}"]
        return FAILED.error(
            f"{count} problem{'s' if count > 1 else ''} with the draft {self.case.settings.draft} "
            f"on SGLang {self.case.release}",
            evidence=evidence,
            next="change what `fix` names; a problem that is meant so can be named in `accept` "
            "(in an inventory: sglang_server_accept_draft_problems)",
        )


def check(settings: Settings) -> Report:
    """Run every check. Raises AerieError where a config cannot be read or the release is no release."""
    try:
        version_key(settings.release)
    except ValueError as error:
        raise BAD_RELEASE.error(str(error), next="give a release such as 0.5.23") from error
    target, draft = read_checkpoint(settings.target), read_checkpoint(settings.draft)
    case, confirmation = _case(settings, target, draft)
    found = [*confirmation.findings, *run_checks(case)]
    problems = [f for f in found if f.severity == PROBLEM and f.code not in settings.accept]
    warnings = [f for f in found if f.severity != PROBLEM or f.code in settings.accept]
    return Report(case, confirmation, tuple(problems), tuple(warnings))


def _case(settings: Settings, target: Checkpoint, draft: Checkpoint) -> tuple[Case, Confirmation]:
    layers = target.number("num_hidden_layers")
    if layers is None or layers < 1:
        raise UNREADABLE.error(
            f"the config of the target {target.path} has no num_hidden_layers",
            evidence=[f"keys: {', '.join(sorted(target.config))}"],
            next="check that the option target names the model's directory",
        )
    rules = target_rules(target.architecture, layers, settings.release, settings.fixes)
    confirmation = confirm(settings, target.architecture, layers, rules)
    rules = confirmation.rules
    draft_ids = read_draft_ids(draft.config)
    try:
        wanted, reason = recommended(rules, settings.training_layers, layers)
        ids = _served(settings, draft_ids, wanted)
        captures = settings.algorithm == "EAGLE3" and (
            draft_ids.use_aux or not at_least(settings.release, USE_AUX_READ)
        )
        wired = wiring(rules, ids, layers, cuda_graphs=settings.cuda_graphs) if captures else None
    except CannotInterpret as error:
        wanted, reason, wired = None, f"the installed source cannot be read: {error}", None
        ids = _served(settings, draft_ids, None)
    case = Case(settings, target, draft, layers, draft_ids, ids, rules, wired, wanted, reason)
    return case, confirmation


def _served(settings: Settings, draft_ids: DraftIds, wanted: list[int] | None) -> tuple[int, ...] | None:
    if settings.serve_ids == "recommended" and wanted is not None:
        return tuple(wanted)
    return draft_ids.ids
