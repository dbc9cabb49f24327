/* The reading half of the C body; see _cops.h and make_reader in _pyops.py. */

#include "_cops.h"

/* Frames that read_many takes before it puts them into its list: the first ones make a list of their number, which
   costs less than to grow one. */
enum { AT_ONCE = 64 };

Frame *spare_frames;
int spares;

/* Move the cursor to where it belongs, and wake a producer that waits for that. */
static bool reader_release(Reader *r) {
    uint64_t cursor = r->oldest ? r->oldest->position : r->position;
    if (cursor == r->cursor)
        return true;
    r->cursor = cursor;
    /* SYNC: store C_CURSOR after the frames' bytes were loaded; pairs with the load in Room.grant. */
    store_release(r->own + C_CURSOR, cursor);
    waker_barrier(r->fence);
    /* SYNC: store C_CURSOR, barrier, load P_WAITING; pairs with Sleeper.arm. */
    uint64_t waiting = load(r->peer + P_WAITING);
    if (waiting == r->rung)
        return true;
    if (!waiting || (r->bell >= 0 && !r->shut && ring_bell(r->bell))) {
        r->rung = waiting;
        if (waiting)
            store(r->own + C_RUNG, load(r->own + C_RUNG) + 1);
        return true;
    }
    return ask(r->wake_up, &r->rung, "(K)", (unsigned long long)waiting);
}

static void reader_link(Reader *r, Frame *f) {
    f->leased = true;
    f->position = r->position;
    f->newer = NULL;
    f->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = f;
    r->newest = f;
    r->leases++;
}

static void reader_unlink(Reader *r, Frame *f) {
    f->leased = false;
    *(f->older ? &f->older->newer : &r->oldest) = f->newer;
    *(f->newer ? &f->newer->older : &r->newest) = f->older;
    r->leases--;
}

static void reader_count(Reader *r) {
    if (r->oldest)
        store(r->own + C_OLDEST_LEASE, r->oldest->seq);
    store(r->own + C_LEASES, r->leases);
}

static bool reader_end_if_last(Reader *r) {
    if (!r->closing || r->leases || r->forked)
        return true;
    r->closing = false;
    PyObject *nothing = r->last_ended ? PyObject_CallNoArgs(r->last_ended) : NULL;
    Py_XDECREF(nothing);
    return nothing != NULL;
}

bool reader_drop(Reader *r, Frame *f) {
    reader_unlink(r, f);
    if (r->forked)
        return true;
    reader_count(r);
    return reader_release(r) && reader_end_if_last(r);
}

static void corrupt(Reader *r, uint64_t position, PyObject *reason) {
    PyObject *error =
        reason ? PyObject_CallFunction(r->corrupt, "KN", (unsigned long long)position, reason) : NULL;
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
}

#define CORRUPT(r, position, ...) (corrupt(r, position, PyUnicode_FromFormat(__VA_ARGS__)), FAILED)

/* Look again what is published: DONE when there is something, FULL when not. */
static outcome reader_refresh(Reader *r) {
    /* SYNC: load P_POS before any byte it covers; pairs with the producer's store of P_POS. */
    uint64_t published = load_acquire(r->peer + P_POS);
    uint64_t ahead = published - r->position;
    if (ahead > r->capacity || ahead & (WORD - 1))
        return CORRUPT(
            r, r->position, "published position is %llu, read position %llu", (unsigned long long)published,
            (unsigned long long)r->position);
    if (!r->shut)
        r->ready = published;
    return ahead ? DONE : FULL;
}

/* The same; and who finds next to nothing looks once more, a moment later. */
static outcome reader_refresh_late(Reader *r) {
    outcome result = reader_refresh(r);
    if (result != FAILED && too_close(&r->pace, r->position, r->ready - r->position)) {
        uint64_t before = r->ready;
        hang_back(&r->pace, r->position);
        result = reader_refresh(r);
        judge(&r->pace, r->ready != before);
    }
    return result;
}

