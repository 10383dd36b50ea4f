"""Look for a key, given on standard input, everywhere on this host where it must not be. Prints one JSON object.

found: where it is, but for the one configuration file of each deployment, which root and the service's group alone can
read. looked_at: how much was searched, so that a search of nothing cannot pass. Standard library only.
"""

import grp
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

ROOTS = ("/var/lib/sglang", "/etc", "/var/cache/sglang", "/var/log", "/run/systemd", "/tmp", "/root", "/srv")
KEPT_IN = "config.yaml"
LARGEST = 64 << 20  # weights and byte-code caches are larger than any text that could hold a key


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def private(path):
    """Whether only root and the service's group can read the file."""
    seen = path.stat()
    owner, group = pwd.getpwuid(seen.st_uid).pw_name, grp.getgrgid(seen.st_gid).gr_name
    return (owner, group, seen.st_mode & 0o777) == ("root", "sglang", 0o640)


def in_processes(key):
    found, count = [], 0
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                content = (process / name).read_bytes()
            except OSError:
                continue
            count += 1
            if key in content:
                found.append(f"{process / name}: {content[:60]!r}")
    return found, count


def in_files(key):
    found, kept, count = [], [], 0
    for root in ROOTS:
        for directory, _, names in os.walk(root):
            for path in (Path(directory) / name for name in names):
                try:
                    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
                        continue
                    holds = key in path.read_bytes()
                except OSError:
                    continue
                count += 1
                if holds:
                    (kept if path.name == KEPT_IN and private(path) else found).append(str(path))
    return found, kept, count


def main():
    key = sys.stdin.read().strip().encode()
    units = [line.split()[0] for line in output(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "sglang-*.service"
    ).decode().splitlines()]  # fmt: skip
    journal = output("journalctl", "--no-pager", "-o", "export")
    shown = b"".join(output("systemctl", word, unit) for unit in units for word in ("cat", "show"))
    processes, process_count = in_processes(key)
    files, kept, file_count = in_files(key)
    found = [*processes, *files]
    found += ["the journal"] if key in journal else []
    found += ["systemctl cat or show"] if key in shown else []
    print(json.dumps({
        "key_length": len(key),
        "found": found,
        "kept_in": sorted(kept),
        "looked_at": {
            "units": units, "journal_bytes": len(journal), "processes": process_count, "files": file_count,
            "journal_names_units": all(unit.encode() in journal for unit in units),
        },
    }))  # fmt: skip


main()
