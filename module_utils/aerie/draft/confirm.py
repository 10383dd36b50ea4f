"""Put the rules beside the installed source: each claim becomes "confirmed", stays a "rule", or is contradicted.

Where the source says something else than the tables, the source is believed and the difference is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .case import Finding, Settings, problem, warning
from .families import GRAPH_FIX
from .layer_ids import IdRule
from .source import SourceTree
from .source_graph import graph_keeps_ids, reads_ids
from .source_method import CannotInterpret
from .wiring import TargetRules

RULE, CONFIRMED, CONTRADICTED = "rule", "confirmed", "contradicted"


def probes(layers: int) -> list[list[int]]:
    """Lists of ids in which every rule that occurs differs from every other, on a target of ``layers`` layers."""
    half = layers // 2
    return [
        [1, half - 1, layers - 4],
        [2, half, layers - 3],
        [half, 1, layers - 4],
        [1, half, layers - 1],
        [half, layers - 2, layers],
        [2, half - 1, half, layers - 3],
    ]


@dataclass(frozen=True)
class Confirmation:
    """What the source says about the rules of one target. basis: claim to "rule", "confirmed" or "contradicted"."""

    rules: TargetRules
    basis: dict[str, str]
    findings: tuple[Finding, ...]


def confirm(settings: Settings, architecture: str, layers: int, rules: TargetRules) -> Confirmation:
    """Compare ``rules`` with the tree at ``settings.site_packages``. Without one every claim is a rule."""
    basis = {"capture_support": RULE, "layer_ids": RULE, "default_layers": RULE, "cuda_graphs": RULE}
    if settings.site_packages is None:
        return Confirmation(rules, basis, ())
    tree = SourceTree(settings.site_packages)
    if not tree.present():
        missing = problem(
            "source-missing",
            f"{settings.site_packages} holds no sglang",
            why="site_packages is the directory that holds the sglang package",
            fix="leave site_packages out where nothing is installed yet",
            source="srt/models",
        )
        return Confirmation(rules, basis, (missing,))
    findings = list(_release_findings(tree, settings))
    rules, believed = _believe(tree, settings, architecture, layers, rules, basis)
    findings += believed
    return Confirmation(rules, basis, tuple(findings))


def _release_findings(tree: SourceTree, settings: Settings) -> list[Finding]:
    found = tree.release()
    if found is None or found == settings.release:
        return []
    return [
        problem(
            "source-of-another-release",
            f"the source at {settings.site_packages} is SGLang {found}; the release is said to be {settings.release}",
            why="the rules of one release do not hold for another",
            fix="give the release that is installed",
            source="version of the installed package",
        )
    ]


def _believe(
    tree: SourceTree,
    settings: Settings,
    architecture: str,
    layers: int,
    rules: TargetRules,
    basis: dict[str, str],
) -> tuple[TargetRules, list[Finding]]:
    findings: list[Finding] = []
    supported = tree.supports_capture(architecture)
    # A fix that is still to be applied is not in a pristine tree: what it will do stays a rule.
    to_come = rules.delegation is not None and rules.delegation.fix in settings.fixes and supported is False
    if supported is not None and not to_come:
        agrees = supported == (rules.rule is not None)
        basis["capture_support"] = CONFIRMED if agrees else CONTRADICTED
    if supported is False and not to_come and rules.rule is not None:
        reason = f"the installed {architecture} has no set_eagle3_layers_to_capture"
        findings.append(_contradiction(reason))
        rules = replace(rules, rule=None, reason=reason)
    elif supported or to_come:
        inner = rules.delegation.inner if to_come and rules.delegation else architecture
        rules = _believe_ids(tree, inner, layers, rules, basis, findings)
    keeps = graph_keeps_ids(tree.package)
    if keeps is not None and reads_ids(tree.package) and not (GRAPH_FIX in settings.fixes and not keeps):
        basis["cuda_graphs"] = CONFIRMED if keeps == rules.graph_keeps_ids else CONTRADICTED
        if keeps != rules.graph_keeps_ids:
            text = "keep the draft's ids" if keeps else "go back to the default layers"
            findings.append(_contradiction(f"CUDA graphs {text} in the source"))
            rules = replace(rules, graph_keeps_ids=keeps)
    return rules, findings


def _believe_ids(
    tree: SourceTree,
    architecture: str,
    layers: int,
    rules: TargetRules,
    basis: dict[str, str],
    findings: list[Finding],
) -> TargetRules:
    read = source_rule(tree, architecture, rules)
    try:
        default = tuple(tree.capture(architecture, None, layers).indices or ())
        basis["default_layers"] = CONFIRMED if default == rules.default else CONTRADICTED
        flags = any(tree.capture(architecture, ids, layers).flags for ids in ([2],))
        same = rules.rule is not None and all(
            read.indices(ids, layers) == rules.rule.indices(ids, layers) for ids in probes(layers)
        )
    except CannotInterpret:
        # No ids are taken (0.4.4.post2 to 0.4.8.post1), or the method is written in a way that is not understood.
        if rules.rule is not None and not rules.rule.takes_ids and reads_ids(tree.package) is False:
            basis["layer_ids"] = CONFIRMED
        return rules
    basis["layer_ids"] = CONFIRMED if same else CONTRADICTED
    if default != rules.default:
        findings.append(_contradiction(f"the default layers are {list(default)} in the source"))
    if not same:
        findings.append(_contradiction(f"{architecture} reads layer ids in another way in the source"))
    return replace(rules, rule=rules.rule if same else read, default=default, flags=flags)


def source_rule(tree: SourceTree, architecture: str, rules: TargetRules) -> IdRule:
    """The rule as the source has it; its ``indices`` raise CannotInterpret where it cannot be read."""

    def indices(ids: Sequence[int], layers: int) -> list[int]:
        return list(tree.capture(architecture, ids, layers).indices or ())

    known = rules.rule.meaning if rules.rule is not None else "not known"
    return IdRule("from-source", f"as the installed source has it (by the table: {known})", indices)


def _contradiction(what: str) -> Finding:
    return warning(
        "rule-contradicted",
        f"{what}; the tables of rules say otherwise, and the source is believed",
        why="this release or this tree is not what the rules were read from (patched, or newer)",
        fix="run tests/releases/confirm_draft_rules.py on this release and add it to draft_families.py",
        source="srt of the installed package",
    )
