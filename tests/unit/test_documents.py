"""Documents, argument specs and defaults say the same as the code. Each failure lists every difference with its fix."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import find_errors
import generate
import render_text

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = sorted(path.stem for path in (ROOT / "library").glob("*.py"))
# Names that hold something to keep to oneself.
SECRET = re.compile(r"(^|_)(key|token|password|secret|passphrase)$")


def read_yaml(*parts: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*parts).read_text(encoding="utf-8")) or {}


def report(differences: list[str]) -> None:
    """Fail with all differences at once, a line each."""
    if differences:
        pytest.fail("\n".join(differences), pytrace=False)


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """Every generated document as it should be."""
    return generate.documents(ROOT)


@pytest.fixture(scope="module")
def found() -> find_errors.Found:
    return find_errors.find(ROOT)


# -- generated documents ---------------------------------------------------------------------------------------------


def test_generated_documents_are_up_to_date(written: dict[str, str]) -> None:
    stale = [
        f"{name} is out of date; fix: make docs, and commit it"
        for name, text in written.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    report(stale)


def test_generated_documents_say_that_they_are(written: dict[str, str]) -> None:
    for name in written:
        assert "make docs" in (ROOT / name).read_text(encoding="utf-8").partition("\n")[0], name


# -- roles -----------------------------------------------------------------------------------------------------------


def spec_differences(role: str, specs: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """How a role's argument specs differ from its defaults, a line each with the fix."""
    spec_file, defaults_file = f"roles/{role}/meta/argument_specs.yml", f"roles/{role}/defaults/main.yml"
    main = (specs.get("main") or {}).get("options") or {}
    lines = [f"{name}: not in {spec_file} (main); add it there" for name in defaults if name not in main]
    for entry, spec in specs.items():
        for name, option in (spec.get("options") or {}).items():
            if "default" not in option:
                if name in defaults:
                    lines.append(f"{name} ({entry}): {spec_file} lacks default: {defaults[name]!r}")
                elif not option.get("required"):
                    lines.append(
                        f"{name} ({entry}): neither a default nor required; add it to {defaults_file}"
                    )
            elif name not in defaults:
                lines.append(f"{name} ({entry}): not in {defaults_file}; add {name}: {option['default']!r}")
            elif not same_value(option["default"], defaults[name]):
                lines.append(
                    f"{name} ({entry}): {spec_file} has {option['default']!r}, {defaults_file} has "
                    f"{defaults[name]!r}; make the spec's default equal"
                )
    return lines


