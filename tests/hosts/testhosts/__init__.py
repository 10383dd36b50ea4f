"""Disposable test hosts: real systemd and real ssh, in namespaces on one machine. See ../README.md."""
