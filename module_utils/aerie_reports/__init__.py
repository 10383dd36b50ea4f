"""Statistics, predictions and reports of benchmark, profile and tune.

Controller only: these files import numpy, scipy, matplotlib and jinja2 from the controller's environment
(requirements/controller.in). Action plugins use them; no module may, since a managed host has none of the four.
"""
