"""A lock-free single-producer ring in POSIX shared memory."""
