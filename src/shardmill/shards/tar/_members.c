/* Cuts the members of samples out of their tar, by number.
 *
 * MemberTable(first, offset, size, ext, exts) holds the columns of a tar's index (see index.py) and
 * the extensions; the arrays stay where they are. views(number, chunk, base) returns a dict of
 * extension and part of `chunk`, the bytes of the tar from `base` on; copies(...) returns bytes
 * instead. members.py has the same in Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define PAGE 4096
#define NUM_COLUMNS 4

typedef unsigned long long u64;

/* Columns in this order; the first three are u64, the extension is u16. */
enum { FIRST, OFFSET, SIZE, EXT };
static const Py_ssize_t WIDTH[NUM_COLUMNS] = {8, 8, 8, 2};

typedef struct {
    PyObject_HEAD
    PyObject *exts;
    Py_buffer columns[NUM_COLUMNS];
} MemberTable;

typedef struct {
    u64 first, last;
} Range;

static u64 at(const MemberTable *table, int column, u64 row)
{
    return ((const u64 *)table->columns[column].buf)[row];
}

static Py_ssize_t num_rows(const MemberTable *table, int column)
{
    return table->columns[column].len / WIDTH[column];
}

static int table_init(MemberTable *self, PyObject *args, PyObject *names)
{
    PyObject *columns[NUM_COLUMNS], *exts;
    if (names != NULL && PyDict_GET_SIZE(names) > 0) {
        PyErr_SetString(PyExc_TypeError, "MemberTable takes no keywords");
        return -1;
    }
    if (self->exts != NULL) {
        PyErr_SetString(PyExc_TypeError, "a MemberTable is made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OOOOO!", &columns[FIRST], &columns[OFFSET], &columns[SIZE],
                          &columns[EXT], &PyTuple_Type, &exts))
        return -1;
    for (int i = 0; i < NUM_COLUMNS; i++)
        if (PyObject_GetBuffer(columns[i], &self->columns[i], PyBUF_SIMPLE) < 0)
            return -1;
    self->exts = Py_NewRef(exts);
    if (num_rows(self, SIZE) == num_rows(self, OFFSET) &&
        num_rows(self, EXT) == num_rows(self, OFFSET))
        return 0;
    PyErr_SetString(PyExc_ValueError, "the columns of members differ in length");
    return -1;
}

static void table_free(MemberTable *self)
{
    for (int i = 0; i < NUM_COLUMNS; i++)
        PyBuffer_Release(&self->columns[i]);
    Py_XDECREF(self->exts);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* The members of a sample; an empty table, or a number or member outside it, is an IndexError. */
static int find(const MemberTable *self, PyObject *number, Range *range)
{
    Py_ssize_t sample = PyLong_AsSsize_t(number);
    if (sample == -1 && PyErr_Occurred())
        return -1;
    if (self->exts != NULL && sample >= 0 && sample < num_rows(self, FIRST) - 1) {
        *range = (Range){at(self, FIRST, (u64)sample), at(self, FIRST, (u64)sample + 1)};
        if (range->first <= range->last && range->last <= (u64)num_rows(self, OFFSET))
            return 0;
    }
    PyErr_Format(PyExc_IndexError, "sample %zd of %zd", sample, num_rows(self, FIRST) - 1);
    return -1;
}

static PyObject *view(PyObject *chunk, u64 start, u64 size)
{
    PyObject *from = PyLong_FromUnsignedLongLong(start);
    PyObject *to = PyLong_FromUnsignedLongLong(start + size);
    PyObject *slice = from == NULL || to == NULL ? NULL : PySlice_New(from, to, NULL);
    PyObject *part = slice == NULL ? NULL : PyObject_GetItem(chunk, slice);
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(slice);
    return part;
}

static PyObject *copy(const Py_buffer *bytes, u64 start, u64 size)
{
    if (start > (u64)bytes->len || size > (u64)bytes->len - start)
        return PyErr_Format(PyExc_IndexError, "a member of %llu bytes lies outside the chunk", size);
    const char *from = (const char *)bytes->buf + start;
    /* A processor reads ahead inside a page of memory, not from one to the next. */
    for (u64 page = PAGE; page < size; page += PAGE)
        __builtin_prefetch(from + page, 0, 2);
    return PyBytes_FromStringAndSize(from, (Py_ssize_t)size);
}

/* Shared by views and copies: `bytes` is the chunk's memory, or NULL to cut views. */
static PyObject *cut(const MemberTable *self, PyObject *const *args, const Py_buffer *bytes)
{
    Range range;
    u64 base = PyLong_AsUnsignedLongLong(args[2]);
    if ((base == (u64)-1 && PyErr_Occurred()) || find(self, args[0], &range) < 0)
        return NULL;
    PyObject *members = PyDict_New();
    for (u64 m = range.first; members != NULL && m < range.last; m++) {
        u64 start = at(self, OFFSET, m) - base, size = at(self, SIZE, m);
        u64 ext = ((const unsigned short *)self->columns[EXT].buf)[m];
        PyObject *part = NULL;
        if (ext >= (u64)PyTuple_GET_SIZE(self->exts))
            PyErr_Format(PyExc_IndexError, "member %llu has an unknown extension", m);
        else
            part = bytes == NULL ? view(args[1], start, size) : copy(bytes, start, size);
        if (part == NULL ||
            PyDict_SetItem(members, PyTuple_GET_ITEM(self->exts, (Py_ssize_t)ext), part) < 0)
            Py_CLEAR(members);
        Py_XDECREF(part);
    }
    return members;
}

static int three(Py_ssize_t num_args)
{
    if (num_args == 3)
        return 0;
    PyErr_Format(PyExc_TypeError, "expected number, chunk and base, got %zd values", num_args);
    return -1;
}

static PyObject *table_views(MemberTable *self, PyObject *const *args, Py_ssize_t num_args)
{
    return three(num_args) < 0 ? NULL : cut(self, args, NULL);
}

static PyObject *table_copies(MemberTable *self, PyObject *const *args, Py_ssize_t num_args)
{
    Py_buffer bytes;
    if (three(num_args) < 0 || PyObject_GetBuffer(args[1], &bytes, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *members = cut(self, args, &bytes);
    PyBuffer_Release(&bytes);
    return members;
}

static PyMethodDef methods[] = {
    {"views", (PyCFunction)(void (*)(void))table_views, METH_FASTCALL,
     "Return the members of a sample as parts of a chunk of its tar."},
    {"copies", (PyCFunction)(void (*)(void))table_copies, METH_FASTCALL,
     "Return the members of a sample as bytes."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject table_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardmill.shards.tar._members.MemberTable",
    .tp_basicsize = sizeof(MemberTable),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Where the members of each sample of a tar lie.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)table_init,
    .tp_dealloc = (destructor)table_free,
    .tp_methods = methods,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_members", NULL, 0, NULL,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__members(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddType(module, &table_type) < 0)
        Py_CLEAR(module);
    return module;
}
