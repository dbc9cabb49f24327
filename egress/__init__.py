"""The token egress layer spoken over ringbuf."""
