"""One step of a deployment's life: its settings, its spec, the host's record of it, and the actions taken.

Every step works out the spec anew from the same settings, so it never acts on anything but what was planned. With
``check`` a step takes the same path and leaves out the writes: it notes an action (:meth:`Step.act`) and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..draft import copy as draft_copy
from ..errors import ErrorKind
from . import mode, preflight, state
from .desired import make_spec as desired_spec
from .needed import Plan
from .spec import CONFIG, Release, Spec

NOT_BUILT = ErrorKind(
    "deployment-missing", "A deployment was to be started or accepted, but its directory is not on the host."
)
NOT_INSTALLED = ErrorKind(
    "release-missing", "A deployment was to be built from an SGLang release that is not on the host."
)


class Step:
    """One step: the settings (options of the module ``sglang_deployment``), the store, and the actions taken."""

    def __init__(self, settings: Mapping[str, Any], *, check: bool) -> None:
        self.check = check
        self.store = state.InstanceStore(settings["state_dir"], settings["instance"])
        self.record = self.store.load()
        self.settings = settings
        if settings.get("digest") and "recorded" not in settings:
            from .restore import settings_of

            self.settings = settings_of(self.store, self.record, settings)
        self.actions: list[str] = []
        self.diff: dict[str, str] = {}
        self.found: dict[str, Any] = {}
        self.spec: Spec | None = None

    @property
    def digest(self) -> str:
        return self.spec.digest if self.spec else ""

    @property
    def named(self) -> str:
        """The digest for a person, or when it will be known."""
        return self.digest or f"(digest known after {'build' if self.spec else 'install'})"

    @property
    def directory(self) -> Path:
        return self.store.deployment(self.digest or "(known after build)")

    def make_spec(self) -> Spec | None:
        """None as long as the release is not installed: what it will be is known only then."""
        models = self.check_models()
        if self.settings.get("recorded"):
            from .restore import spec_of

            return spec_of(self.settings["recorded"])
        release = Release.from_mapping(self.settings["release"])
        if not release.package_dir or not Path(release.package_dir).is_dir():
            if self.check or self.settings["state"] == "planned":
                return None
            raise NOT_INSTALLED.error(
                f"release {release.release or '(none)'} is not installed",
                evidence=[f"no directory: {release.package_dir or '(no path)'}"],
                next="run the role sglang_install before this one, as production.yml does",
            )
        if "draft" in models and str(self.settings["speculative"].get("algorithm")).upper() == "EAGLE3":
            ids = self.settings.get("draft_layer_ids")
            models["draft"] = draft_copy.with_layer_ids(models["draft"], ids)
        salt = self.store.salt(create=not self.check and self.settings["state"] == "built")
        return self._as_named(desired_spec(self.settings, release, models, salt))

    def _as_named(self, spec: Spec) -> Spec:
        """The spec under the digest that its deployment already has, where an earlier version of Aerie named it."""
        record = self.store.spec(self.store.current())
        old = replace(spec, version=int((record or {}).get("version") or 1))
        return old if old.digest and old.digest == self.store.current() else spec

    def check_models(self) -> dict[str, dict[str, Any]]:
        """``{role: {path, config_sha256}}`` of the models that this mode serves; raises model-missing."""
        return {
            role: preflight.check_model(role, path, variable)
            for role, (path, variable) in self.models().items()
        }

    def models(self) -> dict[str, tuple[str, str]]:
        """``{role: (path, inventory variable)}`` of the models that this mode serves."""
        found = {"target": (str(self.settings["model_path"]), "sglang_server_model_path")}
        if self.settings["speculative"] and self.settings["draft_model_path"]:
            found["draft"] = (str(self.settings["draft_model_path"]), "sglang_server_draft_model_path")
        return found

    def act(self, text: str) -> bool:
        """Note an action; true when it is to be carried out."""
        self.actions.append(text)
        return not self.check

    def save(self, phase: str) -> None:
        self.record.phase = phase
        # On the way back the reason stays, for `status` to show, until something else is asked for and passes.
        if phase != state.FAILED and (not self.settings.get("recorded") or self.settings.get("rollback")):
            self.record.failure = ""
        if not self.check and self.store.root.is_dir():
            self.store.save(self.record)

    def require_built(self) -> None:
        if not self.check and self.store.spec(self.digest) is None:
            raise NOT_BUILT.error(
                f"deployment {self.digest or '(none)'} is not complete in {self.store.deployments}",
                next="run the playbook again; it builds what is missing",
            )

    def served(self) -> dict[str, str]:
        """Where the deployment's package, draft and API keys lie, as far as its digest is known.

        A key itself never leaves the host: who has to ask the server reads it there.
        """
        events = mode.events_directory(self.settings["mode"], self.settings["cache_dir"])
        if self.spec is None or not self.digest:
            return {"events": events}
        draft = self.spec.models.get("draft") or {}
        copied = draft_copy.is_copied(draft)
        return {
            "site_packages": f"{self.directory}/site",
            "draft": f"{self.directory}/{draft_copy.DIRECTORY}" if copied else draft.get("path", ""),
            "key_file": f"{self.directory}/{CONFIG}" if self.spec.secrets else "",
            "events": events,
        }

    def result(self, plan: Plan) -> dict[str, Any]:
        result: dict[str, Any] = {
            "changed": bool(self.actions),
            "digest": self.digest,
            "actions": self.actions,
            "plan": {**vars(plan), "changed": plan.changed},
            "environment": {"PYTHONPATH": f"{self.directory}/site"} if self.digest else {},
            "served": self.served(),
            "soak": self.record.soak,
            **self.found,
        }
        if self.diff:
            result["diff"] = self.diff
        return result
