"""Whether GPUs hold nothing, and who holds them."""
