"""Whether a host is fit: driver, GPUs, limits, environment."""