def same_value(one: Any, other: Any) -> bool:
    """Equal, and of one type: true is not 1, "1" is not 1, 0 is not 0.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_equal_the_defaults(role: str) -> None:
    specs = read_yaml("roles", role, "meta", "argument_specs.yml")["argument_specs"]
    report(spec_differences(role, specs, read_yaml("roles", role, "defaults", "main.yml")))


@pytest.mark.parametrize(
    ("specs", "defaults", "said"),
    [
        ({"main": {"options": {}}}, {"r_a": 1}, "add it there"),
        ({"main": {"options": {"r_a": {"default": 2}}}}, {"r_a": 1}, "has 2"),
        ({"main": {"options": {"r_a": {"default": True}}}}, {"r_a": 1}, "has True"),
        ({"main": {"options": {"r_a": {"default": "1"}}}}, {"r_a": 1}, "has '1'"),
        ({"main": {"options": {"r_a": {}}}}, {"r_a": 1}, "lacks default"),
        ({"main": {"options": {"r_a": {}}}}, {}, "neither a default nor required"),
        (
            {"main": {"options": {"r_a": {"default": 1}}}, "stop": {"options": {"r_a": {"default": 2}}}},
            {"r_a": 1},
            "(stop)",
        ),
    ],
)
def test_a_difference_is_reported(specs: dict[str, Any], defaults: dict[str, Any], said: str) -> None:
    assert said in "\n".join(spec_differences("r", specs, defaults))


def uncommented(text: str) -> list[str]:
    """Variables of a defaults file without a comment above. Lines without a gap share the comment above them."""
    missing, commented = [], False
    for line in text.splitlines():
        if line.startswith("#"):
            commented = True
        elif not line.strip():
            commented = False
        elif (found := re.match(r"(\w+):", line)) and not commented:
            missing.append(found[1])
    return missing


@pytest.mark.parametrize("role", ROLES)
def test_every_default_has_a_comment(role: str) -> None:
    text = (ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8")
    report([f"{name}: write a comment above it" for name in uncommented(text)])


def test_a_missing_comment_is_found() -> None:
    assert uncommented("---\n# One.\na: 1\nb: 2\n\nc: 3\n\n# Four.\nd:\n  - 4\n") == ["c"]


@pytest.mark.parametrize("role", ROLES)
def test_entry_points_and_task_files(role: str) -> None:
    """Every entry point has its task file and a description, and so has every option."""
    specs = read_yaml("roles", role, "meta", "argument_specs.yml")["argument_specs"]
    assert "main" in specs
    lines = []
    for entry, spec in specs.items():
        if not (ROOT / "roles" / role / "tasks" / f"{entry}.yml").is_file():
            lines.append(f"{entry}: no tasks/{entry}.yml")
        if not spec.get("short_description"):
            lines.append(f"{entry}: no short_description")
        for name, option in (spec.get("options") or {}).items():
            lines += [f"{name} ({entry}): no {key}" for key in ("description", "type") if not option.get(key)]
            if not name.startswith(f"{role}_"):
                lines.append(f"{name} ({entry}): does not start with {role}_")
            if SECRET.search(name) and not option.get("no_log"):
                lines.append(f"{name} ({entry}): add no_log: true")
    report(lines)


@pytest.mark.parametrize("role", ROLES)
def test_role_metadata(role: str) -> None:
    info = read_yaml("roles", role, "meta", "main.yml")["galaxy_info"]
    assert info["license"] == "Apache-2.0"
    assert info["min_ansible_version"] == "2.19"
    assert info["description"]


# -- modules ---------------------------------------------------------------------------------------------------------


class Captured(Exception):
    """Carries what a module gave to AnsibleModule."""


def captured_spec(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    """The keywords that the module gives to AnsibleModule; None when it is documentation of an action plugin."""
    module = importlib.import_module(name)
    if not hasattr(module, "main"):
        assert (ROOT / "plugins" / "action" / f"{name}.py").is_file(), (
            f"{name} has neither main() nor a plugin"
        )
        return None

    def fake(**keywords: Any) -> None:
        raise Captured(keywords)

    monkeypatch.setattr(module, "AnsibleModule", fake)
    with pytest.raises(Captured) as caught:
        module.main()
    given: dict[str, Any] = caught.value.args[0]
    return given


@cache
def shown() -> dict[str, Any]:
    """Every module as ansible-doc shows it, so with what it takes from plugins/doc_fragments."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-doc"), "-t", "module", "-j", *MODULES],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert sorted(found) == MODULES, done.stderr
    return found


def documentation(name: str) -> dict[str, Any]:
    found: dict[str, Any] = shown()[name]["doc"]
    return found


def option_differences(
    spec: Mapping[str, Any], documented: Mapping[str, Any], parent: str = ""
) -> Iterator[str]:
    """How an argument spec and documented options differ, a line each."""
    for name in sorted(set(spec) | set(documented)):
        label = f"{parent}{name}"
        if name not in documented:
            yield f"{label}: not in DOCUMENTATION"
            continue
        if name not in spec:
            yield f"{label}: not in argument_spec"
            continue
        code, text = spec[name], documented[name]
        for key, absent in (("type", "str"), ("required", False), ("elements", None), ("choices", None)):
            ours, theirs = code.get(key, absent), text.get(key, absent)
            if ours != theirs:
                yield f"{label}: {key} is {ours!r} in argument_spec and {theirs!r} in DOCUMENTATION"
        ours, theirs = code.get("default"), text.get("default")
        if ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool):
            yield f"{label}: default is {ours!r} in argument_spec and {theirs!r} in DOCUMENTATION"
        if set(code.get("aliases") or ()) != set(text.get("aliases") or ()):
            yield f"{label}: aliases differ"
        if not text.get("description"):
            yield f"{label}: no description"
        yield from option_differences(code.get("options") or {}, text.get("suboptions") or {}, f"{label}.")


@pytest.mark.parametrize("name", MODULES)
def test_argument_spec_equals_documentation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = captured_spec(name, monkeypatch)
    if given is None:
        return
    assert given.get("supports_check_mode") is True
    lines = list(option_differences(given["argument_spec"], documentation(name).get("options") or {}))
    for option, code in given["argument_spec"].items():
        if SECRET.search(option) and code.get("no_log") is not True:
            lines.append(f"{option}: add no_log=True")
    report(lines)


