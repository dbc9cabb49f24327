/* Frames of the C body: copies, and leases that export the ring itself; see _cops.h and Frame in frame.py. And the
   iterator that hands them out one by one. */

#include "_cops.h"

/* It is released, or it dies: it gives its bytes back. */
static bool frame_end(Frame *f) {
    f->bytes = NULL;
    if (!f->leased)
        return true;
    Reader *r = f->reader;
    bool fine = reader_drop(r, f);
    Py_DECREF(r);
    return fine;
}

static void frame_dealloc(PyObject *self) {
    Frame *f = (Frame *)self;
    if (f->leased) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (!frame_end(f))
            PyErr_WriteUnraisable((PyObject *)Frame_Type);
        PyErr_Restore(kind, error, trace);
    }
    if (f->sparing && spares < SPARES) {
        f->bytes = (const char *)spare_frames;
        spare_frames = f;
        spares++;
        return;
    }
    PyObject_Free(f);
    Py_DECREF(Frame_Type);
}

static PyObject *frame_payload(PyObject *self, void *Py_UNUSED(closure)) {
    Frame *f = (Frame *)self;
    if (!f->bytes)
        return PyErr_Format(PyExc_ValueError, "frame %llu was released", (unsigned long long)f->seq);
    f->exporting = true;
    PyObject *view = PyMemoryView_FromObject(self);
    f->exporting = false;
    return view;
}

/* Only `payload` exports: the Python body has no other way, before 3.12. */
static int frame_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    Frame *f = (Frame *)self;
    if (!f->exporting) {
        view->obj = NULL;
        PyErr_SetString(PyExc_TypeError, "a bytes-like object is required, not 'Frame': use frame.payload");
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, (void *)f->bytes, f->nbytes, 1, flags) < 0)
        return -1;
    f->exports++;
    return 0;
}

static void frame_releasebuffer(PyObject *self, Py_buffer *Py_UNUSED(view)) { ((Frame *)self)->exports--; }

static PyObject *frame_release(PyObject *self, PyObject *Py_UNUSED(none)) {
    Frame *f = (Frame *)self;
    if (f->bytes && f->exports) {
        PyObject *error = PyObject_CallFunction(
            FrameInUse, "iN", f->exports, PyUnicode_FromFormat("frame %llu", (unsigned long long)f->seq));
        if (error)
            PyErr_SetObject(FrameInUse, error);
        Py_XDECREF(error);
        return NULL;
    }
    return !f->bytes || frame_end(f) ? Py_NewRef(Py_None) : NULL;
}

PyObject *frame_private(PyObject *Py_UNUSED(module), PyObject *frame) {
    if (!Py_IS_TYPE(frame, Frame_Type))
        return PyErr_Format(PyExc_TypeError, "private() takes a Frame, not %s", Py_TYPE(frame)->tp_name);
    Frame *f = (Frame *)frame;
    if (!f->bytes)
        return PyErr_Format(PyExc_ValueError, "frame %llu was released", (unsigned long long)f->seq);
    Frame *copy = frame_new((size_t)f->nbytes);
    if (!copy)
        return NULL;
    copy->seq = f->seq;
    copy->tag = f->tag;
    copy->nbytes = f->nbytes;
    copy->bytes = memcpy(copy->copy, f->bytes, (size_t)f->nbytes);
    PyObject *done = frame_release(frame, NULL);
    Py_XDECREF(done);
    if (!done)
        Py_CLEAR(copy);
    return (PyObject *)copy;
}

static Py_ssize_t frame_length(PyObject *self) {
    Frame *f = (Frame *)self;
    return f->bytes ? f->nbytes : 0;
}

static PyObject *frame_repr(PyObject *self) {
    Frame *f = (Frame *)self;
    if (!f->bytes)
        return PyUnicode_FromFormat("<Frame tag=%d seq=%llu released>", f->tag, (unsigned long long)f->seq);
    return PyUnicode_FromFormat(
        "<Frame tag=%d seq=%llu %zd bytes>", f->tag, (unsigned long long)f->seq, f->nbytes);
}

static PyMethodDef frame_methods[] = {
    {"release", frame_release, METH_NOARGS, "See ringbuf.frame.Frame.release."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef frame_getset[] = {
    {"payload", frame_payload, NULL, "See ringbuf.frame.Frame.payload.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef frame_members[] = {
    {"tag", T_UBYTE, offsetof(Frame, tag), READONLY, NULL},
    {"seq", T_ULONGLONG, offsetof(Frame, seq), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot frame_slots[] = {
    SLOT(Py_tp_doc, "One frame as a consumer got it; see ringbuf.frame.Frame."),
    SLOT(Py_tp_methods, frame_methods), SLOT(Py_tp_getset, frame_getset), SLOT(Py_tp_members, frame_members),
    SLOT(Py_tp_dealloc, frame_dealloc), SLOT(Py_tp_repr, frame_repr), SLOT(Py_mp_length, frame_length),
    SLOT(Py_sq_length, frame_length), SLOT(Py_bf_getbuffer, frame_getbuffer),
    SLOT(Py_bf_releasebuffer, frame_releasebuffer), {0, NULL}};

PyType_Spec frame_spec = {"ringbuf._cops.Frame", sizeof(Frame), 0, OURS, frame_slots};

/* ------------------------------------------------------------------------------------------------ iterating */

typedef struct {
    PyObject_HEAD
    Reader *reader;
    PyObject *consumer; /* waits, and knows the end */
    Py_ssize_t kept;    /* most payload bytes of a frame that is handed out as it is */
} Each;

PyObject *reader_each(PyObject *self, PyObject *args) {
    PyObject *consumer;
    Py_ssize_t kept;
    if (!PyArg_ParseTuple(args, "On", &consumer, &kept))
        return NULL;
    if (!PyIter_Check(consumer))
        return PyErr_Format(PyExc_TypeError, "%R is no iterator", consumer);
    Each *e = PyObject_GC_New(Each, Each_Type);
    if (!e)
        return NULL;
    e->reader = (Reader *)Py_NewRef(self);
    e->consumer = Py_NewRef(consumer);
    e->kept = kept;
    PyObject_GC_Track(e);
    return (PyObject *)e;
}

static PyObject *each_next(PyObject *self) {
    Each *e = (Each *)self;
    PyObject *frame = NULL;
    outcome result = reader_next(e->reader, SOON, &frame);
    if (result == FULL)
        return Py_TYPE(e->consumer)->tp_iternext(e->consumer);
    if (result == FAILED || ((Frame *)frame)->nbytes <= e->kept)
        return frame;
    PyObject *copy = frame_private(NULL, frame);
    Py_DECREF(frame);
    return copy;
}

static int each_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Each *)self)->reader);
    Py_VISIT(((Each *)self)->consumer);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void each_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_DECREF(((Each *)self)->reader);
    Py_DECREF(((Each *)self)->consumer);
    PyObject_GC_Del(self);
    Py_DECREF(Each_Type);
}

static PyType_Slot each_slots[] = {
    SLOT(Py_tp_iter, PyObject_SelfIter), SLOT(Py_tp_iternext, each_next), SLOT(Py_tp_traverse, each_traverse),
    SLOT(Py_tp_dealloc, each_dealloc), {0, NULL}};

PyType_Spec each_spec = {"ringbuf._cops.Each", sizeof(Each), 0, OURS | Py_TPFLAGS_HAVE_GC, each_slots};
