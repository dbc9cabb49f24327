"""Where a request's events go and come from: items, the local channel, folding into an answer."""

from __future__ import annotations

from egress.stream import item
from egress.stream.channel import ChannelSink, ChannelSource, channel
from egress.stream.fold import Fold, merge_events
from egress.stream.item import EgressItem
from egress.stream.sink import EgressSink, EgressSource

__all__ = [
    "ChannelSink",
    "ChannelSource",
    "EgressItem",
    "EgressSink",
    "EgressSource",
    "Fold",
    "channel",
    "item",
    "merge_events",
]
