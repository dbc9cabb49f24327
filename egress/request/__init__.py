"""What a client may ask: sampling parameters and the regexes an answer may stop at."""

from __future__ import annotations

from egress.request.admission import RegexPattern, admission_cache_info
from egress.request.sampling import SamplingParams

__all__ = ["RegexPattern", "SamplingParams", "admission_cache_info"]
