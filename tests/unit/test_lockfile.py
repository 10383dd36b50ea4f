"""Hash-locked lists: what is read, what is refused, what their name depends on."""

from __future__ import annotations

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.release.lockfile import normalised, parse

A = "a" * 64
B = "b" * 64
GOOD = f"""\
# made by a resolver
Torch_Audio==2.11.0+cu130 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via sglang
sglang[all]==0.5.23 ; python_version < "3.13" --hash=sha256:{A}
"""


def test_entries_in_the_order_of_the_file() -> None:
    lock = parse(GOOD)
    assert [(entry.name, entry.version, entry.sha256) for entry in lock.entries] == [
        ("torch-audio", "2.11.0+cu130", (A, B)),
        ("sglang", "0.5.23", (A,)),
    ]
    assert lock.entries[1].marker == 'python_version < "3.13"'
    assert lock.version_of("SGLang") == "0.5.23"
    assert lock.version_of("vllm") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sglang==0.5.23\n", "line 1: no sha256 hash: sglang==0.5.23"),
        (f"sglang>=0.5 --hash=sha256:{A}\n", "line 1: not one version"),
        (f"\n\nsglang --hash=sha256:{A}\n", "line 3: not one version"),
        (f"sglang==0.5.* --hash=sha256:{A}\n", "line 1: not one version"),
        ("sglang==0.5.23 --hash=sha256:abcd\n", "line 1: no sha256 hash"),
        (f"sglang==0.5.23 --hash=md5:{A}\n", "line 1: no sha256 hash"),
        (
            f"--index-url https://x.invalid/simple\na==1 --hash=sha256:{A}\n",
            "line 1: an option, not a package",
        ),
        (f"a @ https://x.invalid/a.whl --hash=sha256:{A}\n", "line 1: not one version"),
        ("# nothing\n", "it names no package"),
    ],
)
def test_what_locks_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(AerieError) as caught:
        parse(text, title="my-lock.txt")
    assert caught.value.kind.code == "lock-invalid"
    assert said in caught.value.evidence[0]
    assert "my-lock.txt" in caught.value.what


def test_the_name_depends_on_what_is_installed_only() -> None:
    lines = [f"a==1 --hash=sha256:{A} --hash=sha256:{B}", f"b==2 --hash=sha256:{B}"]
    same = [
        "\n".join(lines),
        "\n".join(reversed(lines)),
        f"# a comment\nA==1 \\\n  --hash=sha256:{B} \\\n  --hash=sha256:{A.upper()}\n\nb==2 --hash=sha256:{B}  # a\n",
    ]
    assert len({parse(text).sha256 for text in same}) == 1
    other = [lines[0], "\n".join(lines).replace("b==2", "b==3"), "\n".join(lines).replace(B, A)]
    assert len({parse(text).sha256 for text in [*other, same[0]]}) == 4


def test_names_compare_as_on_an_index() -> None:
    assert normalised("Foo__Bar.baz-Q") == "foo-bar-baz-q"
