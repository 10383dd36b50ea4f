"""Compare a deployment's package with its wheel's RECORD, by nothing of Aerie's own.

    python3 pristine.py SITE

Prints how many files are the wheel's, then each that is changed, missing or not the wheel's (byte-code apart).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import sys
from pathlib import Path


def digest(path: Path, name: str) -> str:
    """As RECORD writes it; empty for a file that is not there."""
    if not path.is_file():
        return ""
    raw = hashlib.new(name, path.read_bytes()).digest()
    return f"{name}={base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"


def main(site: Path) -> int:
    (record,) = site.glob("sglang-*.dist-info/RECORD")
    with record.open(newline="") as file:
        listed = {
            path: wanted for path, wanted, _ in csv.reader(file) if path.startswith("sglang/") and wanted
        }
    changed = [
        path for path, wanted in listed.items() if digest(site / path, wanted.partition("=")[0]) != wanted
    ]
    files = [path for path in (site / "sglang").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    added = [path for path in (str(one.relative_to(site)) for one in files) if path not in listed]
    print(len(listed) - len(changed))
    print(*changed, *added, sep="\n")
    return 1 if changed or added else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
