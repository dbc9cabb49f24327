/* The ring's hot operations in C: what _pyops.py specifies, with C11 atomics. The byte map, and what the parts
   share: _cops_writer.c, _cops_reader.c, and the module in _cops.c.

   The ordering argument stands in _pyops.py and in wait.py; here it is spelled: a store that publishes or
   releases is memory_order_release, the load that pairs with it memory_order_acquire, and the bytes between
   are copied in that order on every machine. Words that only their owner orders are relaxed.

   Leases are live Frame objects. A reader keeps them in a list, oldest first, and its cursor stands at the
   first; a frame leaves the list when it is released or dies, in any order, at the same cost. Views are
   exported by the frame itself, so a frame dies after its last view, and keeps its reader, which keeps the
   pages mapped. Copies are frames too, with the bytes behind the object, and know no reader.

   A callback may do anything, even use the object that called it. So nothing that was computed before a
   callback is believed after it. */

#ifndef RINGBUF_COPS_H
#define RINGBUF_COPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------ the byte map

   Words and frames as layout.py draws them; `same_layout` refuses to load beside another one. */

enum { WORD = 8, FRAME_HEADER = 16, TAG_MASK = 0xFF, SHIFT_BIT = 8, SHIFT_MASK = 0xFF, LENGTH_BIT = 16 };
enum { P_POS = 0, P_FRAMES = 1, P_FLOOR = 8, P_FLOOR_SEQ = 9, P_FLOOR_SEQ_POS = 10, P_WAITING = 16, P_STATE = 24 };
enum { P_ENDED = 32, P_PADDING = 40, P_FULL_EVENTS = 41, P_FULL_NS = 42, P_HIGH_WATER = 43 };
enum { P_RUNG = 44, P_SKIPPED = 45, P_RUNG_GENERATIONS = 64, STATE_LIVE = 1, FLAGS_A_WORD = WORD };
enum { C_CURSOR = 0, C_STATE = 8, C_LEASES = 16, C_OLDEST_LEASE = 17, C_WAKEUPS = 24, C_RUNG = 26, C_ATTACHMENT_BIT = 2 };
enum { SLOT_FREE = 0, SLOT_LIVE = 2 };
enum { PAGE = 4096, SLOT_PAGES = 3 * PAGE };

/* Payloads up to this many bytes are handed out as private copies: written and read in process, a frame of 1 KiB
   cost the same either way, 0.29 us. */
enum { COPY_LIMIT = 1024 };

typedef _Atomic uint64_t word;

static inline uint64_t load(const word *w) { return atomic_load_explicit((word *)w, memory_order_relaxed); }
static inline uint64_t load_acquire(const word *w) {
    return atomic_load_explicit((word *)w, memory_order_acquire);
}
static inline void store(word *w, uint64_t value) { atomic_store_explicit(w, value, memory_order_relaxed); }
static inline void store_release(word *w, uint64_t value) {
    atomic_store_explicit(w, value, memory_order_release);
}

/* What a waker runs between its store and its look at the sleeper's flag. Where sleepers run membarrier(2)
   only the compiler must keep the order. */
static inline void waker_barrier(bool fence) {
    if (fence)
        atomic_thread_fence(memory_order_seq_cst);
    else
        atomic_signal_fence(memory_order_seq_cst);
}

/* Small frames cost the writer less than fetching their lines from the consumer's core, to which they went in the
   last lap: fetch some ahead, to be written (bench/ring_one_to_one_throughput.py, batched: 1.2x). */
enum { PREFETCH = 512, LINE = 64 };

static inline void prefetch_to_write(const char *at) {
#ifdef __x86_64__
    /* The builtin would only ask for a copy without -mprfchw. */
    __asm__ volatile("prefetchw %0" : : "m"(*at));
#else
    __builtin_prefetch(at, 1);
#endif
}

/* A side that follows the other closely takes a line away from it at every look, and gets so little for it that it
   soon looks again: each such look costs both sides as much as several frames. So who finds next to nothing right
   after it had something hangs back, and looks once more. The more often that pays the longer it does it, up to about
   2 us, which lets a stream run with some dozens of frames between the sides; where it does not pay, as for one who
   waits for an answer, it is 50 ns once (one call per frame of 64 B, 24 runs: 64 -> 53 ns at the median, 289 -> 181 ns
   in the slowest). */
typedef struct {
    uint64_t position; /* where it hung back last: there it does so once */
    uint64_t close;    /* bytes that are next to nothing */
    int turns;
} pace;

enum { CLOSE = 1024, LEAST_TURNS = 2, MOST_TURNS = 64 };

static inline pace pace_for(uint64_t capacity, uint64_t position) {
    return (pace){position, capacity / 8 < CLOSE ? capacity / 8 : CLOSE, LEAST_TURNS};
}

static inline bool too_close(const pace *p, uint64_t position, uint64_t found) {
    return found < p->close && position != p->position;
}

static inline void hang_back(pace *p, uint64_t position) {
    p->position = position;
    for (int turn = 0; turn < p->turns; turn++) {
#ifdef __x86_64__
        __builtin_ia32_pause();
#elif defined __aarch64__
        __asm__ volatile("isb");
#else
        atomic_signal_fence(memory_order_seq_cst);
#endif
    }
}

static inline void judge(pace *p, bool paid) {
    if (!paid)
        p->turns = LEAST_TURNS;
    else if (p->turns < MOST_TURNS)
        p->turns *= 2;
}

static inline uint64_t frame_bytes(uint64_t nbytes, uint64_t shift) {
    return (FRAME_HEADER + shift + nbytes + WORD - 1) & -(uint64_t)WORD;
}

