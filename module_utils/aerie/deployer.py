"""Carry out one step of a deployment's life. No Ansible here: settings in, a result out.

Every step works out the spec anew from the same settings, so it never acts on anything but what was planned. With
``check`` a step takes the same path and leaves out the writes.
"""

from __future__ import annotations

import grp
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import deployment, draft_copy, nft, preflight, processes, reality, state, systemd
from .desired import make_spec, secret_values
from .errors import ErrorKind
from .files import read_text, write_atomic
from .health import url_host
from .plan import Plan, make_plan, summary
from .ports import Ports, check_clashes
from .spec import Release, Spec, resolved
from .traffic import Closed

NOT_BUILT = ErrorKind(
    "deployment-missing", "A deployment was to be started or accepted, but its directory is not on the host."
)
NOT_INSTALLED = ErrorKind(
    "release-missing", "A deployment was to be built from an SGLang release that is not on the host."
)
# What a deployment's tree takes as long as the release is not there to be measured: 0.5.23 with its byte-code took
# 222 MiB (du, November 2026).
TREE_BYTES = 300 << 20


class Deployer:
    """One step: the settings (options of the module ``sglang_deployment``), the store, and the actions taken."""

    def __init__(self, settings: Mapping[str, Any], *, check: bool) -> None:
        self.settings = settings
        self.check = check
        self.store = state.InstanceStore(settings["state_dir"], settings["instance"])
        self.record = self.store.load()
        self.actions: list[str] = []
        self.diff: dict[str, str] = {}
        self.spec: Spec | None = None

    def run(self) -> dict[str, Any]:
        """Carry out ``settings["state"]`` and return the module's result."""
        began = time.monotonic()
        return {**self._run(), "elapsed_s": round(time.monotonic() - began, 2)}

    def _run(self) -> dict[str, Any]:
        step = self.settings["state"]
        if step in ("stopped", "failed"):
            getattr(self, step)()
            return self._result(Plan(""))
        self.spec = self._make_spec()
        if step == "planned":
            return self._planned()
        getattr(self, step)()
        return self._result(Plan(self.digest))

    # -- the spec ------------------------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        return self.spec.digest if self.spec else ""

    @property
    def directory(self) -> Path:
        return self.store.deployment(self.digest)

    def _make_spec(self) -> Spec | None:
        """None as long as the release is not installed: what it will be is known only then."""
        models = {
            role: preflight.check_model(role, path, variable)
            for role, (path, variable) in self._models().items()
        }
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
        return make_spec(self.settings, release, models, salt)

    def _models(self) -> dict[str, tuple[str, str]]:
        """``{role: (path, inventory variable)}`` of the models that this mode serves."""
        found = {"target": (str(self.settings["model_path"]), "sglang_server_model_path")}
        if self.settings["speculative"] and self.settings["draft_model_path"]:
            found["draft"] = (str(self.settings["draft_model_path"]), "sglang_server_draft_model_path")
        return found

    # -- steps ---------------------------------------------------------------------------------------------------

    def _planned(self) -> dict[str, Any]:
        host, port = self.settings["host"], self.settings["port"]
        seen = reality.look(self.store, host, port)
        preflight.check_port(seen, port)
        for path, variable in self._models().values():
            files = [Path(path) / "config.json", *preflight.weight_files(Path(path))]
            preflight.check_readable(files, self.settings["user"], variable)
        ports = self._check_ports(seen)
        plan = self._plan(seen)
        self._plan_traffic(plan, ports)
        return {
            **self._result(plan),
            "summary": summary(plan, seen),
            "accepted": self._acceptance(),
            "url": f"http://{url_host(host)}:{port}",
            "ports": {"serving": port, "rendezvous": ports.rendezvous if ports else 0},
            "running": {
                "unit": seen.unit.active,
                "pid": seen.unit.main_pid,
                "age_s": round(seen.age_s, 1),
                "digest": seen.running,
                "health": seen.health,
            },
        }

    def _acceptance(self) -> dict[str, Any]:
        """What the gates measured when this very deployment was accepted; empty when it never was."""
        return next((one for one in self.record.history if one.get("digest") == self.digest), {})

    def _check_ports(self, seen: reality.Reality) -> Ports | None:
        """The ports of the spec, free and this instance's alone; None as long as there is no spec."""
        if self.settings["traffic_control"]:
            nft.require()
        if self.spec is None:
            return None
        ports = Ports.of(self.spec.as_dict())
        check_clashes(ports, state.ports_of_others(self.store))
        if ports.rendezvous:
            preflight.check_rendezvous(seen, ports.rendezvous)
        return ports

    def _plan_traffic(self, plan: Plan, ports: Ports | None) -> None:
        """Whether a server that is otherwise as asked has lost its chain, or still has one that refuses clients."""
        if ports is None or plan.restart or plan.gates or not self.settings["traffic_control"]:
            return
        closed = nft.read_table().closed(self.store.instance)
        if closed != Closed.of([ports.rendezvous]):
            plan.traffic = True
            shown = ["a changed chain"] if closed is None else closed.lines(self.store.instance)
            plan.reasons.append(f"nftables is not as accepted, it has: {'; '.join(shown) or 'no chain'}")

    def _plan(self, seen: reality.Reality) -> Plan:
        if self.spec is None:
            deployment.check_space(self.store.root, TREE_BYTES)
            why = "first deployment of this release; its digest is known after install"
            return Plan("", build=True, restart=True, gates=True, reasons=[why])
        built = self.store.spec(self.digest) is not None
        if not built:
            needed = deployment.tree_bytes(Path(self.spec.release.package_dir))
            deployment.check_space(self.store.root, needed)
        return make_plan(
            self.digest,
            self.spec.as_dict(),
            self.store.spec(seen.running or self.store.current()),
            self.record,
            seen,
            built=built,
            deployment=str(self.directory),
            start_timeout=self.settings["start_timeout"],
        )

    def built(self) -> None:
        """Make the deployment's directory."""
        if self.spec is not None and self.store.spec(self.digest) is not None:
            return
        if (
            self._act(f"build deployment {self.digest or '(digest known after install)'}")
            and self.spec is not None
        ):
            gid = grp.getgrnam(self.settings["group"]).gr_gid
            deployment.build(self.store, self.spec, secret_values(self.settings), gid)

    def stopped(self) -> None:
        """Ask systemd to stop the unit; with ``disable`` it also stays down after a reboot."""
        unit = systemd.show(self.store.unit_name)
        self._stop(unit)
        if not self.settings["disable"]:
            return
        self._disable(unit)
        if self.record.phase not in (state.STOPPED, state.NONE):
            self._save(state.STOPPED)

    def started(self) -> None:
        """Make the deployment current, write its unit, ask systemd to start it."""
        self._require_built()
        before = systemd.show(self.store.unit_name)
        # A deployment that has not passed its gates must not come up by itself after a reboot.
        self._disable(before)
        switch = self.store.current() != self.digest or not self.digest
        if switch and self._act(f"make {self.digest or 'the new deployment'} current"):
            self.store.set_current(self.digest)
        self._write_unit()
        self._save(state.SWITCHED)
        if not before.running and self._act(f"start {before.name}"):
            if before.active == "failed":
                systemd.systemctl("reset-failed", before.name)
            systemd.systemctl("start", "--no-block", before.name)

    def accepted(self) -> None:
        """Record that the gates passed, enable at boot, remove deployments that are kept no longer."""
        self._require_built()
        unit = systemd.show(self.store.unit_name)
        if unit.file_state != "enabled" and self._act(f"enable {unit.name} at boot"):
            systemd.systemctl("enable", "--quiet", unit.name)
        new = (self.record.phase, self.record.accepted) != (state.ACCEPTED, self.digest)
        if (
            not new
            or not self._act(f"record {self.digest or 'the deployment'} as accepted")
            or self.spec is None
        ):
            return
        process = processes.read_process(unit.main_pid)
        entry = {
            "digest": self.digest,
            "mode": self.settings["mode"],
            "release": self.spec.release.release,
            "at": state.now(),
            "pid": unit.main_pid,
            "start_ticks": process.start_ticks if process else 0,
            "gates": self.settings["gates"],
        }
        rest = [one for one in self.record.history if one.get("digest") != self.digest]
        self.record.history = [entry, *rest][:10]
        self.record.accepted = self.digest
        self._save(state.ACCEPTED)
        keep = [one["digest"] for one in self.record.history][: 1 + self.settings["keep"]]
        deployment.prune(self.store, [*keep, self.store.current()])

    def failed(self) -> None:
        """Stop what did not pass its gates and keep the reason."""
        unit = systemd.show(self.store.unit_name)
        self._stop(unit)
        self._disable(unit)
        self.record.failure = (self.settings["failure"] or "")[:2000]
        self._save(state.FAILED)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _act(self, text: str) -> bool:
        """Note an action; true when it is to be carried out."""
        self.actions.append(text)
        return not self.check

    def _save(self, phase: str) -> None:
        self.record.phase = phase
        if phase != state.FAILED:
            self.record.failure = ""
        if not self.check and self.store.root.is_dir():
            self.store.save(self.record)

    def _stop(self, unit: systemd.UnitState) -> None:
        if not unit.stopped and unit.load != "not-found" and self._act(f"stop {unit.name}"):
            systemd.systemctl("stop", "--no-block", unit.name)

    def _disable(self, unit: systemd.UnitState) -> None:
        if unit.file_state == "enabled" and self._act(f"disable {unit.name} at boot"):
            systemd.systemctl("disable", "--quiet", unit.name)

    def _require_built(self) -> None:
        if not self.check and self.store.spec(self.digest) is None:
            raise NOT_BUILT.error(
                f"deployment {self.digest or '(none)'} is not complete in {self.store.deployments}",
                next="run the playbook again; it builds what is missing",
            )

    def _write_unit(self) -> None:
        if self.spec is None:
            self._act(f"write {self.store.unit_path}")
            return
        text = str(resolved(self.spec.as_dict(), str(self.directory))["unit"])
        path = self.store.unit_path
        old = read_text(path) or ""
        if old != text:
            self.diff = {"before": old, "after": text, "before_header": str(path), "after_header": str(path)}
            if self._act(f"write {path}"):
                write_atomic(path, text)
        # Only when the unit changed: a reload cuts running containers off their GPUs
        # (nvidia-container-toolkit #48, #251, #1227).
        if not self.check and (old != text or systemd.show(self.store.unit_name).needs_reload):
            systemd.systemctl("daemon-reload")

    def _served(self) -> dict[str, str]:
        """Where the deployment's package and draft lie; empty as long as there is no spec."""
        if self.spec is None:
            return {}
        draft = self.spec.models.get("draft") or {}
        copied = draft_copy.is_copied(draft)
        return {
            "site_packages": f"{self.directory}/site",
            "draft": f"{self.directory}/{draft_copy.DIRECTORY}" if copied else draft.get("path", ""),
        }

    def _result(self, plan: Plan) -> dict[str, Any]:
        result: dict[str, Any] = {
            "changed": bool(self.actions),
            "digest": self.digest,
            "actions": self.actions,
            "plan": {**vars(plan), "changed": plan.changed},
            "environment": {"PYTHONPATH": f"{self.directory}/site"} if self.digest else {},
            "served": self._served(),
        }
        if self.diff:
            result["diff"] = self.diff
        return result
