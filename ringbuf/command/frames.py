"""tail and dump: the frames themselves, read from outside.

Both copy frames without taking a slot, so they neither hold the producer up nor show in its counters. A
frame the producer may have overwritten meanwhile is not shown; `tail` counts it as missed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringbuf.command.show import amount, print_json
from ringbuf.counters import read_info
from ringbuf.errors import RingCorrupt
from ringbuf.layout import Geometry
from ringbuf.names import leads_to, opened, segment_path
from ringbuf.peek import Onlooker, Overtaken, Sighting

__all__ = ["dump", "tag_name", "tail"]

# The message layer's tags; from 16 on they are requests, which have numbers only.
_TAGS = {1: "RESULT", 2: "BATCH", 3: "ERROR"}
# A passive reader has no doorbell; it looks this often.
_LOOK_S = 0.05


def tag_name(tag: int) -> str:
    """What the message layer calls frames with this tag, or the number."""
    return _TAGS.get(tag, str(tag))


def _as_dict(frame: Sighting, shown: int) -> dict[str, Any]:
    return {
        "seq": frame.seq,
        "tag": frame.tag,
        "tag_name": tag_name(frame.tag),
        "bytes": frame.nbytes,
        "position": frame.position,
        "payload_hex": frame.payload[:shown].hex(),
    }


def _line(frame: Sighting, shown: int) -> str:
    payload = frame.payload[:shown]
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in payload)
    more = "..." if frame.nbytes > len(payload) else ""
    return f"{frame.seq:>10}  {tag_name(frame.tag):>6}  {frame.nbytes:>9}  {text}{more}"


_HEADINGS = f"{'seq':>10}  {'tag':>6}  {'bytes':>9}  payload"


def tail(args: argparse.Namespace) -> int:
    """Print frames as they pass."""
    with opened(args.name, args.owner, os.O_RDONLY) as (fd, geometry):
        if not args.json:
            print(_HEADINGS, flush=True)
        left = args.count
        for frame in _follow(args, fd, geometry):
            if isinstance(frame, str):
                _remark(args, frame)
                continue
            if args.json:
                print_json(_as_dict(frame, args.bytes), indent=None)
            else:
                print(_line(frame, args.bytes), flush=True)
            if left is not None:
                left -= 1
                if left <= 0:
                    break
    return 0


def _remark(args: argparse.Namespace, text: str) -> None:
    if args.json:
        print_json({"remark": text}, indent=None)
    else:
        print(f"-- {text}", flush=True)


def _follow(args: argparse.Namespace, fd: int, geometry: Geometry) -> Iterator[Sighting | str]:
    """Frames as they pass, and remarks about what happens to the ring."""
    onlooker = Onlooker(args.name, fd, geometry)
    bounds = onlooker.bounds()
    position = bounds.floor if args.oldest else bounds.published
    following = -1
    told = ""
    since = time.monotonic()
    while True:
        state = read_info(args.name, fd, geometry).state
        bounds = onlooker.bounds()
        position = max(position, bounds.floor)
        try:
            for frame in onlooker.frames(position, bounds.published, args.bytes):
                if following not in (-1, frame.seq):
                    yield f"missed {frame.seq - following} frames"
                yield frame
                since = time.monotonic()
                following = frame.seq + 1
                position = frame.position + frame.size
            position = bounds.published
        except Overtaken:
            continue
        if state in ("closed", "ended"):
            yield f"the ring is {state}"
            return
        if state != told and (told or state == "dead"):
            yield f"the ring is {state}" + (", waiting for a new producer" if state == "dead" else " again")
        told = state
        found = os.fstat(fd)
        if not leads_to(segment_path(args.name), found.st_dev, found.st_ino):
            yield "the ring's name was removed"
            return
        if args.timeout is not None and time.monotonic() - since >= args.timeout:
            return
        time.sleep(_LOOK_S)


def dump(args: argparse.Namespace) -> int:
    """Print what is in a ring; 1 when something in it is damaged."""
    with opened(args.name, args.owner, os.O_RDONLY) as (fd, geometry):
        info = read_info(args.name, fd, geometry)
        frames, problem, start, end = _collect(args, fd, geometry)
        onlooker = Onlooker(args.name, fd, geometry)
        following = frames[-1].seq + 1 if frames else -1
        # Only with nobody writing there does it mean anything.
        torn: list[Sighting] = []
        if problem is None and following >= 0 and not info.producer.alive:
            torn = list(onlooker.unpublished(end, following))
    if args.raw:
        Path(args.raw).write_bytes(b"".join(frame.payload for frame in frames))
    if args.json:
        print_json(
            {
                "name": info.name,
                "state": info.state,
                "from": start,
                "to": end,
                "frames": [_as_dict(frame, args.bytes) for frame in frames],
                "unpublished": [_as_dict(frame, args.bytes) for frame in torn],
                "problem": problem,
            }
        )
        return int(problem is not None)
    size = sum(frame.nbytes for frame in frames)
    print(f"ring {info.name}, {info.state}: {len(frames)} frames, {amount(size)} of payload")
    for consumer in info.consumers:
        print(
            f"slot {consumer.slot}: pid {consumer.pid}, {'alive' if consumer.alive else 'dead'}, "
            f"{consumer.lag_bytes} bytes behind"
        )
    print(_HEADINGS)
    for frame in frames:
        print(_line(frame, args.bytes))
    if torn:
        print("-- written and never published, so nobody receives them:")
        for frame in torn:
            print(_line(frame, args.bytes))
    if problem is not None:
        print(f"-- {problem}")
    return int(problem is not None)


def _collect(
    args: argparse.Namespace, fd: int, geometry: Geometry
) -> tuple[list[Sighting], str | None, int, int]:
    """The frames from the asked-for place to the published position; a problem met on the way."""
    onlooker = Onlooker(args.name, fd, geometry)
    limit = None if args.raw else args.bytes
    while True:
        bounds = onlooker.bounds()
        start = bounds.floor
        if args.slot is not None:
            start = _cursor(args, fd, geometry, start, bounds.published)
        frames: list[Sighting] = []
        problem = None
        try:
            for frame in onlooker.frames(start, bounds.published, limit):
                frames.append(frame)
        except Overtaken:
            continue
        except RingCorrupt as error:
            problem = str(error)
        return frames, problem, start, bounds.published


def _cursor(args: argparse.Namespace, fd: int, geometry: Geometry, floor: int, published: int) -> int:
    for consumer in read_info(args.name, fd, geometry).consumers:
        if consumer.slot == args.slot:
            if not floor <= consumer.position <= published:
                raise ValueError(
                    f"the consumer in slot {args.slot} stands at {consumer.position}, "
                    f"what is there goes from {floor} to {published}"
                )
            return consumer.position
    raise ValueError(f"no consumer in slot {args.slot} of ring {args.name!r}")
