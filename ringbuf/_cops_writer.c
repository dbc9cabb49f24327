/* The writing half of the C body; see _cops.h and make_writer in _pyops.py. */

#include "_cops.h"

/* Payloads of more parts take the slow path. */
enum { MAX_PARTS = 16 };

/* Room for `step` contiguous bytes at `position`, after padding if need be. */
static inline outcome writer_place(Writer *w, uint64_t step) {
    if (w->shut || (int64_t)(w->limit - w->position) < (int64_t)writer_need(w, step)) {
        outcome found = writer_find_room(w, step);
        if (found != DONE)
            return found;
    }
    w->frozen = false;
    uint64_t gap = w->capacity - (w->position & (w->capacity - 1));
    if (step > gap) {
        store((word *)(w->data + (w->position & (w->capacity - 1))), gap << LENGTH_BIT);
        store(w->own + P_PADDING, load(w->own + P_PADDING) + gap);
        w->position += gap;
    }
    return DONE;
}

static inline char *writer_spot(Writer *w) { return w->data + (w->position & (w->capacity - 1)); }

static inline void writer_commit(Writer *w, uint64_t tag, uint64_t nbytes, uint64_t shift, uint64_t step) {
    word *head = (word *)writer_spot(w);
    prefetch_to_write((char *)head + PREFETCH);
    prefetch_to_write((char *)head + PREFETCH + LINE);
    store(head, nbytes << LENGTH_BIT | shift << SHIFT_BIT | tag);
    store(head + 1, w->seq++);
    w->position += step;
}

static inline bool writer_publish(Writer *w) {
    store(w->own + P_FRAMES, w->seq);
    /* SYNC: store P_POS after the frames' bytes; pairs with the consumer's load of P_POS before them. */
    store_release(w->own + P_POS, w->position);
    waker_barrier(w->fence);
    /* SYNC: store P_POS, barrier, load the wake word; pairs with Sleeper.arm. */
    uint64_t wake = load(w->wake);
    if (!w->many && (wake == w->rung || (!w->shut && ring_parked(wake, w->own, w->bells)))) {
        w->rung = wake;
        return true;
    }
    return ask(w->wake_up, &w->rung, "()");
}

static inline void writer_rewind(Writer *w) {
    w->seq = load(w->own + P_FRAMES);
    w->position = load(w->own + P_POS);
}

/* Commit one frame if it is one for the fast path: a buffer, or a few in a list or tuple. */
static inline outcome writer_add(Writer *w, PyObject *tag, PyObject *payload, uint64_t shift) {
    Py_buffer parts[MAX_PARTS];
    Py_ssize_t count = 0;
    uint64_t nbytes = 0;
    outcome result = SLOW;
    if (w->frozen || w->shut || !PyLong_Check(tag))
        return SLOW;
    int overflow;
    long number = PyLong_AsLongAndOverflow(tag, &overflow);
    if (number < 1 || number > TAG_MASK)
        return SLOW;
    if (PyBytes_CheckExact(payload)) {
        nbytes = (uint64_t)PyBytes_GET_SIZE(payload);
        uint64_t step = frame_bytes(nbytes, shift);
        if (step > w->capacity / 2)
            return SLOW;
        result = writer_place(w, step);
        if (result == DONE) {
            memcpy(writer_spot(w) + FRAME_HEADER + shift, PyBytes_AS_STRING(payload), nbytes);
            writer_commit(w, (uint64_t)number, nbytes, shift, step);
        }
        return result;
    }
    bool listed = PyList_CheckExact(payload) || PyTuple_CheckExact(payload);
    while (count < (listed ? PySequence_Fast_GET_SIZE(payload) : 1)) {
        PyObject *part = listed ? PySequence_Fast_GET_ITEM(payload, count) : payload;
        if (count == MAX_PARTS || PyObject_GetBuffer(part, parts + count, PyBUF_SIMPLE) < 0) {
            /* The slow path knows what to do, or what to say. */
            PyErr_Clear();
            goto let_go;
        }
        nbytes += (uint64_t)parts[count++].len;
    }
    uint64_t step = frame_bytes(nbytes, shift);
    if (step > w->capacity / 2)
        goto let_go;
    result = writer_place(w, step);
    if (result == DONE) {
        char *at = writer_spot(w) + FRAME_HEADER + shift;
        for (Py_ssize_t i = 0; i < count; at += parts[i++].len)
            memcpy(at, parts[i].buf, (size_t)parts[i].len);
        writer_commit(w, (uint64_t)number, nbytes, shift, step);
    }
let_go:
    while (count)
        PyBuffer_Release(parts + --count);
    return result;
}

