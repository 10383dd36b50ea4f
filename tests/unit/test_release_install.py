"""Real installs of tiny wheels into real virtual environments, without any index.

The tools and one release are built once a session; tests that change something work on a copy of that prefix.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ansible.module_utils
import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.release import build as release_build
from ansible.module_utils.aerie.release import install as release_install
from ansible.module_utils.aerie.release import pip as release_pip
from ansible.module_utils.aerie.release import wheels as release_wheels
from ansible.module_utils.aerie.release.install import Request, is_installed, present, verified
from ansible.module_utils.aerie.release.layout import read_record
from release_wheels_made import lock_of, make_sglang, make_wheel

RELEASE = "0.5.23"
Say = Callable[[str], None]


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheelhouse")
    make_sglang(directory, RELEASE)
    make_wheel(directory, "dep-one", "1.0")
    make_wheel(directory, "dep-two", "2.0")
    make_wheel(directory, "nvidia-ml-py", "13.0")
    return directory


def wheel(directory: Path, name: str) -> Path:
    return next(directory.glob(f"{name}-*.whl"))


@pytest.fixture(scope="session")
def installed(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Request, dict, list[str]]:
    """A finished install, its result and what it said. Not to be changed."""
    prefix = tmp_path_factory.mktemp("prefix")
    request = Request(
        release=RELEASE,
        source="wheelhouse",
        lock_text=lock_of(wheel(wheelhouse, "sglang"), wheel(wheelhouse, "dep_one")),
        tools_lock_text=lock_of(wheel(wheelhouse, "nvidia_ml_py")),
        wheelhouse=str(wheelhouse),
        prefix=str(prefix / "opt"),
        state_dir=str(prefix / "state"),
        python=sys.executable,
        timeout=60,
    )
    said: list[str] = []
    return request, present(request, check=False, say=said.append), said


@pytest.fixture
def request_copy(installed: tuple[Request, dict, list[str]], tmp_path: Path) -> Request:
    """The same install under another prefix, free to be changed."""
    old = installed[0].prefix
    new = str(tmp_path / "opt")
    shutil.copytree(old, new, symlinks=True)
    for record in Path(new).glob("venvs/*/release.json"):
        record.write_text(record.read_text().replace(old, new))
    for link in [Path(new) / "tools", *(Path(new) / "releases").iterdir()]:
        target = str(link.readlink()).replace(old, new)
        link.unlink()
        link.symlink_to(target)
    return replace(installed[0], prefix=new, state_dir=str(tmp_path / "state"))


def refused(request: Request, *, check: bool = False) -> AerieError:
    with pytest.raises(AerieError) as caught:
        present(request, check=check, say=silent)
    assert caught.value.evidence is not None
    assert caught.value.next
    return caught.value


def release_path(request: Request) -> Path:
    return request.layout.link(request.release).resolve()


# The install itself


def test_the_result_says_where_everything_is(installed: tuple[Request, dict, list[str]]) -> None:
    request, result, _ = installed
    assert result["changed"]
    assert result["path"] == f"{request.prefix}/venvs/{RELEASE}-{result['lock_sha256'][:12]}-1"
    assert (Path(result["package_dir"]) / "srt" / "server_args.py").is_file()
    assert (Path(result["dist_info"]) / "RECORD").is_file()
    assert Path(request.prefix, "releases", RELEASE).readlink() == Path(result["path"])
    assert Path(request.prefix, "tools").readlink().name.startswith("tools-")
    ran = subprocess.run(
        [result["python"], "-c", "import sglang, dep_one; print(sglang.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == RELEASE
    assert subprocess.run([result["tools_python"], "-c", "import nvidia_ml_py"], check=False).returncode == 0


def test_it_is_byte_compiled_and_complete(installed: tuple[Request, dict, list[str]]) -> None:
    _, result, _ = installed
    record = json.loads((Path(result["path"]) / "release.json").read_text())
    assert record["complete"] is True
    assert record["source"] == "wheelhouse"
    source = Path(result["package_dir"]) / "launch.py"
    compiled = next((source.parent / "__pycache__").glob("launch.*.pyc"))
    assert int.from_bytes(compiled.read_bytes()[8:12], "little") == int(source.stat().st_mtime)
    assert not (Path(result["path"]) / "tmp").exists()


def test_progress_is_said(installed: tuple[Request, dict, list[str]]) -> None:
    said = installed[2]
    assert f"making the environment for {RELEASE}" in said
    assert "fetching 2/2 dep-one" in said
    assert any(text.startswith("installing 1/2 ") for text in said)


def test_a_second_run_does_nothing_and_is_fast(installed: tuple[Request, dict, list[str]]) -> None:
    request, first, _ = installed
    began = time.process_time()  # not the clock on the wall: the machine may be busy
    again = present(request, check=False, say=silent)
    assert time.process_time() - began < 0.3
    assert not again["changed"]
    assert again["actions"] == []
    assert {**again, "diff": 0, "changed": 0, "actions": 0} == {
        **first,
        "diff": 0,
        "changed": 0,
        "actions": 0,
    }
    assert verified(request)["path"] == first["path"]
    assert is_installed(request)


def test_check_mode_foresees_what_the_run_then_does(
    installed: tuple[Request, dict, list[str]], tmp_path: Path
) -> None:
    request = replace(installed[0], prefix=str(tmp_path / "virgin"))
    foreseen = present(request, check=True, say=silent)
    assert not (tmp_path / "virgin").exists()
    assert foreseen["changed"]
    assert foreseen["package_dir"] == "known after install"
    real = [action.replace(installed[0].prefix, request.prefix) for action in installed[1]["actions"]]
    assert foreseen["actions"] == real
    assert (
        foreseen["diff"]["after"].replace(request.prefix, installed[0].prefix)
        == installed[1]["diff"]["after"]
    )


# What is refused before anything is touched


def test_a_lock_without_hashes(installed: tuple[Request, dict, list[str]], tmp_path: Path) -> None:
    request = replace(installed[0], prefix=str(tmp_path / "x"), lock_text="sglang==0.5.23\n")
    assert refused(request).kind.code == "lock-invalid"
    assert not (tmp_path / "x").exists()


def test_a_lock_of_another_release(installed: tuple[Request, dict, list[str]]) -> None:
    error = refused(replace(installed[0], release="0.5.22"))
    assert error.kind.code == "lock-for-another-release"
    assert "0.5.23" in error.what
    assert "0.5.22" in error.what


def test_no_space(
    installed: tuple[Request, dict, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_wheels, "free_mib", lambda path: 100)
    error = refused(replace(installed[0], prefix=str(tmp_path / "x"), min_free_mib=300))
    assert error.kind.code == "disk-too-full"
    assert error.evidence == ["needed: 300 MiB", "free:   100 MiB", "short:  200 MiB"]
    assert not (tmp_path / "x").exists()


VENV = release_build.VENV_FAILED.error("venv ended with 1", evidence=["ensurepip failed"], next="x")
PIP = release_pip.failure(["ERROR: [Errno 28] No space left on device"], Path("/log"))
HASH = release_pip.HASH_MISMATCH.error("not the hash", next="x")


@pytest.mark.parametrize(
    ("error", "free", "code"),
    [
        (VENV, 3, "disk-ran-full"),  # what ensurepip said is swallowed by venv: the room alone tells
        (VENV, 5000, "venv-failed"),
        (PIP, 5000, "disk-ran-full"),  # pip has removed its temporary files already
        (HASH, 3, "package-hash-mismatch"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 0, "disk-ran-full"),
    ],
)
def test_the_disk_ran_full_on_the_way(
    installed: tuple[Request, dict, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    free: int,
    code: str,
) -> None:
    def fail(layout: object, job: release_build.Build, say: Say) -> None:
        job.path.mkdir(parents=True)
        raise error

    monkeypatch.setattr(release_build, "_build", fail)
    monkeypatch.setattr(release_build, "free_mib", lambda path: free)
    found = refused(replace(installed[0], prefix=str(tmp_path / "x")))
    assert found.kind.code == code
    if code == "disk-ran-full":
        assert "ran out of space while tools was installed" in found.what
        assert found.evidence[0] == f"free when it failed: {free} MiB"
        assert found.next.startswith(f"df -h {tmp_path}/x/venvs")
    assert list((tmp_path / "x").glob("venvs/*/*")) == []


def test_packages_that_the_wheelhouse_lacks_are_all_named(
    installed: tuple[Request, dict, list[str]], wheelhouse: Path, tmp_path: Path
) -> None:
    more = (
        make_wheel(tmp_path / "elsewhere", "dep-three", "3.0"),
        make_wheel(tmp_path / "elsewhere", "dep-four", "4.0"),
    )
    request = replace(
        installed[0], prefix=str(tmp_path / "x"), lock_text=installed[0].lock_text + lock_of(*more)
    )
    error = refused(request)
    assert error.kind.code == "wheels-missing"
    assert error.evidence == ["dep-three==3.0", "dep-four==4.0"]
    assert not (tmp_path / "x").exists()


def test_an_interpreter_that_is_not_there(installed: tuple[Request, dict, list[str]], tmp_path: Path) -> None:
    request = replace(installed[0], prefix=str(tmp_path / "x"), python="/nonexistent/python3")
    assert refused(request).kind.code == "python-unusable"


# Failures and kills on the way


def test_a_wheel_that_is_not_the_locked_one(request_copy: Request, wheelhouse: Path, tmp_path: Path) -> None:
    shutil.copytree(wheelhouse, tmp_path / "changed")
    make_sglang(tmp_path / "changed", RELEASE, note="# repacked\n")
    other = lock_of(wheel(wheelhouse, "sglang"), wheel(wheelhouse, "dep_two"))
    request = replace(request_copy, wheelhouse=str(tmp_path / "changed"), lock_text=other)
    before = release_path(request)
    error = refused(request)
    assert error.kind.code == "package-hash-mismatch"
    assert any("Expected sha256" in line for line in error.evidence)
    assert release_path(request) == before
    assert [path.name for path in request.layout.venvs.glob("0.5*")] == [before.name]
    assert "DO NOT MATCH" in request.layout.failed_log.read_text()


RUN = """
import json, sys
import ansible.module_utils
ansible.module_utils.__path__.append(sys.argv[1])
from ansible.module_utils.aerie.release.install import Request, present
present(Request(**json.loads(sys.argv[2])), check=False, say=lambda text: print(text, flush=True))
"""


@pytest.mark.parametrize("point", ["fetching", "byte-compiling"])
def test_a_run_killed_on_the_way_leaves_nothing_in_use_and_the_next_one_finishes(
    request_copy: Request, wheelhouse: Path, point: str
) -> None:
    request = replace(
        request_copy, lock_text=lock_of(wheel(wheelhouse, "sglang"), wheel(wheelhouse, "dep_two"))
    )
    before = release_path(request)
    module_utils = next(path for path in ansible.module_utils.__path__ if (Path(path) / "aerie").is_dir())
    arguments = json.dumps({**request.__dict__, "environment": {}})
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, module_utils, arguments], stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout or ():
        if line.startswith(point):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert release_path(request) == before
    half = [path for path in request.layout.venvs.glob(f"{RELEASE}-*") if read_record(path) is None]
    assert len(half) == 1
    foreseen = present(request, check=True, say=silent)
    assert foreseen["actions"][0].startswith(f"clear {half[0]}")
    result = present(request, check=False, say=silent)
    assert not half[0].exists()
    assert release_path(request) == Path(result["path"]) != before
    assert read_record(Path(result["path"])) is not None
    assert before.exists()  # an old one, kept


def test_a_run_that_builds_is_waited_for(request_copy: Request, wheelhouse: Path) -> None:
    said: list[str] = []
    request = replace(
        request_copy, lock_text=lock_of(wheel(wheelhouse, "sglang"), wheel(wheelhouse, "dep_two")), timeout=1
    )
    with release_install._build_lock(request, silent), pytest.raises(AerieError) as caught:
        present(request, check=False, say=said.append)
    assert caught.value.kind.code == "release-build-busy"
    assert str(os.getpid()) in caught.value.evidence[0]
    assert "waiting" in said[0]


# A lock that changed, an edited package, pruning


def test_another_lock_is_another_environment_and_the_way_back_is_a_link(
    request_copy: Request, wheelhouse: Path
) -> None:
    first = release_path(request_copy)
    request = replace(
        request_copy, lock_text=lock_of(wheel(wheelhouse, "sglang"), wheel(wheelhouse, "dep_two"))
    )
    second = present(request, check=False, say=silent)
    assert second["actions"][0].endswith("the lock changed")
    assert release_path(request) == Path(second["path"]) != first
    back = present(request_copy, check=False, say=silent)
    assert [action.split()[0] for action in back["actions"]] == ["link"]
    assert release_path(request_copy) == first
    spec = Path(request.state_dir) / "one" / "deployments" / "d" / "spec.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"release": {"release": RELEASE, "path": second["path"]}}))
    assert present(replace(request_copy, keep=0), check=False, say=silent)["actions"] == []
    spec.unlink()
    pruned = present(replace(request_copy, keep=0), check=False, say=silent)
    assert [action.split()[0] for action in pruned["actions"]] == ["prune"]
    assert not Path(second["path"]).exists()


def test_an_edited_package_is_named_and_built_again_only_when_told(request_copy: Request) -> None:
    package = next(release_path(request_copy).glob("lib/python*/site-packages/sglang"))
    (package / "launch.py").write_text("print('stripped')\n")
    (package / "probe.py").write_text("")
    before = release_path(request_copy)
    error = refused(request_copy)
    assert error.kind.code == "release-tampered"
    assert error.evidence == ["changed: sglang/launch.py", "extra: sglang/probe.py"]
    assert "sglang_install_repair=true" in error.next
    with pytest.raises(AerieError):
        verified(request_copy)
    result = present(replace(request_copy, repair=True), check=False, say=silent)
    assert result["path"] == str(before).removesuffix("-1") + "-2"
    assert not present(request_copy, check=False, say=silent)["changed"]


# Over a site-packages of the host, and what people already have


def test_base_site_packages_are_seen_after_the_release_s_own(
    request_copy: Request, wheelhouse: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    (base / "torch").mkdir(parents=True)
    (base / "torch" / "__init__.py").write_text("where = 'base'\n")
    (base / "dep_one").mkdir()
    (base / "dep_one" / "__init__.py").write_text("__version__ = 'base'\n")
    request = replace(request_copy, base_site_packages=str(base))
    result = present(request, check=False, say=silent)
    code = "import torch, dep_one; print(torch.where, dep_one.__version__)"
    ran = subprocess.run([result["python"], "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["base", "1.0"]
    missing = replace(request, base_site_packages=str(tmp_path / "no"))
    assert refused(missing).kind.code == "base-site-packages-missing"


def existing(python: Path, **changes: str) -> Request:
    return Request(**{"release": RELEASE, "source": "existing", "existing_python": str(python), **changes})


def files_of(directory: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in directory.rglob("*")}


def test_an_existing_venv_is_looked_at_and_never_written_to(request_copy: Request) -> None:
    venv = release_path(request_copy)
    before = files_of(venv)
    result = present(existing(venv / "bin" / "python", prefix="/nonexistent/opt"), check=False, say=silent)
    assert (result["source"], result["proof"], result["changed"]) == ("existing", "existing", False)
    assert Path(result["package_dir"]) == next(venv.glob("lib/python*/site-packages/sglang"))
    assert result["dist_info"].endswith(f"sglang-{RELEASE}.dist-info")
    assert files_of(venv) == before


def test_an_editable_install_has_its_package_elsewhere(request_copy: Request, tmp_path: Path) -> None:
    venv = release_path(request_copy)
    site = next(venv.glob("lib/python*/site-packages"))
    checkout = tmp_path / "sglang-checkout" / "python"
    checkout.mkdir(parents=True)
    (site / "sglang").rename(checkout / "sglang")
    (site / "__editable__.sglang.pth").write_text(f"{checkout}\n")
    result = present(existing(venv / "bin" / "python"), check=False, say=silent)
    assert result["package_dir"] == str(checkout / "sglang")
    assert result["dist_info"] == str(site / f"sglang-{RELEASE}.dist-info")


def test_somebodys_debug_print_in_an_existing_venv_is_refused(request_copy: Request) -> None:
    venv = release_path(request_copy)
    site = next(venv.glob("lib/python*/site-packages"))
    init = site / "sglang" / "__init__.py"
    init.write_text("print('here')\n" + init.read_text())
    before = files_of(venv)
    error = refused(existing(venv / "bin" / "python"))
    assert error.kind.code == "existing-release-edited"
    assert error.evidence == ["changed: sglang/__init__.py"]
    assert f"pip install --force-reinstall --no-deps sglang=={RELEASE}" in error.next
    assert files_of(venv) == before


def test_an_edited_checkout_is_refused_and_a_clean_one_is_not(request_copy: Request, tmp_path: Path) -> None:
    venv = release_path(request_copy)
    site = next(venv.glob("lib/python*/site-packages"))
    checkout = tmp_path / "checkout" / "python"
    checkout.mkdir(parents=True)
    (site / "sglang").rename(checkout / "sglang")
    (site / "__editable__.sglang.pth").write_text(f"{checkout}\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=checkout.parent, check=True)
    python = venv / "bin" / "python"
    assert present(existing(python), check=False, say=silent)["package_dir"] == str(checkout / "sglang")
    init = checkout / "sglang" / "__init__.py"
    init.write_text("print('here')\n" + init.read_text())
    error = refused(existing(python))
    assert error.kind.code == "existing-release-edited"
    assert error.evidence == ["changed: sglang/__init__.py"]
    assert f"git -C {checkout / 'sglang'} stash" in error.next


def test_an_existing_python_of_another_release_or_without_sglang(request_copy: Request) -> None:
    python = release_path(request_copy) / "bin" / "python"
    error = refused(existing(python, release="0.5.17"))
    assert error.kind.code == "existing-release-differs"
    assert "0.5.23" in error.next
    tools = request_copy.layout.link("tools") / "bin" / "python"
    assert refused(existing(tools)).kind.code == "python-unusable"


def test_without_ensurepip_the_interpreter_s_pip_installs(
    installed: tuple[Request, dict, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(installed[0].layout.link("tools") / "bin" / "python")  # has a pip
    monkeypatch.setattr(release_install, "pip_for", lambda _: python)
    request = replace(installed[0], prefix=str(tmp_path / "opt"), python=python)
    result = present(request, check=False, say=silent)
    assert not list(Path(result["path"]).glob("bin/pip*"))
    assert not (request.layout.link("tools") / "bin" / "pip").exists()
    assert subprocess.run([result["python"], "-c", "import sglang, dep_one"], check=False).returncode == 0
