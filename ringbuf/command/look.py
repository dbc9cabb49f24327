"""ls, stat and top: what rings say about themselves."""

from __future__ import annotations

import argparse
import time

from ringbuf.command.show import Table, amount, clear_screen, duration, print_json
from ringbuf.command.survey import Entry, survey
from ringbuf.counters import ConsumerInfo, RingInfo
from ringbuf.monitor import inspect

__all__ = ["ls", "stat", "top"]

_SHORTEST_INTERVAL_S = 0.05


def ls(args: argparse.Namespace) -> int:
    """List every ring."""
    entries = survey()
    if args.json:
        print_json([entry.to_dict() for entry in entries])
        return 0
    table = Table(("name", "state", "producer", "consumers>", "capacity>", "used>", "frames>", "age>"))
    now = time.time()
    for entry in entries:
        info = entry.info
        if info is None:
            table.rows.append((entry.name, entry.state, "", "", amount(entry.nbytes), "", "", ""))
            continue
        alive = sum(consumer.alive for consumer in info.consumers)
        table.rows.append(
            (
                info.name,
                info.state,
                f"pid {info.producer.pid}" + ("" if info.producer.alive else " (gone)"),
                f"{alive}/{info.slots}",
                amount(info.capacity),
                f"{100 * info.used_bytes / info.capacity:.0f} %",
                str(info.frames),
                duration(now - info.created),
            )
        )
    table.print()
    for entry in entries:
        if entry.problem:
            print(f"{entry.name}: {entry.problem}")
    return 0


def stat(args: argparse.Namespace) -> int:
    """Show one ring."""
    info = inspect(args.name, owner=args.owner)
    if args.json:
        print_json(info.to_dict())
        return 0
    producer = info.producer
    life = "alive" if producer.alive else "gone"
    waiting = ", waits for room" if producer.waiting else ""
    facts = [
        ("ring", f"{info.name}, {info.state}, made {_clock(info.created)}"),
        ("capacity", f"{amount(info.capacity)}, {info.slots} slots"),
        (
            "producer",
            f"pid {producer.pid}, {life}, incarnation {producer.incarnation} "
            f"since {_clock(producer.since)}{waiting}",
        ),
        ("positions", f"published {info.position}, floor {info.floor}"),
        (
            "used",
            f"{amount(info.used_bytes)} ({100 * info.used_bytes / info.capacity:.1f} %), "
            f"at most {amount(info.high_water_bytes)}",
        ),
        (
            "written",
            f"{info.frames} frames, {amount(info.bytes)}, and {amount(info.padding_bytes)} of padding",
        ),
        ("full", f"{info.full_events} times, {info.full_s:.3f} s"),
        ("bells", f"{info.rung} rung, {info.skipped} spared, {info.wakeups} wake-ups of the producer"),
        ("evicted", f"{info.evicted} dead consumers"),
    ]
    for what, fact in facts:
        print(f"{what:10} {fact}")
    if info.consumers:
        print()
        _consumers(info).print()
    return 0


def _clock(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        # The segment may say anything.
        return f"at {seconds:.0f} s"


def _consumers(info: RingInfo) -> Table:
    table = Table(
        (
            "slot>",
            "pid>",
            "state",
            "lag bytes>",
            "lag frames>",
            "leases>",
            "oldest lease>",
            "wake-ups>",
            "rung>",
        )
    )
    for consumer in info.consumers:
        table.rows.append(
            (
                str(consumer.slot),
                str(consumer.pid),
                _life(consumer),
                str(consumer.lag_bytes),
                str(consumer.lag_frames),
                str(consumer.leases),
                "" if consumer.oldest_lease is None else f"seq {consumer.oldest_lease}",
                f"{consumer.wakeups} ({consumer.spurious} spurious)",
                str(consumer.rung),
            )
        )
    return table


def _life(consumer: ConsumerInfo) -> str:
    if not consumer.alive:
        return "dead"
    if consumer.joining:
        return "joining"
    return "parked" if consumer.parked else "running"


def top(args: argparse.Namespace) -> int:
    """Show rates and lags again and again."""
    interval = max(_SHORTEST_INTERVAL_S, args.interval)
    count = args.count
    before: dict[str, RingInfo] = {}
    looked = time.monotonic()
    while count is None or count > 0:
        entries = survey()
        now = time.monotonic()
        rows = [_rates(entry, before.get(entry.name), now - looked) for entry in entries]
        if args.json:
            print_json(rows, indent=None)
        else:
            clear_screen()
            _show_rates(rows)
        before = {entry.name: entry.info for entry in entries if entry.info is not None}
        looked = now
        if count is not None:
            count -= 1
            if not count:
                break
        time.sleep(interval)
    return 0


def _rates(entry: Entry, earlier: RingInfo | None, seconds: float) -> dict[str, object]:
    info = entry.info
    if info is None:
        return entry.to_dict()
    frames = nbytes = full = 0
    if earlier is not None and earlier.created == info.created and seconds > 0:
        frames, nbytes, full = (
            max(0, info.frames - earlier.frames),
            max(0, info.bytes - earlier.bytes),
            max(0, info.full_events - earlier.full_events),
        )
    seconds = seconds or 1.0
    living = [consumer for consumer in info.consumers if consumer.alive]
    slowest = max(living, key=lambda consumer: consumer.lag_bytes, default=None)
    return {
        "name": info.name,
        "state": info.state,
        "frames_per_s": round(frames / seconds, 1),
        "bytes_per_s": round(nbytes / seconds, 1),
        "full_per_s": round(full / seconds, 1),
        "used_percent": round(100 * info.used_bytes / info.capacity, 1),
        "high_water_percent": round(100 * info.high_water_bytes / info.capacity, 1),
        "consumers": len(living),
        "leases": sum(consumer.leases for consumer in living),
        "slowest_pid": None if slowest is None else slowest.pid,
        "slowest_lag_frames": None if slowest is None else slowest.lag_frames,
        "producer_waits": info.producer.waiting,
    }


def _show_rates(rows: list[dict[str, object]]) -> None:
    table = Table(
        (
            "name",
            "state",
            "frames/s>",
            "bytes/s>",
            "used>",
            "high>",
            "full/s>",
            "consumers>",
            "leases>",
            "slowest",
        )
    )
    for row in rows:
        if "problem" in row:
            table.rows.append((str(row["name"]), str(row["state"]), *[""] * 8))
            continue
        rate = row["bytes_per_s"]
        slowest = row["slowest_pid"]
        table.rows.append(
            (
                str(row["name"]),
                str(row["state"]) + (", full" if row["producer_waits"] else ""),
                f"{row['frames_per_s']:.0f}",
                amount(rate if isinstance(rate, float) else 0.0),
                f"{row['used_percent']:.0f} %",
                f"{row['high_water_percent']:.0f} %",
                f"{row['full_per_s']:.0f}",
                str(row["consumers"]),
                str(row["leases"]),
                "" if slowest is None else f"pid {slowest}, {row['slowest_lag_frames']} frames behind",
            )
        )
    print(f"{time.strftime('%H:%M:%S')}  {len(rows)} rings")
    table.print()