/* The same, and if there is nothing, ask what to do about it. */
static outcome reader_look(Reader *r) {
    if (!r->shut) {
        outcome result = reader_refresh_late(r);
        if (result != FULL)
            return result;
        if (!r->attended && load(r->peer + P_STATE) == STATE_LIVE && !load(r->peer + P_ENDED))
            return FULL;
    }
    PyObject *again = PyObject_CallNoArgs(r->idle);
    int truth = again ? PyObject_IsTrue(again) : -1;
    Py_XDECREF(again);
    if (truth <= 0 || r->shut)
        return truth < 0 ? FAILED : FULL;
    return reader_refresh(r);
}

/* A frame in the ring, checked. */
typedef struct {
    const char *bytes;
    uint64_t tag, seq, nbytes, step;
} head;

/* What is there to read, of what is known to be published; padding is passed over. FULL when nothing is. */
static outcome reader_peek(Reader *r, head *next) {
    while (r->position != r->ready) {
        uint64_t gap = r->capacity - (r->position & (r->capacity - 1)), most = r->ready - r->position;
        const word *at = (const word *)(r->data + (r->position & (r->capacity - 1)));
        /* SYNC: P_POS was loaded in `refresh`, before these bytes; pairs with the producer's store of P_POS. */
        uint64_t first = load(at);
        uint64_t shift = first >> SHIFT_BIT & SHIFT_MASK;
        next->tag = first & TAG_MASK;
        next->nbytes = first >> LENGTH_BIT;
        if (!next->tag) {
            if (next->nbytes != gap || shift || gap == r->capacity || gap > most)
                return CORRUPT(
                    r, r->position, "padding of %llu bytes, %llu to the end", (unsigned long long)next->nbytes,
                    (unsigned long long)gap);
            r->position += gap;
            continue;
        }
        most = most < gap ? most : gap;
        most = most < r->capacity / 2 ? most : r->capacity / 2;
        next->step = frame_bytes(next->nbytes, shift);
        if (shift >= WORD || next->step > most)
            return CORRUPT(
                r, r->position, "frame of %llu bytes where at most %llu can be",
                (unsigned long long)next->step, (unsigned long long)most);
        next->seq = load(at + 1);
        if (next->seq != r->seq && !r->any_seq)
            return CORRUPT(
                r, r->position + WORD, "frame has seq %llu, expected %llu", (unsigned long long)next->seq,
                (unsigned long long)r->seq);
        next->bytes = (const char *)at + FRAME_HEADER + shift;
        return DONE;
    }
    return FULL;
}

/* Take the next frame; the cursor stays. */
static inline outcome reader_take(Reader *r, look how, PyObject **taken) {
    head next;
    outcome result;
    while ((result = r->shut ? FULL : reader_peek(r, &next)) == FULL) {
        result = how == ALL || r->shut ? reader_look(r) : how == SOON ? reader_refresh_late(r) : reader_refresh(r);
        if (result != DONE)
            return result;
    }
    if (result == FAILED)
        return FAILED;
    bool copied = next.nbytes <= COPY_LIMIT;
    Frame *f = frame_new(copied ? next.nbytes : 0);
    if (!f)
        return FAILED;
    f->seq = next.seq;
    f->tag = (unsigned char)next.tag;
    f->nbytes = (Py_ssize_t)next.nbytes;
    if (copied) {
        f->bytes = memcpy(f->copy, next.bytes, next.nbytes);
    } else {
        f->bytes = next.bytes;
        f->reader = (Reader *)Py_NewRef(r);
        reader_link(r, f);
        reader_count(r);
    }
    r->any_seq = false;
    r->seq = next.seq + 1;
    r->position += next.step;
    *taken = (PyObject *)f;
    return DONE;
}