/* Sort arguments of try_write that are not just two, into tag, payload and align_at; false with an error set. */
static bool arguments(PyObject **values, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    static const char *const parameters[] = {"tag", "payload", "align_at"};
    for (Py_ssize_t i = 0; i < given && i < 3; i++)
        values[i] = args[i];
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int place = 0;
        while (place < 3 && PyUnicode_CompareWithASCIIString(name, parameters[place]))
            place++;
        if (place == 3 || values[place]) {
            PyErr_Format(PyExc_TypeError, "try_write() got an unexpected argument %R", name);
            return false;
        }
        values[place] = args[given + i];
    }
    if (given <= 3 && values[0] && values[1])
        return true;
    PyErr_SetString(PyExc_TypeError, "try_write() takes tag, payload and optionally align_at");
    return false;
}

/* What try_write answers to anything but SLOW. */
static inline PyObject *answer(Writer *w, outcome result) {
    if (result == DONE)
        return writer_publish(w) ? Py_NewRef(Py_True) : NULL;
    return result == FULL ? Py_NewRef(Py_False) : NULL;
}

/* try_write of anything but two arguments; not inlined, so as not to make that one slower. */
__attribute__((noinline)) static PyObject *try_write_named(
    Writer *w, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    PyObject *values[3] = {NULL, NULL, NULL};
    if (!arguments(values, args, given, names))
        return NULL;
    outcome result = SLOW;
    if (!values[2] || PyLong_Check(values[2])) {
        uint64_t align_at = values[2] ? PyLong_AsUnsignedLongLongMask(values[2]) : 0;
        result = writer_add(w, values[0], values[1], -align_at & (WORD - 1));
    }
    if (result != SLOW)
        return answer(w, result);
    if (!values[2])
        return PyObject_CallFunction(w->slow, "OOi", values[0], values[1], 0);
    return PyObject_CallFunctionObjArgs(w->slow, values[0], values[1], values[2], NULL);
}

static PyObject *try_write(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    Writer *w = (Writer *)self;
    if (given != 2 || names)
        return try_write_named(w, args, given, names);
    outcome result = writer_add(w, args[0], args[1], 0);
    return result != SLOW ? answer(w, result) : PyObject_CallFunction(w->slow, "OOi", args[0], args[1], 0);
}

static PyObject *put(PyObject *self, PyObject *args) {
    Writer *w = (Writer *)self;
    PyObject *parts;
    unsigned long long nbytes, shift, step;
    unsigned char tag;
    if (!PyArg_ParseTuple(args, "bO!KKK", &tag, &PyList_Type, &parts, &nbytes, &shift, &step))
        return NULL;
    if (shift >= WORD || nbytes > w->capacity || step != frame_bytes(nbytes, shift) || step > w->capacity / 2)
        return PyErr_Format(PyExc_ValueError, "%llu bytes are no frame of this ring", nbytes);
    outcome result = writer_place(w, step);
    if (result != DONE)
        return result == FULL ? Py_NewRef(Py_False) : NULL;
    char *at = writer_spot(w) + FRAME_HEADER + shift, *end = at + nbytes;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); i++) {
        Py_buffer part;
        if (PyObject_GetBuffer(PyList_GET_ITEM(parts, i), &part, PyBUF_SIMPLE) < 0)
            return NULL;
        if (part.len <= end - at)
            memcpy(at, part.buf, (size_t)part.len);
        at += part.len;
        PyBuffer_Release(&part);
        if (at > end)
            return PyErr_Format(PyExc_ValueError, "the parts have more than %llu bytes", nbytes);
    }
    writer_commit(w, tag, nbytes, shift, step);
    Py_RETURN_TRUE;
}

