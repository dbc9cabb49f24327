"""What every test runs under."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_report_header(config: pytest.Config) -> str:
    import ringbuf

    return f"ringbuf body: {getattr(ringbuf, '__impl__', 'none')}, {os.cpu_count()} cores"
