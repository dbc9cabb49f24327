"""What produces tokens: the protocol, two engines that ship, and loading one by name."""

from egress.engine.load import load_engine, prepare_engine
from egress.engine.ngram import NGramEngine
from egress.engine.protocol import Engine, EngineRequest, TokenBatch, verify_batch, verify_request
from egress.engine.replay import ReplayEngine

__all__ = [
    "Engine",
    "EngineRequest",
    "NGramEngine",
    "ReplayEngine",
    "TokenBatch",
    "load_engine",
    "prepare_engine",
    "verify_batch",
    "verify_request",
]
