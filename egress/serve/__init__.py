"""Processes: the only floor with clocks, sockets and signals."""
