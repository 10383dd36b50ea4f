"""The probes' lines and their directory: what is taken, what is refused, how a prompt's forward is found."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.hidden.events import Lines, parse, served
from ansible.module_utils.aerie.hidden.probe import ARM, EVENTS, Probes, silent


def line(kind: str, rows: int = 12, arm: str = "a", **more: Any) -> bytes:
    event = {
        "v": 1,
        "seq": 1,
        "arm": arm,
        "event": kind,
        "shape": [rows, 8],
        "dtype": "bfloat16",
        "norm": 3.0,
    }
    return (
        json.dumps({**event, "first": [1.0] * 5, "last": [2.0] * 5, "graph_capture": False, **more}).encode()
        + b"\n"
    )


FORWARD = [
    line("layers_to_capture", rows=0, values=[2, 4, 6], shape=[]),
    line("draft_input", rows=1),  # a health check in between
    line("embedding", tensor="e.safetensors"),
    *(line("layer_output", layer=n, tensor=f"l{n}.safetensors") for n in (1, 0, 2)),
    *(line("aux_capture", index=i, layer=n) for i, n in ((1, 4), (0, 2), (2, 6))),
    line("layer_output", layer=3, partial=True),
    line("final_norm"),
    line("logits_concat", capture="last", rows=12),
    line("logits_concat", capture="full", tensor="c.safetensors", shape=[12, 24]),
    line("draft_input", tensor="d.safetensors", shape=[12, 24]),
    line("draft_fc", tensor="f.safetensors"),
    line("draft_input", tensor="later.safetensors", shape=[12, 24]),
]


def test_the_prompts_forward_is_found_among_others() -> None:
    lines = Lines("a")
    data = b"".join([*FORWARD, line("draft_input", arm="other"), b"half a li"])
    for place in range(0, len(data), 100):  # as it grows
        lines.feed(data[place : place + 100])
    found = served(lines.events, 12)
    assert found.states is not None
    assert (found.states.tensor, found.states.width) == ("d.safetensors", 24)
    assert [one.layer for one in found.aux] == [2, 4, 6]
    assert [name for name, _, _ in found.candidates] == [
        "the embedding",
        "the output of layer 0",
        "the output of layer 1",
        "the output of layer 2",
        "the final norm",
    ]
    assert [layer for _, layer, _ in found.candidates] == [-1, 0, 1, 2, None]
    assert found.asked == (2, 4, 6)
    assert found.joined is not None
    assert found.joined.capture == "full"
    assert lines.other == 1
    assert served(lines.events, 13).states is None


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"[]", b"1", b'{"event": 3}', b"\xff\xfe", b'{"v": 1}'],
)
def test_lines_without_the_form_are_left_out(bad: bytes) -> None:
    assert parse(bad) is None


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".x.safetensors", "x", 3]
)
def test_a_tensor_is_a_plain_file_name(name: Any) -> None:
    found = parse(line("draft_input", tensor=name))
    assert found is not None
    assert found[1].tensor == ""


def test_values_of_the_wrong_type_are_no_values() -> None:
    found = parse(line("aux_capture", index="1", layer=True, norm="x", first=[1, "2", 3], shape="8"))
    assert found is not None
    event = found[1]
    assert (event.index, event.layer, event.norm, event.first, event.rows) == (
        None,
        None,
        None,
        (1.0, 3.0),
        0,
    )


def test_lines_written_while_a_graph_is_captured_are_no_prompt() -> None:
    lines = Lines("a")
    lines.feed(line("draft_input", graph_capture=True))
    assert served(lines.events, 12).states is None


def probes(tmp_path: Path) -> Probes:
    tmp_path.chmod(0o700)
    return Probes(str(tmp_path), None)


def test_arming_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    precious = tmp_path.parent / f"{tmp_path.name}-precious"
    precious.write_text("x")
    (tmp_path / ARM).symlink_to(precious)
    with probes(tmp_path) as one:
        name = one.arm(forwards=4, tensors=True, layers=False)
    assert precious.read_text() == "x"
    assert not (tmp_path / ARM).is_symlink()
    wish = json.loads((tmp_path / ARM).read_text())
    assert wish == {"id": name, "forwards": 4, "tensors": True, "layers": False}
    assert [p.name for p in tmp_path.iterdir()] == [ARM]


@pytest.mark.parametrize("place", ["link", "fifo", "directory"])
def test_events_that_are_no_plain_file_are_refused(tmp_path: Path, place: str) -> None:
    if place == "link":
        (tmp_path / EVENTS).symlink_to("/etc/passwd")
    elif place == "fifo":
        os.mkfifo(tmp_path / EVENTS)
    else:
        (tmp_path / EVENTS).mkdir()
    with probes(tmp_path) as one, pytest.raises(AerieError) as refused:
        one.read(0)
    assert refused.value.kind.code == "hidden-probes-unusable"


@pytest.mark.parametrize("case", ["missing", "link", "open", "file"])
def test_directories_that_are_refused(tmp_path: Path, case: str) -> None:
    place = tmp_path / "probes"
    if case == "link":
        place.symlink_to(tmp_path)
    elif case == "open":
        place.mkdir()
        place.chmod(0o777)
    elif case == "file":
        place.write_text("x")
    with pytest.raises(AerieError) as refused:
        Probes(str(place), None)
    assert refused.value.kind.code == "hidden-probes-unusable"
    assert "debug.yml" in refused.value.next


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "probes"
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    with pytest.raises(AerieError) as refused:
        Probes(str(place), None)
    assert "user id 65534" in refused.value.evidence[0]


def test_waiting_takes_only_new_lines_and_ends_when_complete(tmp_path: Path) -> None:
    events = tmp_path / EVENTS
    events.write_bytes(line("draft_input", tensor="old.safetensors"))
    with probes(tmp_path) as one:
        offset = one.size()

        def write() -> None:
            for part in FORWARD:
                with events.open("ab") as file:
                    file.write(part)
                time.sleep(0.005)

        writer = threading.Thread(target=write)
        writer.start()
        found = one.wait(Lines("a"), offset, 12, lambda seen: seen.draft_fc is not None, 10)
        writer.join()
    assert found.draft is not None
    assert found.draft.tensor == "d.safetensors"


def test_waiting_is_bounded(tmp_path: Path) -> None:
    lines = Lines("a")
    with probes(tmp_path) as one:
        began = time.monotonic()
        found = one.wait(lines, 0, 12, lambda seen: False, 0.3)
    assert time.monotonic() - began < 5
    assert found.states is None
    assert "debug mode" in silent("/d", lines, 12).next
    lines.feed(line("draft_input", rows=8))
    assert "chunked" in silent("/d", lines, 12).message()


def test_tensors_are_removed_and_links_not_followed(tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.safetensors"
    outside.write_text("x")
    (tmp_path / "a.safetensors").symlink_to(outside)
    (tmp_path / "b.safetensors.part").write_text("x")
    (tmp_path / EVENTS).write_text("x")
    with probes(tmp_path) as one:
        one.remove_tensors()
    assert outside.exists()
    assert [path.name for path in tmp_path.iterdir()] == [EVENTS]
