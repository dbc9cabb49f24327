/* Two threads over one mapping, for ThreadSanitizer: the core of both halves of the C body, without the
   interpreter, whose lock would order everything. One thread writes frames, the other checks every byte of
   them; one holds its frames for a while, as leases do. */
#include "_cops_sleep.c"
#include "_cops_reader.c"
#include "_cops_room.c"
#include "_cops_writer.c"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

bool ask(PyObject *callback, uint64_t *answer, const char *format, ...) {
    (void)callback, (void)format;
    *answer = 0;
    return true;
}
bool check_pages(uint64_t capacity, uint64_t position, const Py_buffer *data, const Py_buffer *page,
                 const Py_buffer *other) {
    (void)capacity, (void)position, (void)data, (void)page, (void)other;
    return false;
}
PyTypeObject *Writer_Type, *Reader_Type, *Frame_Type;
PyObject *FrameInUse;

enum { CAPACITY = 4096, FRAMES = 50000, HELD = 5 };

static _Alignas(4096) char segment[SLOT_PAGES + PAGE + CAPACITY];
static uint64_t evicted[1];

static word *page(size_t at) { return (word *)(segment + at); }

static uint64_t size_of(uint64_t seq) { return seq * 2654435761u % 700; }

static void *produce(void *unused) {
    Writer w = {.limit = CAPACITY, .capacity = CAPACITY, .slots = 1, .fence = true};
    w.own = page(PAGE);
    w.wake = page(2 * PAGE);
    w.control = page(0);
    w.evicted = (const word *)evicted;
    w.data = segment + SLOT_PAGES + PAGE;
    for (uint64_t i = 0; i < FRAMES; i++) {
        uint64_t nbytes = size_of(i), step = frame_bytes(nbytes, i % 8);
        while (writer_place(&w, step) != DONE) {
            if (load(w.own + P_POS) != w.position)
                writer_publish(&w);
            sched_yield();
        }
        memset(writer_spot(&w) + FRAME_HEADER + i % 8, (int)(i % 251), nbytes);
        writer_commit(&w, 1 + i % 255, nbytes, i % 8, step);
        if (i % 3 == 0 || i == FRAMES - 1)
            writer_publish(&w);
    }
    return unused;
}

static void *consume(void *unused) {
    Reader r = {.capacity = CAPACITY, .fence = true};
    static Frame held[HELD];
    uint64_t bad = 0;
    r.peer = page(PAGE);
    r.own = page(SLOT_PAGES);
    r.data = segment + SLOT_PAGES + PAGE;
    for (uint64_t i = 0; i < FRAMES;) {
        head found;
        while (reader_peek(&r, &found) != DONE)
            if (reader_refresh(&r) == FULL) {
                /* What is held may be what the producer waits for. */
                if (r.oldest)
                    reader_unlink(&r, r.oldest);
                reader_release(&r);
                sched_yield();
            }
        Frame *f = held + i % HELD;
        if (f->leased)
            reader_unlink(&r, f);
        f->nbytes = (Py_ssize_t)found.nbytes;
        f->bytes = found.bytes;
        f->seq = found.seq;
        reader_link(&r, f);
        r.position += found.step;
        r.seq = found.seq + 1;
        bad += found.seq != i || found.tag != 1 + i % 255 || found.nbytes != size_of(i);
        for (uint64_t at = 0; at < found.nbytes; at++)
            bad += found.bytes[at] != (char)(i % 251);
        /* An older one, still held, still the same. */
        Frame *old = held + (i + 1) % HELD;
        for (Py_ssize_t at = 0; old->leased && at < old->nbytes; at++)
            bad += old->bytes[at] != (char)(old->seq % 251);
        reader_release(&r);
        i++;
    }
    return bad ? segment : unused;
}

int main(void) {
    pthread_t threads[2];
    void *result;
    store(page(PAGE) + P_STATE, STATE_LIVE);
    store(page(SLOT_PAGES) + C_STATE, SLOT_LIVE);
    pthread_create(threads, NULL, produce, NULL);
    pthread_create(threads + 1, NULL, consume, NULL);
    pthread_join(threads[0], &result);
    pthread_join(threads[1], &result);
    printf("%d frames, %s\n", FRAMES, result ? "WRONG BYTES" : "every byte right");
    return result ? 1 : 0;
}
