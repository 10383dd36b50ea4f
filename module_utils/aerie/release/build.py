"""Make one virtual environment from a lock, aside: it counts only once its release.json is written."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import AerieError, ErrorKind
from . import pip as release_pip
from .layout import TOOLS, Layout, Record, write_record
from .lockfile import Lock
from .python import Installed, inspect
from .wheels import free_mib

BASE_MISSING = ErrorKind(
    "base-site-packages-missing", "sglang_install_base_site_packages is not a directory on the host."
)
VERSION_DIFFERS = ErrorKind(
    "release-version-differs", "The sglang that is installed is not the release that the inventory names."
)
VENV_FAILED = ErrorKind("venv-failed", "Making the virtual environment failed before anything was installed.")
RAN_FULL = ErrorKind(
    "disk-ran-full",
    "The file system ran out of space while a release was installed. What was half there is removed again.",
)

Say = Callable[[str], None]
_TICK_S = 0.5
# With less than this free after a failure, room is what was missing: a venv's own pip takes 12 MiB, and what
# ensurepip says when it cannot write them is swallowed by the venv module.
_NO_ROOM_MIB = 16


@dataclass(frozen=True)
class Build:
    """All that one environment is made from.

    pip_python: whose pip installs; empty: the environment gets a pip of its own. wheelhouse None: from the
    index.
    held: file descriptors (the build lock) that pip keeps open, so that the lock lasts as long as any pip
    does.
    """

    name: str
    path: Path
    lock: Lock
    lock_text: str
    python: str
    pip_python: str = ""
    wheelhouse: Path | None = None
    find_links: tuple[Path, ...] = ()
    base_site_packages: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    held: tuple[int, ...] = ()


def build(layout: Layout, job: Build, say: Say) -> Record:
    """Make the environment and its record. On an error the directory is removed and pip's output kept."""
    if job.base_site_packages and not Path(job.base_site_packages).is_dir():
        raise BASE_MISSING.error(
            f"{job.base_site_packages} is not a directory",
            next=f"{job.python} -c 'import torch; print(torch.__file__)' shows where the host has torch",
        )
    umask = os.umask(0o022)
    try:
        return _build(layout, job, say)
    except Exception as error:
        full = _ran_full(job, error)
        shutil.rmtree(job.path, ignore_errors=True)
        if full is not None:
            raise full from error
        raise
    finally:
        os.umask(umask)


def _ran_full(job: Build, error: Exception) -> AerieError | None:
    """What to raise instead when the disk ran full; its room is looked at before what was half made is removed."""
    if isinstance(error, AerieError):
        evidence = [error.what, *error.evidence]
        suspect = error.kind in (VENV_FAILED, release_pip.INSTALL_FAILED)
    else:
        evidence, suspect = [str(error)], isinstance(error, OSError) and error.errno == errno.ENOSPC
    told = suspect and any(os.strerror(errno.ENOSPC) in line for line in evidence)
    free = free_mib(job.path)
    if not told and not (suspect and free < _NO_ROOM_MIB):
        return None
    return RAN_FULL.error(
        f"the file system of {job.path.parent} ran out of space while {job.name} was installed",
        evidence=[f"free when it failed: {free} MiB", *evidence],
        next=f"df -h {job.path.parent}; make room there and run again",
    )


def _build(layout: Layout, job: Build, say: Say) -> Record:
    temporary = job.path / "tmp"
    temporary.mkdir(parents=True)
    say(f"making the environment for {job.name}")
    _make_venv(job)
    python = str(job.path / "bin" / "python")
    fresh = inspect(python)
    site_packages = job.path / "lib" / f"python{fresh.python_version}" / "site-packages"
    lock_file = job.path / "lock.txt"
    lock_file.write_text(job.lock_text, encoding="utf-8")
    words = release_pip.command(
        job.pip_python or python,
        python,
        lock_file,
        wheelhouse=job.wheelhouse,
        find_links=job.find_links,
    )
    environment = release_pip.environment(job.environment, temporary, isolated=job.wheelhouse is not None)
    _install(layout, job, words, environment, site_packages, say)
    if job.base_site_packages:
        line = f"import site; site.addsitedir({job.base_site_packages!r})\n"
        (site_packages / "aerie-base-site-packages.pth").write_text(line, encoding="utf-8")
    say(f"byte-compiling {job.name}")
    _compile(python, site_packages, job.held)
    shutil.rmtree(temporary)
    found = inspect(python)
    _check_version(job, found)
    record = _record(job, python, found)
    write_record(record)
    return record


def _make_venv(job: Build) -> None:
    words = [job.python, "-I", "-m", "venv", *(["--without-pip"] if job.pip_python else []), str(job.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, pass_fds=job.held, cwd="/")
    if done.returncode != 0:
        raise VENV_FAILED.error(
            f"{' '.join(words)} ended with exit status {done.returncode}",
            evidence=(done.stdout + done.stderr).strip().splitlines()[-6:],
            next=f"apt-get install python3-venv; {job.python} -m venv /tmp/try",
        )


def _install(
    layout: Layout,
    job: Build,
    words: Sequence[str],
    environment: Mapping[str, str],
    site_packages: Path,
    say: Say,
) -> None:
    """Run pip, saying where it stands; raises what its output means when it fails."""
    progress = release_pip.Progress(len(job.lock.entries))
    output: list[str] = []
    lines: queue.Queue[str | None] = queue.Queue()
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(environment),
        cwd=job.path,
        pass_fds=job.held,
    )
    reader = threading.Thread(target=_pump, args=(process, lines), daemon=True)
    reader.start()
    ended = False
    while not ended:
        text: str | None
        try:
            line = lines.get(timeout=_TICK_S)
            ended = line is None
            output.append(line or "")
            text = progress.feed(line or "")
        except queue.Empty:
            text = progress.installed(release_pip.complete(site_packages)) if progress.order else None
        if text:
            say(text)
    if process.wait() != 0:
        layout.failed_log.write_text(release_pip.redacted("".join(output)), encoding="utf-8")
        raise release_pip.failure(output, layout.failed_log)


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def _compile(python: str, site_packages: Path, held: tuple[int, ...]) -> None:
    """Byte-code for everything, on all cores.

    Its exit status says nothing: wheels carry templates that never were valid Python, and a file without
    byte-code only starts slower.
    """
    subprocess.run(
        [python, "-I", "-m", "compileall", "-q", "-j", "0", str(site_packages)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        pass_fds=held,
        cwd="/",
    )


def _check_version(job: Build, found: Installed) -> None:
    if job.name == TOOLS or found.version == job.name:
        return
    raise VERSION_DIFFERS.error(
        f"release {job.name} was asked for and the environment has sglang {found.version or 'not at all'}",
        evidence=[f"package: {found.package_dir or 'none'}", f"dist-info: {found.dist_info or 'none'}"],
        next="make sglang_install_release and sglang_install_lock agree",
    )


def _record(job: Build, python: str, found: Installed) -> Record:
    tools = job.name == TOOLS
    return Record(
        release=job.name,
        path=str(job.path),
        python=python,
        python_real=os.path.realpath(job.python),
        python_version=found.python_version,
        package_dir="" if tools else found.package_dir,
        dist_info="" if tools else found.dist_info,
        lock_sha256=job.lock.sha256,
        source="index" if job.wheelhouse is None else "wheelhouse",
        base_site_packages=job.base_site_packages,
        completed_ns=time.time_ns(),
    )
