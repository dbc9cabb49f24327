"""What every test runs under."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import ringbuf

sys.path.insert(0, str(Path(__file__).resolve().parent))

# No test asserts a maximum time, and a deadline is one. HYPOTHESIS_PROFILE=long is for a night.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("long", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_report_header(config: pytest.Config) -> str:
    return f"ringbuf body: {ringbuf.__impl__}, {os.cpu_count()} cores"
