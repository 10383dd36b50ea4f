"""The typed cores of Aerie's modules: what is decided, and why. Only ``library/`` and ``plugins/`` know Ansible."""
