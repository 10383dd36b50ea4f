"""What the entries of Aerie's patch set `fixes` call. Comes with the set, goes with it."""

from __future__ import annotations

import inspect


def keep_draft_layers(runner):
    """Make the draft's layer ids what the target captures when it is asked for its default layers.

    Up to 0.5.10.post1 every graph runner, and the warm-up before it, calls `set_eagle3_layers_to_capture()` without
    ids, and only when the graphs are captured `ModelRunner.initialize` calls it with the ids of the draft's config.
    This is called when the target's weights are loaded, so before all of them.
    """
    if not runner.spec_algorithm.is_eagle3() or runner.is_draft_worker:
        return
    set_layers = getattr(runner.model, "set_eagle3_layers_to_capture", None)
    ids = _draft_layers(runner)
    if set_layers is None or ids is None:
        return

    def set_draft_layers(layer_ids=None):
        return set_layers(ids if layer_ids is None else layer_ids)

    runner.model.set_eagle3_layers_to_capture = set_draft_layers


def _draft_layers(runner):
    """The ids in the draft's config, None when it has none. From 0.5.8 on the runner has read them by now."""
    if hasattr(runner, "eagle_aux_hidden_state_layer_ids"):
        return runner.eagle_aux_hidden_state_layer_ids
    from sglang.srt.configs.model_config import ModelConfig

    arguments = {"model_path": runner.server_args.speculative_draft_model_path, "is_draft_model": True}
    if "model_revision" in inspect.signature(ModelConfig.from_server_args).parameters:
        arguments["model_revision"] = getattr(runner.server_args, "speculative_draft_model_revision", None)
    config = ModelConfig.from_server_args(runner.server_args, **arguments).hf_config
    return (getattr(config, "eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
