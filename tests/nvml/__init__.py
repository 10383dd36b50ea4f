"""The double of the NVIDIA driver library for tests."""