/* Take it and move the cursor on. */
static inline outcome reader_get(Reader *r, look how, PyObject **taken) {
    outcome result = reader_take(r, how, taken);
    if (result != FAILED && !reader_release(r)) {
        if (result == DONE)
            Py_CLEAR(*taken);
        return FAILED;
    }
    return result;
}

outcome reader_next(Reader *r, look how, PyObject **taken) { return r->shut ? FULL : reader_get(r, how, taken); }

/* METH_FASTCALL, although it takes nothing: the interpreter specializes such calls, and not METH_NOARGS. */
static PyObject *try_read(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t given) {
    if (given)
        return PyErr_Format(PyExc_TypeError, "try_read() takes no arguments (%zd given)", given);
    PyObject *frame = NULL;
    outcome result = reader_get((Reader *)self, ALL, &frame);
    return result == FULL ? Py_NewRef(Py_None) : frame;
}

/* Hand `count` frames over to the list, which is made for the first of them; false with an error set. */
static bool extend(PyObject **frames, PyObject **taken, Py_ssize_t count) {
    Py_ssize_t moved = 0;
    if (*frames)
        while (moved < count && !PyList_Append(*frames, taken[moved]))
            Py_DECREF(taken[moved++]);
    else if ((*frames = PyList_New(count)))
        for (; moved < count; moved++)
            PyList_SET_ITEM(*frames, moved, taken[moved]);
    bool fine = *frames && moved == count;
    while (moved < count)
        Py_DECREF(taken[moved++]);
    return fine;
}

static PyObject *read_many(PyObject *self, PyObject *max_frames) {
    Reader *r = (Reader *)self;
    Py_ssize_t most = PyLong_AsSsize_t(max_frames), count = 0;
    PyObject *frames = NULL, *taken[AT_ONCE];
    if (most == -1 && PyErr_Occurred())
        return NULL;
    outcome result = DONE;
    do {
        Py_ssize_t here = 0;
        for (; here < AT_ONCE && count < most; here++, count++)
            if ((result = reader_take(r, count ? MORE : ALL, taken + here)) != DONE)
                break;
        if (result == FAILED && !count)
            return NULL;
        /* What stopped a read that has frames to hand out is met again by the next one. */
        if (result == FAILED)
            PyErr_Clear();
        if (!extend(&frames, taken, here)) {
            Py_CLEAR(frames);
            return NULL;
        }
    } while (result == DONE && count < most);
    if (!reader_release(r))
        Py_CLEAR(frames);
    return frames;
}

static PyObject *refresh(PyObject *self, PyObject *Py_UNUSED(none)) {
    outcome result = reader_refresh((Reader *)self);
    return result == FAILED ? NULL : PyBool_FromLong(result);
}

static PyObject *attend(PyObject *self, PyObject *Py_UNUSED(none)) {
    ((Reader *)self)->attended = true;
    Py_RETURN_NONE;
}

static PyObject *reader_keep_bell(PyObject *self, PyObject *fd) {
    int kept = (int)PyLong_AsLong(fd);
    if (PyErr_Occurred())
        return NULL;
    ((Reader *)self)->bell = kept;
    Py_RETURN_NONE;
}

static PyObject *reader_position(PyObject *self, PyObject *Py_UNUSED(none)) {
    return PyLong_FromUnsignedLongLong(((Reader *)self)->position);
}

static PyObject *reader_shut(PyObject *self, PyObject *Py_UNUSED(none)) {
    Reader *r = (Reader *)self;
    r->shut = true;
    PyObject *answer = PyObject_CallNoArgs(r->is_forked);
    r->forked = answer && PyObject_IsTrue(answer) == 1;
    Py_XDECREF(answer);
    return answer ? Py_NewRef(Py_None) : NULL;
}

static PyObject *reader_close(PyObject *self, PyObject *Py_UNUSED(none)) {
    Reader *r = (Reader *)self;
    r->closing = true;
    return reader_release(r) && reader_end_if_last(r) ? Py_NewRef(Py_None) : NULL;
}

