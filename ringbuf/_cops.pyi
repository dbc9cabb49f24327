from collections.abc import Callable
from mmap import mmap

from ringbuf._body import Reader, Writer
from ringbuf.frame import Frame as Frame

COPY_LIMIT: int

def fence() -> None: ...
def private(frame: Frame) -> Frame: ...
def make_writer(
    own: memoryview,
    words: memoryview,
    data: mmap,
    wake: memoryview,
    control: memoryview,
    evicted: memoryview,
    *,
    capacity: int,
    position: int,
    seq: int,
    slots: int,
    many: bool,
    slow: Callable[[int, object, int], bool],
    grant: Callable[[int, int], int],
    wake_up: Callable[[], int],
    fence: Callable[[], None] | None,
) -> Writer: ...
def make_reader(
    peer: memoryview,
    own: memoryview,
    words: memoryview,
    data: mmap,
    *,
    capacity: int,
    position: int,
    seq: int,
    idle: Callable[[], bool],
    corrupt: Callable[[int, str], Exception],
    wake_up: Callable[[int], int],
    fence: Callable[[], None] | None,
    is_forked: Callable[[], bool],
    last_ended: Callable[[], None],
) -> Reader: ...
