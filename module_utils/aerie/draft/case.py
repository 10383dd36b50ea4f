"""What the checks look at: the two checkpoints, the settings, and what follows from the release's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .arguments import with_arguments
from .families import draft_class
from .files import Checkpoint
from .ids import DraftIds
from .layer_ids import IdRule, outputs
from .wiring import TargetRules, Wiring

PROBLEM, WARNING = "problem", "warning"
NOTHING_TO_DO = "nothing to do"


@dataclass(frozen=True)
class Finding:
    """Something that a person must know. ``source``: the release, PR or file that the claim rests on."""

    severity: str
    code: str
    what: str
    why: str
    fix: str
    source: str

    def as_result(self) -> dict[str, str]:
        """The parts that the module returns."""
        return {"code": self.code, "what": self.what, "why": self.why, "fix": self.fix, "source": self.source}


def problem(code: str, what: str, *, why: str, fix: str, source: str) -> Finding:
    """A finding that stops the deployment."""
    return Finding(PROBLEM, code, what, why, fix, source)


def warning(code: str, what: str, *, why: str, fix: str, source: str) -> Finding:
    """A finding that is only said."""
    return Finding(WARNING, code, what, why, fix, source)


@dataclass(frozen=True)
class Settings:
    """The options of the module, as a server would be started with them. ``algorithm`` is upper case."""

    target: Path
    draft: Path
    release: str
    algorithm: str = "EAGLE3"
    cuda_graphs: bool = True
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    context_length: int | None = None
    training_layers: tuple[int, ...] | None = None
    serve_ids: str = "config"
    fixes: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    site_packages: Path | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    accept_threshold_single: float | None = None
    accept_threshold_acc: float | None = None
    accept: frozenset[str] = frozenset()

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Settings:
        """Read the module's parameters."""
        params = with_arguments(params)
        training = params.get("training_layers")
        tree = params.get("site_packages")
        return cls(
            target=Path(params["target"]),
            draft=Path(params["draft"]),
            release=params["release"],
            algorithm=params["algorithm"].upper(),
            cuda_graphs=params["cuda_graphs"],
            num_steps=params.get("num_steps"),
            eagle_topk=params.get("eagle_topk"),
            num_draft_tokens=params.get("num_draft_tokens"),
            context_length=params.get("context_length"),
            training_layers=None if training is None else tuple(training),
            serve_ids=params["serve_ids"],
            fixes=frozenset(params.get("fixes") or ()),
            env={str(key): str(value) for key, value in (params.get("env") or {}).items()},
            site_packages=Path(tree) if tree else None,
            quantization=params.get("quantization"),
            draft_quantization=params.get("draft_quantization"),
            accept_threshold_single=params.get("speculative_accept_threshold_single"),
            accept_threshold_acc=params.get("speculative_accept_threshold_acc"),
            accept=frozenset(params.get("accept") or ()),
        )


@dataclass(frozen=True)
class Case:
    """Everything that a check may look at. ``layers``: layers of the target.

    ids: the ids that are served: the config's, or the recommended ones where those will be written.
    """

    settings: Settings
    target: Checkpoint
    draft: Checkpoint
    layers: int
    draft_ids: DraftIds
    ids: tuple[int, ...] | None
    rules: TargetRules
    wiring: Wiring | None
    recommended: list[int] | None
    recommended_reason: str

    @property
    def release(self) -> str:
        """The release that is served."""
        return self.settings.release

    @property
    def eagle3(self) -> bool:
        """Whether the server is told EAGLE3."""
        return self.settings.algorithm == "EAGLE3"

    @property
    def rewritten(self) -> bool:
        """Whether the recommended ids stand in for the config's."""
        return self.settings.serve_ids == "recommended" and self.recommended is not None

    @property
    def draft_is_eagle3(self) -> bool:
        """Whether the draft is an EAGLE-3 draft, by its architecture or by keys that only those have."""
        name = self.draft.architecture
        known = draft_class(name) is not None or "eagle3" in name.lower()
        return (
            known
            or self.draft_ids.where in ("nested", "top-level")
            or "draft_vocab_size" in self.draft.config
        )

    @property
    def draft_readable(self) -> bool:
        """Whether the draft's weights can be judged as those of an EAGLE-3 draft."""
        return self.eagle3 and self.draft_is_eagle3 and bool(self.draft.tensors)

    @property
    def states(self) -> int:
        """How many states SGLang expects to be joined: ``num_aux_hidden_states``, else the ids, else 3."""
        stated = self.draft.config.get("num_aux_hidden_states")
        if type(stated) is int:
            return stated
        return len(self.ids) if self.ids else 3

    def rule(self) -> IdRule | None:
        """The rule by which ids are read; None where the target cannot capture."""
        return self.rules.rule

    def captured_text(self) -> str:
        """One line about the served wiring, in the notation of training code."""
        if self.wiring is None:
            return "nothing is captured"
        return f"outputs of layers {outputs(self.wiring.eager)}"
