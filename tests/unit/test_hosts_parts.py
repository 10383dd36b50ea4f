"""Test hosts: overlay options, binds, control groups, images, ssh files and tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))

from testhosts import check, cli, image, snapshot, ssh
from testhosts.boot import overlay_options, parse_bind
from testhosts.cgroups import V1_CONTROLLERS, Hierarchies, modes, parse_mounts
from testhosts.layout import Layout
from testhosts.record import Host


def options(layers: list[str]) -> dict[str, str]:
    parts = (part.partition("=") for part in overlay_options(layers, "hosts/a").split(","))
    return {name: value for name, _, value in parts}


def test_overlay_stacks_topmost_first() -> None:
    found = options(["snapshots/b/layer", "snapshots/a/layer", "images/x/root"])
    assert found["lowerdir"] == "snapshots/b/layer:snapshots/a/layer:images/x/root"
    assert found["upperdir"] == "hosts/a/upper"
    assert found["workdir"] == "hosts/a/work"
    assert found["redirect_dir"] == "on"
    assert found["metacopy"] == "off"


def test_overlay_options_fit_a_page_with_many_layers() -> None:
    layers = [f"snapshots/{'x' * 32}/layer"] * 50
    assert len(overlay_options(layers, f"hosts/{'x' * 32}")) < 4096


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("/a:/b", ("/a", "/b", False)),
        ("/a:/b:ro", ("/a", "/b", True)),
        ("/a:/b:rw", ("/a", "/b", False)),
        ("a:/b", ("a", "/b", False)),
    ],
)
def test_parse_bind(text: str, parsed: tuple[str, str, bool]) -> None:
    assert parse_bind(text) == parsed


@pytest.mark.parametrize("text", ["", "/a", "/a:", ":/b", "/a:b", "/a:/b:x", "/a:/b:ro:ro"])
def test_parse_bind_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="SRC:DST"):
        parse_bind(text)


def mount_line(point: str, kind: str, option: str) -> str:
    return f"30 20 0:26 / {point} rw,relatime shared:4 - {kind} source rw,{option}"


def test_parse_mounts_cgroup2_only() -> None:
    found = parse_mounts(mount_line("/sys/fs/cgroup", "cgroup2", "nsdelegate"))
    assert found == Hierarchies(Path("/sys/fs/cgroup"))
    assert modes(found) == ["unified"]


def test_parse_mounts_hybrid() -> None:
    lines = [mount_line(f"/c/{name}", "cgroup", name) for name in V1_CONTROLLERS]
    lines += [mount_line("/c/systemd", "cgroup", "name=systemd"), mount_line("/c/unified", "cgroup2", "x")]
    found = parse_mounts("\n".join(lines))
    assert found is not None
    assert found.unified == Path("/c/unified")
    assert found.old["memory"] == Path("/c/memory")
    assert found.old["systemd"] == Path("/c/systemd")
    assert modes(found) == ["unified", "hybrid"]


def test_parse_mounts_without_cgroup2() -> None:
    assert parse_mounts(mount_line("/c/memory", "cgroup", "memory")) is None


def test_image_key_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.image_key("bookworm")
    assert before.startswith("bookworm-")
    assert image.image_key("trixie").partition("-")[2] != before.partition("-")[2]
    monkeypatch.setattr(image, "PACKAGES", (*image.PACKAGES, "tree"))
    assert image.image_key("bookworm") != before


DEBIAN = 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_CODENAME=bookworm\n'


def test_mirror_from_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_HOSTS_MIRROR", "http://mirror.example/debian")
    assert image.sources("bookworm", DEBIAN) == ["http://mirror.example/debian"]


@pytest.mark.parametrize(
    ("suite", "release"), [("trixie", DEBIAN), ("bookworm", "ID=ubuntu\nVERSION_CODENAME=noble\n")]
)
def test_other_releases_leave_the_mirror_to_mmdebstrap(
    suite: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AERIE_HOSTS_MIRROR", raising=False)
    assert image.sources(suite, release) == []


def test_ssh_files_name_each_host_and_check_its_key() -> None:
    layout = Layout(Path("/srv/a checkout"))
    host = Host("gpu1", 11, "10.213.0.11", "10.213.0.1", "bookworm", [], host_key="ssh-ed25519 AAAA")
    new = Host("gpu2", 12, "10.213.0.12", "10.213.0.1", "bookworm", [])
    assert ssh.known_hosts_text([host, new]) == "10.213.0.11,gpu1 ssh-ed25519 AAAA\n"
    text = ssh.config_text(layout, [host])
    assert "Host gpu1 gpu1.*\n  HostName 10.213.0.11\n" in text
    assert "StrictHostKeyChecking yes" in text
    assert f'UserKnownHostsFile "{layout.known_hosts}"' in text


def test_scrub_removes_what_makes_a_machine_itself(tmp_path: Path) -> None:
    gone = ["etc/ssh/ssh_host_ed25519_key", "root/.ssh/authorized_keys", "var/log/journal/0af/system.journal"]
    kept = ["opt/sglang/file", "etc/ssh/sshd_config", "var/log/dpkg.log"]
    for name in [*gone, *kept, "etc/machine-id"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    snapshot.scrub(tmp_path)
    assert [name for name in gone if (tmp_path / name).exists()] == []
    assert [name for name in kept if not (tmp_path / name).exists()] == []
    assert (tmp_path / "etc/machine-id").read_text() == ""


def test_missing_commands_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        check.shutil, "which", lambda name: None if name in ("ip", "mmdebstrap") else f"/bin/{name}"
    )
    missing = check.missing_packages()
    assert "iproute2" in missing
    assert "mmdebstrap" in missing
    assert "openssh-client" not in missing
    assert set(missing) <= set(check.packages())


def test_table() -> None:
    assert cli.table([["NAME", "IP"], ["a", None], ["longer", "10"]]) == "NAME    IP\na       -\nlonger  10"
