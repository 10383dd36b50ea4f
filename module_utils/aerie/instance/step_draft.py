"""The draft check as a part of a step: which layer ids a deployment is to serve, or why it cannot.

``planned`` judges by the rules alone, ``built`` once more by the source that will run and the config that it will read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import AerieError
from .arguments import Speculation

if TYPE_CHECKING:
    from ..draft.check import Report


class DraftRefusedError(AerieError):
    """All problems of a draft as one error; its result holds the report too."""

    def __init__(self, error: AerieError, report: Report) -> None:
        super().__init__(error.kind, error.what, error.evidence, error.next)
        self.report = report

    def as_result(self) -> dict[str, Any]:
        """Arguments for ``fail_json``, and what the module ``sglang_draft_check`` returns."""
        return {**super().as_result(), **self.report.as_result()}


def judge(settings: Mapping[str, Any], served: Mapping[str, str] | None = None) -> Report | None:
    """Judge the draft of these settings (options of the module ``sglang_deployment``), as the road would serve it.

    served: where the deployment that was built for them has its own package and draft, see ``Step.served``.
    None where there is nothing to judge: another algorithm, no draft, or a release that is known after an install
    only. Raises AerieError with every problem that ``accept_draft_problems`` does not name.
    """
    release = (settings.get("release") or {}).get("release")
    speculation = Speculation.from_mapping(settings.get("speculative") or {})
    if not release or speculation is None or "EAGLE" not in speculation.algorithm.upper():
        return None
    if not settings.get("draft_model_path"):
        return None
    # Twenty files that only this step reads; on the host each import is compiled anew.
    from ..draft.case import Settings
    from ..draft.check import check
    from .mode import DEBUG

    wanted = {
        "target": settings["model_path"],
        "draft": settings["draft_model_path"],
        "release": str(release),
        **vars(speculation),
        "cuda_graphs": settings.get("mode") != DEBUG or bool(settings.get("debug_cuda_graphs")),
        # Those that are not for this release do not matter to it: the rules know which release needs which fix.
        "fixes": [one["name"] for one in settings.get("patches") or [] if one.get("set") == "fixes"],
        # An empty list is "not said"; the module's caller has no other way to leave it out.
        "training_layers": settings.get("training_layers") or None,
        "serve_ids": "recommended",
        "arguments": settings.get("arguments"),
        "env": settings.get("environment"),
        "accept": settings.get("accept_draft_problems"),
    }
    if served:
        as_built = {"draft": served["draft"], "site_packages": served["site_packages"], "serve_ids": "config"}
        wanted.update(as_built)
    report = check(Settings.from_params(wanted))
    error = report.error()
    if error is not None:
        raise DraftRefusedError(error, report)
    return report


def advice(report: Report) -> list[str]:
    """What a person can do something about, a line each; the rest would only teach to read over warnings."""
    from ..draft.case import NOTHING_TO_DO

    return [f"{one.code}: {one.what}. {one.fix}" for one in report.warnings if one.fix != NOTHING_TO_DO]
