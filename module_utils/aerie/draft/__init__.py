"""Whether draft, target, release and settings fit together."""
