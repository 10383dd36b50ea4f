"""Release ranges: the same answers as the package ``packaging`` gives."""

from __future__ import annotations

import pytest
from ansible.module_utils.aerie.patch.release_range import check_range, contains
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

RELEASES = (
    "0.4.4.post2", "0.4.10", "0.4.10.post2", "0.5.1", "0.5.4", "0.5.4.post1", "0.5.4.post3", "0.5.5rc1", "0.5.5",
    "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.23", "0.5.9.dev3", "0.5.9.post1.dev2", "0.5.9+cu13",
    "0.5.10.post1+g1a2b3c4", "0.6.0", "0.6", "1.0.0rc2", "0.5.5.dev1+g1",
)  # fmt: skip
VERSIONS = st.builds(
    lambda release, pre, post, dev: f"{'.'.join(map(str, release))}{pre}{post}{dev}",
    st.lists(st.integers(0, 11), min_size=2, max_size=3),
    st.sampled_from(["", "", "a1", "b2", "rc1", "rc2"]),
    st.sampled_from(["", "", ".post1", ".post2"]),
    st.sampled_from(["", "", ".dev1"]),
)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("operator", ["==", "!=", "<", "<=", ">", ">="])
def test_every_operator_against_every_release(operator: str, release: str) -> None:
    for other in RELEASES:
        text = operator + other.partition("+")[0]
        assert contains(text, release) == SpecifierSet(text).contains(release, prereleases=True), (
            text,
            release,
        )


@given(
    st.lists(st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), VERSIONS), max_size=3), VERSIONS
)
def test_any_range_against_any_version(clauses: list[tuple[str, str]], version: str) -> None:
    text = ",".join(operator + other for operator, other in clauses)
    assert contains(text, version) == SpecifierSet(text).contains(version, prereleases=True)


@pytest.mark.parametrize(
    ("text", "release", "inside"),
    [
        ("", "0.5.9", True),
        (">=0.4.10.post2, <0.5.11", "0.5.10.post1", True),
        (">=0.4.10.post2,<0.5.11", "0.4.10.post1", False),
        (">0.5.10", "0.5.10.post1", False),
        ("==0.5.*", "0.5.9.post2", True),
        ("!=0.5.*", "0.6.0", True),
    ],
)
def test_ranges_as_the_catalogue_has_them(text: str, release: str, inside: bool) -> None:
    assert contains(text, release) == inside == SpecifierSet(text).contains(release, prereleases=True)


@pytest.mark.parametrize("text", ["0.5.9", ">=", "~=0.5", ">=0.5.x", ">=0.5.*", "==0.5.9,nonsense", "=>1"])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"version"):
        check_range(text)