/* How many of frames[first:] were committed; -1 with an error set. `last` is what the last one met. */
static Py_ssize_t writer_add_many(Writer *w, PyObject *frames, Py_ssize_t first, outcome *last) {
    Py_ssize_t next = first;
    *last = SLOW;
    if (PyList_Check(frames) || PyTuple_Check(frames))
        while (next >= 0 && next < PySequence_Fast_GET_SIZE(frames)) {
            PyObject *frame = PySequence_Fast_GET_ITEM(frames, next);
            *last = SLOW;
            if (!PyTuple_CheckExact(frame) || PyTuple_GET_SIZE(frame) != 2)
                break;
            /* Ours: a callback may change the list. */
            Py_INCREF(frame);
            *last = writer_add(w, PyTuple_GET_ITEM(frame, 0), PyTuple_GET_ITEM(frame, 1), 0);
            Py_DECREF(frame);
            if (*last == FAILED)
                return -1;
            if (*last != DONE)
                break;
            next++;
        }
    return next - first;
}

static PyObject *put_many(PyObject *self, PyObject *args) {
    PyObject *frames;
    Py_ssize_t first;
    outcome last;
    if (!PyArg_ParseTuple(args, "On", &frames, &first))
        return NULL;
    Py_ssize_t done = writer_add_many((Writer *)self, frames, first, &last);
    return done < 0 ? NULL : PyLong_FromSsize_t(done);
}

static PyObject *write_all(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Writer *w = (Writer *)self;
    outcome last;
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "write_all() takes frames and gives_up (%zd given)", given);
    int gives_up = PyObject_IsTrue(args[1]);
    Py_ssize_t done = gives_up < 0 ? -1 : writer_add_many(w, args[0], 0, &last);
    if (done < 0) {
        writer_rewind(w);
        return NULL;
    }
    bool is_full = gives_up && last == FULL;
    if (done && (is_full || done == PyObject_Length(args[0])) && !writer_publish(w))
        return NULL;
    return PyLong_FromSsize_t(is_full ? ~done : done);
}

static PyObject *place(PyObject *self, PyObject *step) {
    Writer *w = (Writer *)self;
    uint64_t bytes = PyLong_AsUnsignedLongLong(step);
    if (bytes == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    switch (writer_place(w, bytes)) {
    case FAILED:
        return NULL;
    case FULL:
        return PyLong_FromLong(-1);
    default:
        return PyLong_FromUnsignedLongLong(w->position & (w->capacity - 1));
    }
}

static PyObject *commit(PyObject *self, PyObject *args) {
    Writer *w = (Writer *)self;
    unsigned long long nbytes, shift, step;
    unsigned char tag;
    if (!PyArg_ParseTuple(args, "bKKK", &tag, &nbytes, &shift, &step))
        return NULL;
    if ((int64_t)(w->limit - w->position) < (int64_t)step)
        return PyErr_Format(PyExc_ValueError, "no room was placed for %llu bytes", step);
    writer_commit(w, tag, nbytes, shift, step);
    Py_RETURN_NONE;
}

static PyObject *publish(PyObject *self, PyObject *Py_UNUSED(none)) {
    return writer_publish((Writer *)self) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *rewind_(PyObject *self, PyObject *Py_UNUSED(none)) {
    writer_rewind((Writer *)self);
    Py_RETURN_NONE;
}

static PyObject *writer_position(PyObject *self, PyObject *Py_UNUSED(none)) {
    return PyLong_FromUnsignedLongLong(((Writer *)self)->position);
}

static PyObject *freeze(PyObject *self, PyObject *Py_UNUSED(none)) {
    ((Writer *)self)->frozen = true;
    Py_RETURN_NONE;
}

static PyObject *writer_keep_bell(PyObject *self, PyObject *args) {
    Py_ssize_t slot;
    int fd;
    if (!PyArg_ParseTuple(args, "ni", &slot, &fd))
        return NULL;
    if (slot >= 0 && slot < FLAGS_A_WORD)
        ((Writer *)self)->bells[slot] = fd;
    Py_RETURN_NONE;
}

static PyObject *writer_shut(PyObject *self, PyObject *Py_UNUSED(none)) {
    ((Writer *)self)->shut = true;
    Py_RETURN_NONE;
}

PyObject *make_writer(PyObject *Py_UNUSED(module), PyObject *args, PyObject *named) {
    static char *parameters[] = {"own", "words", "data",  "wake", "control", "evicted", "capacity", "position",
                                 "seq", "slots", "many",  "slow", "grant",   "wake_up", "fence",    NULL};
    Writer *w = (Writer *)Writer_Type->tp_alloc(Writer_Type, 0);
    PyObject *words, *slow, *grant, *wake_up, *fence;
    unsigned long long capacity, position, seq;
    Py_ssize_t slots;
    int many;
    if (!w)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "w*Ow*y*y*y*$KKKnpOOOO", parameters, &w->own_page, &words,
                                     &w->data_pages, &w->wake_page, &w->control_pages, &w->evicted_words, &capacity,
                                     &position, &seq, &slots, &many, &slow,
                                     &grant, &wake_up, &fence) ||
        !check_pages(capacity, position, &w->data_pages, &w->own_page, &w->wake_page) ||
        !check_pages(capacity, position, &w->data_pages, &w->own_page, &w->control_pages) || slots < 0 ||
        slots > w->evicted_words.len / WORD || slots > (w->control_pages.len - SLOT_PAGES) / PAGE) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "these are no pages of so many slots");
        Py_DECREF(w);
        return NULL;
    }
    w->own = w->own_page.buf;
    w->wake = w->wake_page.buf;
    w->control = w->control_pages.buf;
    w->evicted = w->evicted_words.buf;
    w->slots = (size_t)slots;
    w->data = w->data_pages.buf;
    w->capacity = capacity;
    w->position = w->limit = position;
    w->seq = seq;
    w->many = many;
    w->counts_full = true;
    w->pace = pace_for(capacity, position);
    memset(w->bells, -1, sizeof w->bells);
    w->fence = fence != Py_None;
    w->slow = Py_NewRef(slow);
    w->grant = Py_NewRef(grant);
    w->wake_up = Py_NewRef(wake_up);
    return (PyObject *)w;
}

