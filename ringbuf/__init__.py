"""A single-producer ring in POSIX shared memory: tagged frames, many consumers, no copies, no locks.

with ringbuf.create("demo", capacity=1 << 20) as producer:
    producer.write(1, b"hello")

with ringbuf.attach("demo") as consumer:
    for frame in consumer:
        print(frame.tag, bytes(frame.payload))
"""

from ringbuf._ops import Frame
from ringbuf._ops import impl as __impl__
from ringbuf.consumer import Consumer
from ringbuf.counters import ConsumerInfo, ProducerInfo, RingInfo
from ringbuf.errors import (
    FrameInUse,
    FrameTooLarge,
    NoFreeSlot,
    PeerDead,
    ProducerAlive,
    RingClosed,
    RingCorrupt,
    RingError,
    RingExists,
    RingForbidden,
    RingFull,
    RingNotFound,
    RingVersion,
    SharedMemoryFull,
    UseAfterFork,
)
from ringbuf.monitor import inspect, reap, rings, unlink
from ringbuf.opening import attach, create, resume
from ringbuf.producer import Producer

__all__ = [
    "Consumer",
    "ConsumerInfo",
    "Frame",
    "FrameInUse",
    "FrameTooLarge",
    "NoFreeSlot",
    "PeerDead",
    "Producer",
    "ProducerAlive",
    "ProducerInfo",
    "RingClosed",
    "RingCorrupt",
    "RingError",
    "RingExists",
    "RingForbidden",
    "RingFull",
    "RingInfo",
    "RingNotFound",
    "RingVersion",
    "SharedMemoryFull",
    "UseAfterFork",
    "__impl__",
    "attach",
    "create",
    "inspect",
    "reap",
    "resume",
    "rings",
    "unlink",
]