@pytest.mark.parametrize(
    ("spec", "documented", "said"),
    [
        ({"a": {}}, {}, "not in DOCUMENTATION"),
        ({}, {"a": {}}, "not in argument_spec"),
        ({"a": {"type": "int"}}, {"a": {"description": "A."}}, "type is"),
        ({"a": {"default": 1}}, {"a": {"description": "A.", "default": 2}}, "default is"),
        ({"a": {"default": True}}, {"a": {"description": "A.", "default": 1}}, "default is"),
        ({"a": {"choices": ["x"]}}, {"a": {"description": "A.", "choices": ["y"]}}, "choices is"),
        ({"a": {"required": True}}, {"a": {"description": "A."}}, "required is"),
        (
            {"a": {"type": "list", "elements": "int"}},
            {"a": {"description": "A.", "type": "list"}},
            "elements",
        ),
        ({"a": {"options": {"b": {}}}}, {"a": {"description": "A."}}, "a.b: not in DOC"),
    ],
)
def test_an_option_difference_is_reported(
    spec: dict[str, Any], documented: dict[str, Any], said: str
) -> None:
    assert said in "\n".join(option_differences(spec, documented))


@pytest.mark.parametrize("name", MODULES)
def test_documentation_is_whole(name: str) -> None:
    module, about = importlib.import_module(name), documentation(name)
    assert about["module"] == name
    assert about["author"]
    missing = {"check_mode", "diff_mode", "idempotent", "platform"} - set(about["attributes"])
    assert not missing, f"attributes: add {', '.join(sorted(missing))}"
    for task in yaml.safe_load(module.EXAMPLES):
        options = task.get(name) or {}
        assert name in task, f"an example of another module: {task}"
        assert set(options) <= set(about.get("options") or {}), f"an example has an unknown option: {options}"
    assert yaml.safe_load(module.RETURN)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_every_error_is_whole(found: find_errors.Found) -> None:
    """Codes that people can search for, a meaning, a place that raises it, and something to do next."""
    assert found.kinds
    lines = []
    for kind in found.kinds:
        where = f"{kind.file}:{kind.line}: {kind.code}"
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", kind.code):
            lines.append(f"{where}: a code is lower-case words joined by hyphens")
        if len(kind.meaning.split()) < 4 or not kind.meaning.endswith("."):
            lines.append(f"{where}: its meaning is not a sentence")
        if not kind.sites:
            lines.append(f"{where}: raised nowhere; remove it")
        lines += [
            f"{site.file}:{site.line}: {kind.code} says nothing under Next"
            for site in kind.sites
            if not any(text.strip() for text in site.next)
        ]
    report(lines)


def test_what_is_declared_is_what_is_documented(found: find_errors.Found) -> None:
    """The reader of the source against the registry that the code itself keeps."""
    from ansible.module_utils.aerie.errors import ErrorKind

    cores = ROOT / "module_utils" / "aerie"
    for path in sorted(cores.rglob("*.py")):
        dotted = ".".join(path.relative_to(cores).with_suffix("").parts)
        importlib.import_module(f"ansible.module_utils.aerie.{dotted}")
    real = {code: kind.meaning for code, kind in ErrorKind.declared.items()}
    assert {kind.code: kind.meaning for kind in found.kinds} == real


def fake_project(tmp_path: Path, core: str, plugin: str = "") -> Path:
    for folder, text in (("module_utils/aerie", core), ("plugins/action", plugin), ("library", "")):
        place = tmp_path / folder
        place.mkdir(parents=True)
        (place / "one.py").write_text(text)
    return tmp_path


DECLARED = 'A = ErrorKind("a-b", "What it means.")\n'


