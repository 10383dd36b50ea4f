#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The controller's part of benchmark and tune. The work is done by the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_tune
short_description: Choose settings to measure, keep results, write the report
description:
  - The controller's part of C(benchmark.yml), C(profile.yml) and C(tune.yml). It asks no host. What was asked for and
    what was measured is kept under C(reports/), a line for each finished setting, so that a run that was killed goes
    on where it was.
  - The action plugin of the same name does the work; this file is its documentation. It needs numpy, scipy,
    matplotlib and jinja2 on the controller.
options:
  state:
    description:
      - V(begun) makes the directory of a sweep, or finds the unfinished one of the same request.
      - V(next) names the setting to start next, or says that enough is known.
      - V(again) gives the first setting, to be measured once more.
      - V(recorded) keeps a result or a failure.
      - V(reported) writes C(report.html), C(results.json) and C(best.yml).
    type: str
    required: true
    choices: [begun, next, again, recorded, reported]
  request:
    description: What is asked for, with O(state=begun).
    type: dict
  directory:
    description: The sweep's directory, with the other states.
    type: path
  reports_dir:
    description: Directory of all reports. When left out, C(reports/) in the project.
    type: path
  resume:
    description: Go on with an unfinished sweep of the same request.
    type: bool
    default: true
  setting:
    description: The setting that was started, with O(state=recorded).
    type: dict
  since:
    description: When it was chosen, in seconds since 1970, with O(state=recorded).
    type: float
  digest:
    description: Digest of its deployment, with O(state=recorded).
    type: str
  result:
    description: What C(sglang_benchmark) returned, with O(state=recorded).
    type: dict
  ran:
    description: What C(sglang_deployment_info) said of the instance after the measurement, with O(state=recorded).
      Figures of a deployment that is not there any more are a failure; which all-reduce ran is kept.
    type: dict
  failure:
    description: Why there is no result, with O(state=recorded).
    type: dict
  final:
    description: Whether the sweep is finished. The next run then begins a new one.
    type: bool
    default: true
attributes:
  action:
    support: full
    description: Runs on the controller.
  check_mode:
    support: full
    description: Nothing is kept, and no setting is named.
  diff_mode:
    support: none
    description: It changes no host.
  idempotent:
    support: none
    description: Each record is kept.
  platform:
    support: full
    description: Any controller.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Choose the next setting
  sglang_tune:
    state: next
    directory: "{{ sweep.directory }}"
  register: following
"""

RETURN = r"""
directory:
  description: The sweep's directory.
  returned: with O(state=begun)
  type: str
resumed:
  description: Whether it goes on with an unfinished sweep.
  returned: with O(state=begun)
  type: bool
known:
  description: Names of the settings that are known already.
  returned: with O(state=begun)
  type: list
  elements: str
done:
  description: Whether nothing is left to do.
  returned: with O(state=next) and O(state=again)
  type: bool
setting:
  description: What to start.
  returned: with O(state=next) and O(state=again)
  type: dict
at:
  description: When it was chosen, for O(since).
  returned: with O(state=next) and O(state=again)
  type: float
text:
  description: Why.
  returned: with O(state=next)
  type: str
record:
  description: What was kept, without the requests.
  returned: with O(state=recorded)
  type: dict
report:
  description: Path of the report.
  returned: with O(state=reported)
  type: str
verdict:
  description: The result in sentences.
  returned: with O(state=reported)
  type: list
  elements: str
inventory:
  description: Lines for the inventory.
  returned: with O(state=reported)
  type: str
recommended:
  description: The recommended setting.
  returned: with O(state=reported)
  type: dict
floor:
  description: A floor of the accept length that goes with the recommended setting, 0 for none.
  returned: with O(state=reported)
  type: float
speedups:
  description: Speed against no speculation by digest and batch size.
  returned: with O(state=reported)
  type: dict
"""
