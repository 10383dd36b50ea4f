"""Installed releases of SGLang, and what each does differently."""
