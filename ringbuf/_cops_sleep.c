/* Sleeping and waking in the C body: what Sleeper.arm and Sleeper.nap, and Bell.ring, do in Python, for the usual
   case and without its cold code. Anything unusual is left to Python; see wait.py for the argument. */

#define _GNU_SOURCE
#include "_cops.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* From <linux/membarrier.h>. */
enum { GLOBAL_EXPEDITED = 1 << 1 };

bool ring_bell(int fd) {
    struct sigaction action;
    /* In a program that lets SIGPIPE kill it only Python's care will do. */
    if (sigaction(SIGPIPE, NULL, &action) || action.sa_handler == SIG_DFL)
        return false;
    return write(fd, "!", 1) == 1 || errno == EAGAIN;
}

bool ring_parked(uint64_t wake, word *own, const int *bells) {
    unsigned char *rung = (unsigned char *)(own + P_RUNG_GENERATIONS);
    for (size_t slot = 0; wake; wake >>= 8, slot++) {
        unsigned char generation = wake & 0xFF;
        if (!generation)
            continue;
        if (rung[slot] == generation) {
            store(own + P_SKIPPED, load(own + P_SKIPPED) + 1);
            continue;
        }
        if (bells[slot] < 0 || !ring_bell(bells[slot]))
            return false;
        rung[slot] = generation;
        store(own + P_RUNG, load(own + P_RUNG) + 1);
    }
    return true;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Poll both for `timeout` ms, over signals; -1 with an error set. */
static int poll_both(struct pollfd *fds, int timeout) {
    int64_t until = now_ms() + timeout;
    for (;;) {
        int found, cause;
        Py_BEGIN_ALLOW_THREADS
        found = poll(fds, 2, timeout);
        cause = errno;
        Py_END_ALLOW_THREADS
        if (found >= 0)
            return found;
        if (cause != EINTR) {
            errno = cause;
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (PyErr_CheckSignals())
            return -1;
        int64_t left = until - now_ms();
        timeout = left > 0 ? (int)left : 0;
    }
}

static inline bool reader_must_look(const Reader *r) {
    /* SYNC: store flag, barrier, load P_POS, P_STATE and P_ENDED; pairs with the producer's stores of these,
       barrier, load of the wake word. */
    return load(r->peer + P_POS) != r->position || load(r->peer + P_STATE) != STATE_LIVE ||
           load(r->peer + P_ENDED);
}

/* doze(wake, slot, generation, membarrier, bell, lifeline, timeout, takes) -> how it ended, as Sleeper.nap says
   it, or LOOK: there was something to see before it could begin. Who takes gets, instead of RUNG, the frame that
   it was rung for. The flag is down again, and what rang is left in the FIFO: who was woken has better things to
   do than to empty it. */
PyObject *reader_doze(PyObject *self, PyObject *args) {
    enum { TIME = 0, RUNG = 1, CUT = 2, LOOK = 3 };
    Reader *r = (Reader *)self;
    Py_buffer page;
    Py_ssize_t slot;
    unsigned char generation;
    int expedited, timeout, takes, ended = LOOK;
    struct pollfd fds[2] = {{.events = POLLIN}, {.events = 0}};
    if (!PyArg_ParseTuple(args, "w*nbpiiip", &page, &slot, &generation, &expedited, &fds[0].fd, &fds[1].fd,
                          &timeout, &takes))
        return NULL;
    if (slot < 0 || slot >= page.len) {
        PyErr_Format(PyExc_ValueError, "slot %zd has no flag: there are %zd", slot, page.len);
        PyBuffer_Release(&page);
        return NULL;
    }
    _Atomic unsigned char *flag = (_Atomic unsigned char *)page.buf + slot;
    /* Once shut, the slot may be another's. */
    if (!r->shut) {
        atomic_store_explicit(flag, generation, memory_order_relaxed);
        if (!expedited)
            atomic_thread_fence(memory_order_seq_cst);
        else if (syscall(SYS_membarrier, GLOBAL_EXPEDITED, 0, 0)) {
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, "membarrier");
            ended = -1;
        }
        if (ended == LOOK && !reader_must_look(r)) {
            ended = poll_both(fds, timeout);
            if (ended > 0) {
                ended = !r->shut && fds[0].revents == POLLIN && !fds[1].revents ? RUNG : CUT;
                store(r->own + C_WAKEUPS, load(r->own + C_WAKEUPS) + 1);
            }
        }
    }
    if (!r->shut)
        atomic_store_explicit(flag, 0, memory_order_relaxed);
    PyBuffer_Release(&page);
    if (ended == RUNG && takes) {
        PyObject *frame = NULL;
        outcome result = reader_next(r, MORE, &frame);
        if (result != FULL)
            return frame;
    }
    return ended < 0 ? NULL : PyLong_FromLong(ended);
}
