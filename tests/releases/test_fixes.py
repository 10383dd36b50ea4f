"""The fixes at work in SGLang's own source: which layer ids reach the target while CUDA graphs are captured.

`ModelRunner.initialize` and the graph runner's constructor are the release's; everything around them is a stub, since
neither a GPU nor torch is here. The stub's model writes down what it is asked to capture.
"""

from __future__ import annotations

import ast
import builtins
import types
from pathlib import Path
from typing import Any

import fetch
import patch_table
import pytest

from aerie.draft.source_graph import graph_keeps_ids
from aerie.patch import tree as patch_tree

RUNNER = "sglang/srt/model_executor/model_runner.py"
GRAPHS = "sglang/srt/model_executor/cuda_graph_runner.py"
FIXES = "sglang/srt/aerie_fixes.py"
IDS = [3, 31, 58]
DEFAULT = None
AFFECTED = [
    "0.4.10.post2",
    "0.5.9",
    *(
        pytest.param(release, marks=pytest.mark.every_release)
        for release in ("0.4.9", "0.5.2", "0.5.4.post3", "0.5.6.post2", "0.5.8", "0.5.10.post1")
    ),
]


class Model:
    """Stands for the target. ``asked``: ids and whether graphs were under way, call by call."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, str]] = []
        self.now = "load"

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        self.asked.append((layer_ids, self.now))

    def in_graphs(self) -> Any:
        """The ids that were in force when the graphs were captured."""
        return next(ids for ids, now in reversed(self.asked) if now == "graphs")


class Stub:
    """Anything: has every attribute except those in ``without``, can be called, entered, compared (never true)."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        self.__dict__["without"] = without

    def __getattr__(self, name: str) -> Any:
        if name in self.without or name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = made = Stub()
        return made

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.__dict__["called"] = True
        return Stub()

    def __enter__(self) -> Any:
        return Stub()

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, _: Any) -> Any:
        return Stub()

    def __contains__(self, _: Any) -> bool:
        return False

    def __index__(self) -> int:
        return 0

    def _never(self, _: Any) -> bool:
        return False

    def _some(self, *_: Any) -> Any:
        return Stub()

    __lt__ = __le__ = __gt__ = __ge__ = _never
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __truediv__ = _some


def function(path: Path, owner: str, name: str, stubs: dict[str, Any]) -> types.FunctionType:
    """One method of the release, alone; every global that it uses is a stub."""
    tree = ast.parse(path.read_text())
    (scope,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    (method,) = (node for node in scope.body if isinstance(node, ast.FunctionDef) and node.name == name)
    method.decorator_list, method.returns = [], None
    for argument in [*method.args.args, *method.args.kwonlyargs]:
        argument.annotation = None
    code = compile(ast.Module([method], []), str(path), "exec")
    names: dict[str, Any] = {used.id: Stub() for used in ast.walk(method) if isinstance(used, ast.Name)}
    names = {key: value for key, value in names.items() if not hasattr(builtins, key)}
    names = {**names, **stubs}
    exec(code, names)
    return names[name]


def serve(site: Path) -> Model:
    """Load the weights and capture the graphs; what the model was asked."""
    # Up to 0.5.6.post2 the draft's config is read when the graphs are captured already.
    unread = (
        () if "eagle_aux_hidden_state_layer_ids" in _init(site) else ("eagle_aux_hidden_state_layer_ids",)
    )
    model, runner = Model(), Stub(unread)
    runner.model, runner.is_draft_worker, runner.device = model, False, "cuda"
    runner.model_config.num_nextn_predict_layers = None
    runner.spec_algorithm.is_eagle3 = lambda: True
    if not unread:
        runner.eagle_use_aux_hidden_state, runner.eagle_aux_hidden_state_layer_ids = True, IDS
    draft, config = Stub(), Stub()
    draft.hf_config.eagle_config = {"eagle_aux_hidden_state_layer_ids": IDS}
    config.from_server_args = lambda *_, **__: draft
    modules = {"sglang.srt.configs.model_config": types.SimpleNamespace(ModelConfig=config)}

    def imported(name: str, *arguments: Any) -> Any:
        if name in ("__future__", "inspect"):
            return __import__(name, *arguments)
        return modules.get(name) or Stub()

    stubs = {"__builtins__": {**vars(builtins), "__import__": imported}, "ModelConfig": config}
    stubs["get_batch_sizes_to_capture"] = lambda *_, **__: ([1], [])
    if (site / FIXES).is_file():
        fixes: dict[str, Any] = dict(stubs)
        exec((site / FIXES).read_text(), fixes)
        modules["sglang.srt"] = types.SimpleNamespace(aerie_fixes=types.SimpleNamespace(**fixes))

    def capture_graphs(*_: Any, **__: Any) -> None:
        model.now = "graphs"
        graphs = Stub()
        graphs.model_runner = runner
        constructor = function(site / GRAPHS, "CudaGraphRunner", "__init__", stubs)
        constructor(graphs, runner)
        assert graphs.capture.__dict__.get("called")
        model.now = "serve"

    runner.init_device_graphs = runner.init_cuda_graphs = capture_graphs
    function(site / RUNNER, "ModelRunner", "initialize", stubs)(runner, 1.0)
    return model


def _init(site: Path) -> str:
    """The source of the model runner's constructor."""
    (scope,) = (
        node
        for node in ast.parse((site / RUNNER).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "ModelRunner"
    )
    return ast.unparse(next(n for n in scope.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"))


@pytest.mark.parametrize("release", AFFECTED)
def test_graphs_capture_the_layers_of_the_draft(release: str, tmp_path: Path) -> None:
    entries = patch_table.entries(["fixes"])
    published, fixed = tmp_path / "published", tmp_path / "fixed"
    for site in (published, fixed):
        patch_table.copied(fetch.tree(release), site, entries)
        (site / GRAPHS).write_bytes((fetch.tree(release) / GRAPHS).read_bytes())
    patch_tree.apply(fixed, release, entries)

    before = serve(published)
    assert before.in_graphs() is DEFAULT
    assert before.asked[-1] == (IDS, "serve")
    assert graph_keeps_ids(published / "sglang") is False

    after = serve(fixed)
    assert after.in_graphs() == IDS
    assert [ids for ids, _ in after.asked if ids != IDS] == []
    assert graph_keeps_ids(fixed / "sglang") is True


def test_kimi_hands_on_to_its_language_model(tmp_path: Path) -> None:
    entries = patch_table.entries(["fixes"])
    patch_table.copied(fetch.tree("0.5.9"), tmp_path, entries)
    patch_tree.apply(tmp_path, "0.5.9", entries)
    asked: list[tuple[Any, ...]] = []
    inner = types.SimpleNamespace(
        set_eagle3_layers_to_capture=lambda ids: asked.append(("layers", ids)),
        get_embed_and_head=lambda: ("embed", "head"),
        set_embed_and_head=lambda embed, head: asked.append((embed, head)),
    )
    kimi = types.SimpleNamespace(language_model=inner)
    method = {
        name: function(
            tmp_path / "sglang/srt/models/kimi_k25.py", "KimiK25ForConditionalGeneration", name, {}
        )
        for name in ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head")
    }
    method["set_eagle3_layers_to_capture"](kimi, IDS)
    method["set_eagle3_layers_to_capture"](kimi)
    method["set_embed_and_head"](kimi, 1, 2)
    assert asked == [("layers", IDS), ("layers", None), (1, 2)]
    assert method["get_embed_and_head"](kimi) == ("embed", "head")