@pytest.mark.parametrize(
    ("core", "plugin", "said"),
    [
        (DECLARED + 'B = ErrorKind("a-b", "Another.")\n', "", "is declared in"),
        (DECLARED + "def f():\n    raise A.error('x')\n", "", "needs what failed and next="),
        (DECLARED + "def f():\n    raise B.error('x', next='y')\n", "", "names no declared ErrorKind"),
        ("def f():\n    return ErrorKind('a-b', 'Hidden.')\n", "", "elsewhere"),
        (DECLARED, "def f():\n    raise E('it broke [c-d]')\n", "prints [c-d]"),
        (DECLARED, "def f(c):\n    raise E(f'it broke [{c}]')\n", "write the code in"),
    ],
)
def test_what_cannot_be_documented_is_refused(tmp_path: Path, core: str, plugin: str, said: str) -> None:
    with pytest.raises(find_errors.DocumentError) as caught:
        find_errors.find(fake_project(tmp_path, core, plugin))
    assert said in str(caught.value)


def test_codes_that_plugins_print_are_found(tmp_path: Path) -> None:
    plugin = (
        "def f(up, unit):\n"
        "    code = 'a-b' if up else 'c-d'\n"
        "    return f'{unit} is late [{code}]\\nNext: look at {unit}' + (' or wait' if up else '')\n"
    )
    root = fake_project(tmp_path, DECLARED + 'B = ErrorKind("c-d", "What it means.")\n', plugin)
    found = {kind.code: [site.next for site in kind.sites] for kind in find_errors.find(root).kinds}
    assert found == {"a-b": [["look at {unit} or wait"]], "c-d": [["look at {unit}"]]}


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("'plain'", ["plain"]),
        ("f'df {path.name} {self.size}'", ["df {path.name} {size}"]),
        ("'a' if up else 'b'", ["a", "b"]),
        ("('a' if up else 'b') + ('c' if up else 'd')", ["ac", "bd"]),
        ("given or 'b'", ["b"]),
        ("advice(1)", ["free memory", "free a port"]),
    ],
)
def test_texts_of_an_expression(expression: str, texts: list[str]) -> None:
    source = (
        "TABLE: tuple = (('x', 'free memory'), ('y', 'free a port'))\n"
        "def advice(n):\n    for pattern, text in TABLE:\n        if n:\n            return text\n    return None\n"
    )
    tree = render_text.ast.parse(source + f"value = {expression}\n")
    assert render_text.renderings(tree.body[-1].value, tree) == texts  # type: ignore[attr-defined]


# -- documents that people write -------------------------------------------------------------------------------------


WRITTEN = [ROOT / "docs" / "architecture.md"] + [
    path for name in ("README.md", "CONTRIBUTING.md") if (path := ROOT / name).is_file()
]
PLACES = (
    "playbooks|roles|library|inventories|group_vars|molecule|tests|docs|plugins|module_utils|requirements"
)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_paths_in_documents_exist(path: Path) -> None:
    """Every path of the repository in backquotes; NAME and <name> stand for one that the reader chooses."""
    text = path.read_text(encoding="utf-8")
    lines = []
    for found in re.findall(rf"`((?:{PLACES})/[^`\s]*)`", text):
        pattern = re.sub(r"<[a-z]+>|\b[A-Z]{2,}\b", "*", found).rstrip("/")
        options = re.search(r"\{([^}]*)\}", pattern)
        for one in options[1].split(",") if options else [""]:
            wanted = pattern.replace(options[0], one) if options else pattern
            # `group_vars/…` may also be meant within an inventory.
            if not any(ROOT.glob(wanted)) and not any(ROOT.glob(f"inventories/*/{wanted}")):
                lines.append(f"{path.name}: no {wanted} in the repository")
    report(lines)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_variables_in_documents_exist(path: Path) -> None:
    known = set(MODULES) | set(ROLES) | {"sglang_install_result"}
    for role in ROLES:
        for spec in read_yaml("roles", role, "meta", "argument_specs.yml")["argument_specs"].values():
            known |= set(spec.get("options") or {})
    prefixes = "|".join(f"{role}_" for role in ROLES)
    used = set(re.findall(rf"(?<![\w./-])(?:{prefixes})\w+\b(?!\*)", path.read_text(encoding="utf-8")))
    report([f"{path.name}: no role has the variable {name}" for name in sorted(used - known)])


def test_the_architecture_page_names_every_step_and_phase() -> None:
    from ansible.module_utils.aerie.instance import state

    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    steps = documentation("sglang_deployment")["options"]["state"]["choices"]
    phases = [state.ACCEPTED, state.SWITCHED, state.STOPPED, state.FAILED]
    report(
        [
            f"docs/architecture.md: `{word}` is missing"
            for word in {*steps, *phases}
            if f"`{word}`" not in text
        ]
    )
