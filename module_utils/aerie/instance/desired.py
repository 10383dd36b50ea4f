"""From an inventory's settings to the spec of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..draft import copy as draft_copy
from ..errors import ErrorKind
from ..network.ports import rendezvous_port, spans_machines
from ..release.rules import config_file_supported, stop_signals
from . import mode
from .arguments import SECRETS, Speculation, check_free_arguments, command_line, text_of
from .keys import check_key
from .spec import CONFIG, DEPLOYMENT, Release, Spec, secret_hash
from .unit import check_user_environment, render

KEYS_NEED_CONFIG = ErrorKind(
    "keys-need-config-file",
    "API keys are passed in a configuration file, so that they are not visible in ps; releases before 0.5.3 read none.",
)


def base_environment(release: Release, cache: str) -> dict[str, str]:
    """What every server process of Aerie carries. ``cache``: directory that the service user may write.

    Compile caches live per release at a path that does not change, since cached files hold absolute paths.
    """
    mine = f"{cache}/{release.release}"
    bin_dir = release.python.rpartition("/")[0]
    return {
        "PYTHONPATH": f"{DEPLOYMENT}/site",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{bin_dir}:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": cache,
        "XDG_CACHE_HOME": f"{mine}/xdg",
        "TRITON_CACHE_DIR": f"{mine}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{mine}/inductor",
        "TVM_FFI_CACHE_DIR": f"{mine}/tvm-ffi",
        "FLASHINFER_WORKSPACE_BASE": mine,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # A model is a directory on the host: a mistyped path must not become a download.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


# Gloo and NCCL listen on random ports of the host's own address, where any machine may connect to them; with these,
# on loopback (both seen: Gloo on the CPU engine, NCCL 2.28.9 on an H200). Data between GPUs does not take this path.
ONE_MACHINE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def make_spec(
    settings: Mapping[str, Any], release: Release, models: dict[str, dict[str, Any]], salt: bytes | None
) -> Spec:
    """The spec that the settings (the options of the module ``sglang_deployment``) ask for.

    models: what :func:`preflight.check_model` and :func:`draft_copy.with_layer_ids` found. Raises the errors of
    ``arguments``, ``unit`` and this file.
    """
    speculation = Speculation.from_mapping(settings.get("speculative") or {})
    arguments = mode.server_arguments(
        settings["mode"],
        release.release,
        check_free_arguments(settings.get("arguments") or {}),
        debug_cuda_graphs=bool(settings.get("debug_cuda_graphs")),
    )
    arguments |= {
        "model_path": settings["model_path"],
        "host": settings["host"],
        "port": settings["port"],
        "max_running_requests": settings.get("max_running_requests"),
        "nccl_port": rendezvous_port(
            settings["port"], settings.get("rendezvous_port") or 0, release.release, arguments
        )
        or None,
    }
    if speculation is not None:
        own = draft_copy.is_copied(models.get("draft"))
        draft_path = f"{DEPLOYMENT}/{draft_copy.DIRECTORY}" if own else settings.get("draft_model_path")
        arguments |= speculation.as_arguments(draft_path)
    environment = base_environment(release, settings["cache_dir"])
    if not spans_machines(arguments):
        environment |= ONE_MACHINE
    environment |= mode.environment(settings["mode"], settings["cache_dir"])
    given = settings.get("environment") or {}
    check_user_environment(given)
    environment |= {name: text_of(value) for name, value in given.items() if value is not None}
    secrets = secret_values(settings)
    command = [release.python, "-m", "sglang.launch_server", *command_line(arguments)]
    if secrets:
        if not config_file_supported(release.release):
            raise KEYS_NEED_CONFIG.error(
                f"SGLang {release.release} reads no configuration file, so an API key would be visible in ps",
                next="install 0.5.3 or newer (sglang_install_release), or do without a key",
            )
        command += ["--config", f"{DEPLOYMENT}/{CONFIG}"]
        environment["SGLANG_LOGGING_CONFIG_PATH"] = f"{DEPLOYMENT}/logging.json"
    return Spec(
        instance=settings["instance"],
        mode=settings["mode"],
        release=release,
        command=command,
        environment=environment,
        unit=render(
            settings["unit_template"],
            command=command,
            environment=environment,
            success_signals=stop_signals(release.release),
        ),
        models=models,
        patches=mode.patch_record(settings.get("patches") or [], release.release),
        secrets={name: secret_hash(salt, value) for name, value in secrets.items()},
        user=settings["user"],
        group=settings["group"],
    )


def secret_values(settings: Mapping[str, Any]) -> dict[str, str]:
    """The API keys that are set, by the name of the server argument. Raises bad-api-key."""
    given = {name: str(settings[name]) for name in SECRETS if settings.get(name)}
    for name, value in given.items():
        check_key(name, value)
    return given
