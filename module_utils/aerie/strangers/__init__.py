"""What others started on our port or GPUs."""
