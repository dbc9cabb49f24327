/* The module of the C body; see _cops.h. */

#include "_cops.h"

PyObject *FrameInUse;
PyTypeObject *Frame_Type, *Writer_Type, *Reader_Type, *Each_Type;

bool ask(PyObject *callback, uint64_t *answer, const char *format, ...) {
    va_list values;
    if (!callback) {
        PyErr_SetString(PyExc_ReferenceError, "this end of the ring was collected");
        return false;
    }
    va_start(values, format);
    PyObject *arguments = Py_VaBuildValue(format, values);
    va_end(values);
    PyObject *result = arguments ? PyObject_CallObject(callback, arguments) : NULL;
    Py_XDECREF(arguments);
    if (!result)
        return false;
    *answer = PyLong_AsUnsignedLongLong(result);
    Py_DECREF(result);
    return *answer != (uint64_t)-1 || !PyErr_Occurred();
}

bool check_pages(uint64_t capacity, uint64_t position, const Py_buffer *data, const Py_buffer *page,
                        const Py_buffer *other) {
    bool fits = capacity >= 64 && !(capacity & (capacity - 1)) && (uint64_t)data->len >= capacity &&
                page->len >= PAGE && other->len >= PAGE && !(position & (WORD - 1)) &&
                !(((uintptr_t)data->buf | (uintptr_t)page->buf | (uintptr_t)other->buf) & (WORD - 1));
    if (!fits)
        PyErr_Format(PyExc_ValueError, "these are no pages of a ring of %llu bytes", (unsigned long long)capacity);
    return fits;
}

static PyObject *fence(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    atomic_thread_fence(memory_order_seq_cst);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"make_writer", FUNCTION(make_writer), METH_VARARGS | METH_KEYWORDS, "See ringbuf._pyops.make_writer."},
    {"make_reader", FUNCTION(make_reader), METH_VARARGS | METH_KEYWORDS, "See ringbuf._pyops.make_reader."},
    {"fence", fence, METH_NOARGS, "A full barrier."},
    {"private", frame_private, METH_O, "See ringbuf.frame.private."},
    {NULL, NULL, 0, NULL},
};

/* A build that was left over from another layout must not touch this one's segments. */
static bool same_layout(void) {
    static const struct {
        const char *name;
        long value;
    } ours[] = {
#define OUR(name) {#name, name}
        OUR(WORD), OUR(FRAME_HEADER), OUR(TAG_MASK), OUR(SHIFT_BIT), OUR(SHIFT_MASK), OUR(LENGTH_BIT),
        OUR(P_POS), OUR(P_FRAMES), OUR(P_FLOOR), OUR(P_FLOOR_SEQ), OUR(P_FLOOR_SEQ_POS), OUR(P_WAITING),
        OUR(P_STATE), OUR(P_ENDED), OUR(P_PADDING), OUR(P_FULL_EVENTS), OUR(P_FULL_NS),
        OUR(P_HIGH_WATER), OUR(P_RUNG), OUR(P_SKIPPED),
        OUR(P_RUNG_GENERATIONS), OUR(STATE_LIVE), OUR(C_CURSOR), OUR(C_STATE), OUR(C_LEASES),
        OUR(C_OLDEST_LEASE), OUR(C_WAKEUPS), OUR(C_RUNG), OUR(C_ATTACHMENT_BIT), OUR(SLOT_FREE), OUR(SLOT_LIVE),
        OUR(PAGE), OUR(SLOT_PAGES),
    };
    PyObject *layout = PyImport_ImportModule("ringbuf.layout");
    bool same = layout != NULL;
    for (size_t i = 0; same && i < sizeof ours / sizeof *ours; i++) {
        PyObject *theirs = PyObject_GetAttrString(layout, ours[i].name);
        same = theirs && PyLong_AsLong(theirs) == ours[i].value;
        if (theirs && !same)
            PyErr_Format(PyExc_ImportError, "built for %s = %ld, but ringbuf.layout says %R: build it again",
                         ours[i].name, ours[i].value, theirs);
        Py_XDECREF(theirs);
    }
    Py_XDECREF(layout);
    return same;
}

static bool borrow(const char *module_name, const char *type_name, const char *const *methods) {
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *type = module ? PyObject_GetAttrString(module, type_name) : NULL;
    bool fine = type != NULL;
    for (; fine && *methods; methods++) {
        PyObject *method = PyObject_GetAttrString(type, *methods);
        fine = method && !PyObject_SetAttrString((PyObject *)Frame_Type, *methods, method);
        Py_XDECREF(method);
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    return fine;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "ringbuf._cops", .m_doc = "The C body of the ring.", .m_size = -1,
    .m_methods = functions};

PyMODINIT_FUNC PyInit__cops(void) {
    static const char *const context[] = {"__enter__", "__exit__", NULL};
    PyObject *errors = same_layout() ? PyImport_ImportModule("ringbuf.errors") : NULL;
    if (!errors || !(FrameInUse = PyObject_GetAttrString(errors, "FrameInUse")))
        return NULL;
    Py_DECREF(errors);
    Writer_Type = (PyTypeObject *)PyType_FromSpec(&writer_spec);
    Reader_Type = (PyTypeObject *)PyType_FromSpec(&reader_spec);
    Frame_Type = (PyTypeObject *)PyType_FromSpec(&frame_spec);
    Each_Type = (PyTypeObject *)PyType_FromSpec(&each_spec);
    /* What a frame does in a with statement is written once, in Python. */
    if (!Writer_Type || !Reader_Type || !Frame_Type || !Each_Type || !borrow("ringbuf.frame", "Frame", context))
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddObjectRef(module, "Frame", (PyObject *)Frame_Type) ||
                   PyModule_AddIntConstant(module, "COPY_LIMIT", COPY_LIMIT)))
        Py_CLEAR(module);
    return module;
}
