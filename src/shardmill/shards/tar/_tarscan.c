/* Walks the run of plain members that a WebDataset tar mostly is.
 *
 * scan(fd, at, num_bytes, names, starts, offsets, sizes) appends one entry for each member from
 * byte `at` on and returns the offset of the first member that is not plain. Plain means: a ustar
 * header of type '0' with an octal size and a right checksum, whose content lies inside the file,
 * perhaps behind one PAX header that says nothing of path, size or sparseness. Whatever else there
 * is, damage included, is left to the Python walker, which alone decides what it means.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 512
/* Room for a PAX pair, a header, a short json and the headers of the next member. */
#define WINDOW 4096
#define MAX_PAX 2048

typedef unsigned long long u64;

typedef struct {
    int fd;
    u64 num_bytes;
    u64 base;
    Py_ssize_t filled;
    unsigned char bytes[WINDOW];
} Window;

/* Returns `length` bytes at `at`, or NULL if the file or one window does not hold them. */
static const unsigned char *look(Window *w, u64 at, size_t length)
{
    if (at >= w->base && at + length <= w->base + (u64)w->filled)
        return w->bytes + (at - w->base);
    if (length > WINDOW || at > w->num_bytes || length > w->num_bytes - at)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    w->filled = pread(w->fd, w->bytes, WINDOW, (off_t)at);
    Py_END_ALLOW_THREADS
    w->base = at;
    if (w->filled < 0)
        w->filled = 0;
    return (size_t)w->filled >= length ? w->bytes : NULL;
}

/* Eleven octal digits (six in a checksum) and their end; -1 for anything else. */
static long long octal(const unsigned char *field, int digits)
{
    long long value = 0;
    for (int i = 0; i < digits; i++) {
        if (field[i] < '0' || field[i] > '7')
            return -1;
        value = value * 8 + (field[i] - '0');
    }
    return field[digits] == 0 || field[digits] == ' ' ? value : -1;
}

static int sum_is_right(const unsigned char *header)
{
    unsigned sum = 8 * ' ';
    for (int i = 0; i < BLOCK; i++)
        sum += header[i];
    for (int i = 148; i < 156; i++)
        sum -= header[i];
    return octal(header + 148, 6) == (long long)sum;
}

static u64 padded(u64 size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

/* Returns the bytes of a PAX header that changes nothing of interest, 0 for any other header. */
static u64 harmless_pax(Window *w, u64 at, const unsigned char *header)
{
    long long size = octal(header + 124, 11);
    if (size < 0 || size > MAX_PAX || !sum_is_right(header))
        return 0;
    const unsigned char *content = look(w, at, BLOCK + (size_t)size);
    if (content == NULL)
        return 0;
    content += BLOCK;
    if (memmem(content, (size_t)size, "path=", 5) || memmem(content, (size_t)size, "size=", 5) ||
        memmem(content, (size_t)size, "GNU.sparse", 10))
        return 0;
    return BLOCK + padded((u64)size);
}

static PyObject *member_name(const unsigned char *header)
{
    char name[257];
    size_t length = 0;
    if (memcmp(header + 257, "ustar\0", 6) == 0 && header[345]) {
        length = strnlen((const char *)header + 345, 155);
        memcpy(name, header + 345, length);
        name[length++] = '/';
    }
    size_t rest = strnlen((const char *)header, 100);
    memcpy(name + length, header, rest);
    return PyUnicode_DecodeUTF8(name, (Py_ssize_t)(length + rest), "surrogateescape");
}

/* Appends a new reference and drops it; returns -1 with an exception set on failure. */
static int append(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

static PyObject *scan(PyObject *module, PyObject *args)
{
    Window w = {0};
    u64 at;
    PyObject *names, *starts, *offsets, *sizes;
    (void)module;
    if (!PyArg_ParseTuple(args, "iKKO!O!O!O!", &w.fd, &at, &w.num_bytes, &PyList_Type, &names,
                          &PyList_Type, &starts, &PyList_Type, &offsets, &PyList_Type, &sizes))
        return NULL;
    for (u64 count = 1;; count++) {
        if (count % 1024 == 0 && PyErr_CheckSignals() < 0)
            return NULL;
        u64 start = at, content;
        const unsigned char *header = look(&w, at, BLOCK);
        if (header != NULL && header[156] == 'x') {
            u64 length = harmless_pax(&w, at, header);
            header = length ? look(&w, at + length, BLOCK) : NULL;
            at += length;
        }
        long long size = header == NULL ? -1 : octal(header + 124, 11);
        content = at + BLOCK;
        if (size < 0 || header[156] != '0' || memcmp(header + 257, "ustar", 5) != 0 ||
            !sum_is_right(header) || padded((u64)size) > w.num_bytes - content)
            return PyLong_FromUnsignedLongLong(start);
        if (append(names, member_name(header)) < 0 ||
            append(starts, PyLong_FromUnsignedLongLong(start)) < 0 ||
            append(offsets, PyLong_FromUnsignedLongLong(content)) < 0 ||
            append(sizes, PyLong_FromLongLong(size)) < 0)
            return NULL;
        at = content + padded((u64)size);
    }
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, "Append the plain members from an offset on; return where they end."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tarscan", NULL, 0, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tarscan(void)
{
    return PyModule_Create(&definition);
}
