"""Write docs/variables.md, docs/errors.md and docs/modules.md from the source. `make docs` runs this.

`docs/generate.py --check` only says which of them are out of date, and exits 1 if any is.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from find_errors import Found, Kind, Site, find

ROOT = Path(__file__).resolve().parents[1]
HEADER = "<!-- Generated from {source} by `make docs`. Do not edit: your change would be lost. -->\n\n"


def documents(root: Path) -> dict[str, str]:
    """``{path relative to the root: text}`` of every generated document. Raises find_errors.DocumentError."""
    return {
        "docs/variables.md": variables(root),
        "docs/errors.md": errors(find(root)),
        "docs/modules.md": modules(root),
    }


# -- variables.md ----------------------------------------------------------------------------------------------------


def variables(root: Path) -> str:
    """One table per role, from its main entry point; further entry points name the variables that they read."""
    text = HEADER.format(source="roles/*/meta/argument_specs.yml")
    text += "# Variables\n\n"
    text += (
        "Set them in the inventory, for example in `inventories/gpu/group_vars/sglang.yml`. A default is what holds "
        "when nothing sets the variable. A name with one of these prefixes that no role knows is refused, as is a "
        "value of another type. Why a default is what it is stands in `roles/*/defaults/main.yml`.\n"
    )
    for path in sorted(root.glob("roles/*/meta/argument_specs.yml")):
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        text += _role(path.parents[1].name, entries)
    return text


def _role(role: str, entries: Mapping[str, Any]) -> str:
    main = entries.get("main") or {}
    text = f"\n## {role}\n\n{_sentence(main.get('short_description'))}\n\n"
    rows = list(_rows(main.get("options") or {}))
    text += _table(("Variable", "Type", "Default", "Description"), rows)
    others = {name: entry for name, entry in entries.items() if name != "main"}
    if others:
        text += "\nFurther entry points (`tasks_from`):\n\n"
    for name, entry in others.items():
        options = list(entry.get("options") or {})
        same = set(options) == set(main.get("options") or {})
        reads = "the variables above" if same else ", ".join(f"`{one}`" for one in options) or "no variable"
        text += f"- `{name}`: {_sentence(entry.get('short_description'))} Reads {reads}.\n"
        own = {
            one: option for one, option in (entry.get("options") or {}).items() if one not in main["options"]
        }
        if own:
            text += "\n" + _table(("Variable", "Type", "Default", "Description"), list(_rows(own))) + "\n"
    return text


def _rows(options: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, ...]]:
    for name, option in options.items():
        kind = str(option.get("type", "str"))
        if option.get("elements"):
            kind += f" of {option['elements']}"
        default = "*required*" if option.get("required") else _default(option.get("default"))
        about = _description(option)
        if option.get("choices"):
            about += " One of " + ", ".join(f"`{one}`" for one in option["choices"]) + "."
        if option.get("no_log"):
            about += " Never shown."
        yield f"`{parent}{name}`", kind, default, about
        yield from _rows(option.get("options") or {}, f"{parent}{name}.")


def _default(value: Any) -> str:
    """A default as one would write it in YAML."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f"`{value}`" if value else '`""`'
    return (
        "`"
        + yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
        + "`"
    )


def _description(option: Mapping[str, Any]) -> str:
    given = option.get("description") or ""
    return " ".join(_sentence(one) for one in ([given] if isinstance(given, str) else given))


def _sentence(text: str | None) -> str:
    text = " ".join(str(text or "").split())
    return text if not text or text.endswith((".", ":", "?")) else text + "."


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# -- errors.md -------------------------------------------------------------------------------------------------------


def errors(found: Found) -> str:
    """Every error by its code: what it means, what to type next, where it is raised."""
    text = HEADER.format(source="the ErrorKind declarations in module_utils/aerie and where they are raised")
    text += "# Errors\n\n"
    text += (
        "Every error that Aerie itself ends with says what failed, with a code in brackets, then the evidence, then "
        "`Next:` and what to type or change. Search for the code here. In the lines under *Next*, `{…}` stands for "
        "what the message fills in; where there are several, the message picks the one that fits.\n"
    )
    for kind in found.kinds:
        text += _error(kind)
    if found.uncoded:
        text += "\n## Messages without a code\n\n"
        text += "".join(f"- {_inline(message)} {_where([site])}\n" for site, message in found.uncoded)
    return text


def _error(kind: Kind) -> str:
    text = f"\n## {kind.code}\n\n{_sentence(kind.meaning)}\n\n"
    nexts = list(dict.fromkeys(one for site in kind.sites for one in site.next if one not in ("", "…")))
    text += "Next:\n\n" + "".join(f"- {_inline(one)}\n" for one in nexts) + "\n" if nexts else ""
    return text + f"Raised in {_where(kind.sites)}.\n"


def _where(sites: Sequence[Site]) -> str:
    """``file (function, function); file``."""
    places: dict[str, list[str]] = {}
    for site in sites:
        functions = places.setdefault(site.file, [])
        functions += [site.function] if site.function and site.function not in functions else []
    return "; ".join(
        f"`{file}`" + (f" ({', '.join(names)})" if names else "") for file, names in places.items()
    )


def _inline(text: str) -> str:
    """Text of a message as Markdown: one line, and no character of it taken for markup."""
    text = " ".join(text.split())
    return text.replace("<", "\\<").replace("*", "\\*")


# -- modules.md ------------------------------------------------------------------------------------------------------


def modules(root: Path) -> str:
    """One line per module."""
    rows = []
    for path in sorted(root.glob("library/*.py")):
        about = yaml.safe_load(_constant(path, "DOCUMENTATION"))
        plugin = f"plugins/action/{path.name}"
        side = f"`{plugin}`" if (root / plugin).is_file() else ""
        rows.append((f"`{about['module']}`", _sentence(about["short_description"]), side))
    text = HEADER.format(source="library/*.py")
    text += "# Modules\n\n"
    text += _table(("Module", "What it does", "Part on the controller"), rows)
    first = rows[0][0].strip("`")
    text += (
        "\nThe full documentation with options, examples and results, from the top of the checkout:\n\n"
        f"```\n.venv/bin/ansible-doc -t module {first}     # read it\n"
        f".venv/bin/ansible-doc -t module -s {first}  # a task to copy\n"
        ".venv/bin/ansible-doc -t module -l 2>/dev/null | grep -E '^(gpu|sglang)_'\n```\n"
    )
    return text


def _constant(path: Path, name: str) -> str:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return str(ast.literal_eval(node.value))
    raise ValueError(f"{path} has no {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the documents that are made from the source.")
    parser.add_argument("--check", action="store_true", help="only say which are out of date")
    check = parser.parse_args().check
    stale = []
    for name, text in documents(ROOT).items():
        path = ROOT / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{name} {'is out of date: make docs' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