typedef enum { FAILED = -1, FULL = 0, DONE = 1, SLOW = 2 } outcome;

/* Call back for a number; false with an error set. */
bool ask(PyObject *callback, uint64_t *answer, const char *format, ...);

/* Whether the buffers can be the data of a ring and two control pages; else an error is set. */
bool check_pages(uint64_t capacity, uint64_t position, const Py_buffer *data, const Py_buffer *page,
                 const Py_buffer *other);

extern PyTypeObject *Writer_Type, *Reader_Type, *Frame_Type, *Each_Type;
extern PyObject *FrameInUse;
extern PyType_Spec writer_spec, reader_spec, frame_spec, each_spec;

/* -------------------------------------------------------------------------------------------- the writer */

typedef struct {
    PyObject_HEAD
    uint64_t position; /* where the next frame goes */
    uint64_t limit;    /* everything below may be written */
    uint64_t capacity, seq, rung;
    word *own;
    const word *wake, *control, *evicted;
    char *data;
    size_t slots; /* that may be looked at without asking */
    bool many, fence, frozen, shut, counts_full;
    pace pace;
    uint64_t full_since, asked_at; /* monotonic ns, 0: not */
    int bells[FLAGS_A_WORD]; /* the consumers' FIFOs, -1 while only Python knows one */
    PyObject *slow, *grant, *wake_up;
    Py_buffer own_page, wake_page, control_pages, evicted_words, data_pages;
} Writer;

/* Bytes from `position` to the end of a frame of `step` bytes, with the padding before it. */
static inline uint64_t writer_need(const Writer *w, uint64_t step) {
    uint64_t gap = w->capacity - (w->position & (w->capacity - 1));
    return step <= gap ? step : gap + step;
}

/* Make `limit` allow a frame of `step` bytes; FULL when there is no room for it. */
outcome writer_find_room(Writer *w, uint64_t step);

/* -------------------------------------------------------------------------------------- readers and frames */

typedef struct Frame Frame;

typedef struct {
    PyObject_HEAD
    uint64_t position; /* where the next frame to read begins */
    uint64_t ready;    /* frames are known to be published up to here */
    uint64_t cursor;   /* what C_CURSOR says */
    uint64_t capacity, seq, rung;
    const word *peer;
    word *own;
    const char *data;
    pace pace;
    bool fence, any_seq, attended, shut, forked, closing;
    int bell; /* the producer's FIFO, -1 while only Python knows it */
    uint64_t leases;
    Frame *oldest, *newest;
    PyObject *idle, *corrupt, *wake_up, *is_forked, *last_ended;
    Py_buffer peer_page, own_page, data_pages;
} Reader;

struct Frame {
    PyObject_HEAD
    uint64_t seq;
    const char *bytes; /* in the ring, or in `copy`; NULL when released */
    Py_ssize_t nbytes;
    int exports;
    unsigned char tag;
    bool leased, exporting, sparing;
    union {
        struct {
            Reader *reader;
            Frame *older, *newer;
            uint64_t position;
        };
        char copy[sizeof(uint64_t)];
    };
};

/* Most frames are small and die young, so the memory of some is kept for the next: making and dropping one takes
   5 ns less. A spare one keeps its reference to the type; `bytes` leads to the one below it. */
enum { SPARE_COPY = 128 };
#if defined Py_GIL_DISABLED || defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SPARES = 0 };
#else
enum { SPARES = 128 };
#endif
extern Frame *spare_frames;
extern int spares;

static inline Frame *frame_new(size_t copied) {
    Frame *f = spare_frames;
    if (f && copied <= SPARE_COPY) {
        spare_frames = (Frame *)f->bytes;
        spares--;
        _Py_NewReference((PyObject *)f);
    } else {
        size_t room = copied <= SPARE_COPY ? SPARE_COPY : copied;
        f = PyObject_Malloc(offsetof(Frame, copy) + room);
        if (!f)
            return (Frame *)PyErr_NoMemory();
        PyObject_Init((PyObject *)f, Frame_Type);
        f->sparing = room == SPARE_COPY;
    }
    f->exports = 0;
    f->leased = f->exporting = false;
    return f;
}

/* How to look at a ring in which nothing is left: as one to whom that is no news; as one who asks again at once; or
   as one who wants to know all about it, for which `idle` is asked. */
typedef enum { MORE, SOON, ALL } look;

/* Take the next frame and move the cursor on; FULL when there is none. */
outcome reader_next(Reader *r, look how, PyObject **taken);

/* A lease ends: take it from the list, move the cursor, tell who waits for that; false with an error set. */
bool reader_drop(Reader *r, Frame *f);

/* A private copy of a frame, which is released. */
PyObject *frame_private(PyObject *module, PyObject *frame);

/* ------------------------------------------------------------------------------------- sleeping and waking */

/* Wake the owner of a FIFO; false leaves it to Python. */
bool ring_bell(int fd);

/* Ring every consumer whose flag in wake word 0 says that it sleeps, as Sender.wake_up does; false leaves what is
   left to that. */
bool ring_parked(uint64_t wake, word *own, const int *bells);

PyObject *reader_doze(PyObject *self, PyObject *args);

/* each(consumer, kept) -> an iterator over the reader's frames; see Reader.each in _body.py. */
PyObject *reader_each(PyObject *self, PyObject *args);

/* ----------------------------------------------------------------------------------------- the factories */

PyObject *make_writer(PyObject *module, PyObject *args, PyObject *named);
PyObject *make_reader(PyObject *module, PyObject *args, PyObject *named);

#define FUNCTION(f) ((PyCFunction)(void (*)(void))f)
#define SLOT(id, f) {id, (void *)f}
enum { OURS = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION };

#endif
