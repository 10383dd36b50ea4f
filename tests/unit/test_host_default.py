"""A change of the host's default environment: which instances it restarts, and which hide it by values of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.aerie.instance import host_default
from ansible.module_utils.aerie.instance.state import ACCEPTED, InstanceState, InstanceStore

OLD = {"NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize(
    ("after", "environment", "lines"),
    [
        (OLD, OLD, []),
        ({**OLD, "NCCL_DEBUG": "INFO"}, OLD, ["NCCL_DEBUG WARN -> INFO"]),
        ({**OLD, "NCCL_DEBUG": "INFO"}, {**OLD, "NCCL_DEBUG": "TRACE"}, []),
        ({"NCCL_DEBUG": "WARN"}, OLD, ["NCCL_IB_HCA mlx5_0 -> (not set)"]),
        ({**OLD, "NCCL_ALGO": "Ring"}, OLD, ["NCCL_ALGO (not set) -> Ring"]),
        ({**OLD, "NCCL_ALGO": "Ring"}, {**OLD, "NCCL_ALGO": "Tree"}, []),
    ],
)
def test_a_value_of_its_own_hides_the_default(
    after: dict[str, str], environment: dict[str, str], lines: list[str]
) -> None:
    assert host_default.changes(OLD, after, environment) == lines


def instance(
    base: Path, name: str, kept: dict[str, str] | None, environment: dict[str, str]
) -> InstanceStore:
    store = InstanceStore(str(base), name)
    deployment = store.deployment("d1")
    deployment.mkdir(parents=True)
    (deployment / "spec.json").write_text(json.dumps({"environment": environment}))
    store.set_current("d1")
    entry = {"digest": "d1"} | ({} if kept is None else {host_default.KEY: kept})
    store.save(InstanceState(phase=ACCEPTED, accepted="d1", history=[entry]))
    return store


def test_the_run_on_one_instance_names_the_others(tmp_path: Path) -> None:
    mine = instance(tmp_path, "mine", OLD, OLD)
    instance(tmp_path, "other", OLD, OLD)
    instance(tmp_path, "own-values", OLD, {**OLD, "NCCL_DEBUG": "TRACE"})
    instance(tmp_path, "from-before", None, OLD)
    new = host_default.texts({"NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "INFO", "NCCL_ALGO": None})
    assert host_default.also_affected(mine, new) == [
        "gpu_host_nccl_env also affects instance other, which restarts on its next run: NCCL_DEBUG WARN -> INFO"
    ]
    assert host_default.of_instance(mine, new) == ["NCCL_DEBUG WARN -> INFO"]
    assert host_default.also_affected(mine, OLD) == []