PyObject *make_reader(PyObject *Py_UNUSED(module), PyObject *args, PyObject *named) {
    static char *parameters[] = {"peer", "own",     "words",   "data",  "capacity",  "position",   "seq",
                                 "idle", "corrupt", "wake_up", "fence", "is_forked", "last_ended", NULL};
    Reader *r = (Reader *)Reader_Type->tp_alloc(Reader_Type, 0);
    PyObject *words, *idle, *corrupt_, *wake_up, *fence, *is_forked, *last_ended;
    unsigned long long capacity, position;
    long long seq;
    if (!r)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "y*w*Oy*$KKLOOOOOO", parameters, &r->peer_page, &r->own_page,
                                     &words, &r->data_pages, &capacity, &position, &seq, &idle, &corrupt_,
                                     &wake_up, &fence, &is_forked, &last_ended) ||
        !check_pages(capacity, position, &r->data_pages, &r->peer_page, &r->own_page)) {
        Py_DECREF(r);
        return NULL;
    }
    r->peer = r->peer_page.buf;
    r->own = r->own_page.buf;
    r->data = r->data_pages.buf;
    r->capacity = capacity;
    r->position = r->ready = r->cursor = position;
    r->seq = (uint64_t)seq;
    r->any_seq = seq < 0;
    r->bell = -1;
    r->pace = pace_for(capacity, position);
    r->fence = fence != Py_None;
    r->idle = Py_NewRef(idle);
    r->corrupt = Py_NewRef(corrupt_);
    r->wake_up = Py_NewRef(wake_up);
    r->is_forked = Py_NewRef(is_forked);
    r->last_ended = Py_NewRef(last_ended);
    return (PyObject *)r;
}

static int reader_traverse(PyObject *self, visitproc visit, void *arg) {
    Reader *r = (Reader *)self;
    Py_VISIT(r->idle);
    Py_VISIT(r->corrupt);
    Py_VISIT(r->wake_up);
    Py_VISIT(r->is_forked);
    Py_VISIT(r->last_ended);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int reader_clear(PyObject *self) {
    Reader *r = (Reader *)self;
    Py_CLEAR(r->idle);
    Py_CLEAR(r->corrupt);
    Py_CLEAR(r->wake_up);
    Py_CLEAR(r->is_forked);
    Py_CLEAR(r->last_ended);
    return 0;
}

static void reader_dealloc(PyObject *self) {
    Reader *r = (Reader *)self;
    PyObject_GC_UnTrack(self);
    PyBuffer_Release(&r->peer_page);
    PyBuffer_Release(&r->own_page);
    PyBuffer_Release(&r->data_pages);
    reader_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(Reader_Type);
}

static PyMethodDef reader_methods[] = {
    {"try_read", FUNCTION(try_read), METH_FASTCALL, "try_read() -> Frame | None; see Consumer.try_read."},
    {"read_many", read_many, METH_O, NULL},
    {"each", reader_each, METH_VARARGS, NULL},
    {"refresh", refresh, METH_NOARGS, NULL},
    {"attend", attend, METH_NOARGS, NULL},
    {"doze", reader_doze, METH_VARARGS, "Sleep until something may be there; see wait.py."},
    {"keep_bell", reader_keep_bell, METH_O, "Ring the producer through this descriptor from now on."},
    {"position", reader_position, METH_NOARGS, NULL},
    {"shut", reader_shut, METH_NOARGS, NULL},
    {"close", reader_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    SLOT(Py_tp_methods, reader_methods), SLOT(Py_tp_traverse, reader_traverse), SLOT(Py_tp_clear, reader_clear),
    SLOT(Py_tp_dealloc, reader_dealloc), {0, NULL}};
PyType_Spec reader_spec = {
    "ringbuf._cops.Reader", sizeof(Reader), 0, OURS | Py_TPFLAGS_HAVE_GC, reader_slots};
