"""What the operating system refuses is said like any other error, by every module that writes on the host."""

from __future__ import annotations

import errno
import importlib
from typing import Any

import pytest
from ansible.module_utils.aerie.instance.host_errors import host_error


@pytest.mark.parametrize(
    ("number", "next_words"),
    [(errno.ENOSPC, "df -h /a; df -i /a"), (errno.EROFS, "findmnt"), (errno.EACCES, "ls -ld")],
)
def test_what_it_says(number: int, next_words: str) -> None:
    error = host_error(OSError(number, "the words of the kernel", "/a"))
    assert error.message().startswith("/a: the words of the kernel [host-refused]")
    assert errno.errorcode[number] in error.message()
    assert next_words in error.message()


class Told(Exception):
    """Carries what a module ended with."""


class Module:
    """Stands for AnsibleModule."""

    check_mode = False
    _diff = False
    no_log_values: frozenset[str] = frozenset()

    def __init__(self, **_: Any) -> None:
        self.params: dict[str, Any] = {"state": "held", "state_dir": "/nowhere", "instance": "default"}

    def exit_json(self, **result: Any) -> None:
        raise AssertionError(result)

    def fail_json(self, **result: Any) -> None:
        raise Told(result)


# The function of each module that does the work.
WORK = {
    "sglang_accept_agreement": "run",
    "sglang_deployment": "run",
    "sglang_lease": "run",
    "sglang_release": "request_of",
    "sglang_takeover": "step",
    "sglang_traffic": "run",
}


@pytest.mark.parametrize("name", WORK)
def test_a_full_disk_is_an_error_that_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/sglang/x")

    monkeypatch.setattr(module, WORK[name], no_room)
    monkeypatch.setattr(module, "AnsibleModule", Module)
    with pytest.raises(Told) as told:
        module.main()
    assert told.value.args[0]["error"]["code"] == "host-refused"
