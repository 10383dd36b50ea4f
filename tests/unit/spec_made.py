"""A spec as an inventory would give it, for tests to vary."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.aerie.instance.desired import make_spec
from ansible.module_utils.aerie.instance.spec import Release, Spec

SALT = b"s" * 32
RELEASE = Release("0.5.23", "/opt/v", "/opt/v/bin/python", "/opt/v/sglang", "/opt/v/d", "aa", "index")
MODELS = {"target": {"path": "/m/t", "config_sha256": "1"}}
SETTINGS: dict[str, Any] = {
    "instance": "default",
    "mode": "production",
    "model_path": "/m/t",
    "draft_model_path": "/m/d",
    "host": "127.0.0.1",
    "port": 30000,
    "speculative": {"algorithm": "EAGLE3", "num_steps": 2, "eagle_topk": 1, "num_draft_tokens": 3},
    "max_running_requests": 4,
    "arguments": {"tp_size": 8},
    "environment": {"NCCL_ALGO": "Ring"},
    "unit_template": "ExecStart=@COMMAND@\n@ENVIRONMENT@\n@EXIT_STATUS@\n",
    "user": "sglang",
    "group": "sglang",
    "cache_dir": "/var/cache/sglang/default",
}


def spec(release: Release = RELEASE, models: dict[str, Any] = MODELS, **changes: Any) -> Spec:
    return make_spec({**SETTINGS, **changes}, release, models, SALT)
