"""Ports of an instance, and the rules that close them."""