static int writer_traverse(PyObject *self, visitproc visit, void *arg) {
    Writer *w = (Writer *)self;
    Py_VISIT(w->slow);
    Py_VISIT(w->grant);
    Py_VISIT(w->wake_up);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int writer_clear(PyObject *self) {
    Writer *w = (Writer *)self;
    w->frozen = true;
    Py_CLEAR(w->slow);
    Py_CLEAR(w->grant);
    Py_CLEAR(w->wake_up);
    return 0;
}

/* Pages before callbacks: releasing a buffer runs nothing. */
static void writer_dealloc(PyObject *self) {
    Writer *w = (Writer *)self;
    PyObject_GC_UnTrack(self);
    PyBuffer_Release(&w->own_page);
    PyBuffer_Release(&w->wake_page);
    PyBuffer_Release(&w->control_pages);
    PyBuffer_Release(&w->evicted_words);
    PyBuffer_Release(&w->data_pages);
    writer_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(Writer_Type);
}

static PyMethodDef writer_methods[] = {
    {"try_write", FUNCTION(try_write), METH_FASTCALL | METH_KEYWORDS,
     "try_write(tag, payload, align_at=0) -> bool; see Producer.try_write."},
    {"put", put, METH_VARARGS, NULL},
    {"put_many", put_many, METH_VARARGS, NULL},
    {"write_all", FUNCTION(write_all), METH_FASTCALL, NULL},
    {"place", place, METH_O, NULL},
    {"commit", commit, METH_VARARGS, NULL},
    {"publish", publish, METH_NOARGS, NULL},
    {"rewind", rewind_, METH_NOARGS, NULL},
    {"position", writer_position, METH_NOARGS, NULL},
    {"freeze", freeze, METH_NOARGS, NULL},
    {"keep_bell", writer_keep_bell, METH_VARARGS, "Ring the consumer in a slot through this descriptor."},
    {"shut", writer_shut, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef writer_members[] = {
    {"counts_full", T_BOOL, offsetof(Writer, counts_full), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    SLOT(Py_tp_methods, writer_methods), SLOT(Py_tp_members, writer_members), SLOT(Py_tp_traverse, writer_traverse), SLOT(Py_tp_clear, writer_clear),
    SLOT(Py_tp_dealloc, writer_dealloc), {0, NULL}};

PyType_Spec writer_spec = {
    "ringbuf._cops.Writer", sizeof(Writer), 0, OURS | Py_TPFLAGS_HAVE_GC, writer_slots};
