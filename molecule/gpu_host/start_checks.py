"""Print ExecStartPre= lines for required variables: start_checks.py JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "module_utils"))

from aerie.gpu_host.env import start_checks

if __name__ == "__main__":
    print(start_checks(json.loads(sys.argv[1])))
