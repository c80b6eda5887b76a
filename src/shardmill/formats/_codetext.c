/* Writes image codes as JSON text: [12, 7, 4095] for each picture, "no" for one without codes.
 *
 * code_texts(codes, itemsize, lengths, text, bounds) -> number of bytes written to `text`. `codes`
 * holds unsigned numbers of 1 or 2 bytes, `lengths` the int64 number of codes of each picture;
 * `text` must have 7 bytes for each code, 2 for each picture and 8 more. `bounds` gets the int64
 * byte at which each text begins, and the end. codetext.py has the same in Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NUM_ENTRIES 65536
#define MAX_DIGITS 5

/* The text of each code with ", " after it, in 7 bytes, and its length in the eighth. */
static char table[NUM_ENTRIES][8];

static void fill_table(void)
{
    for (int code = 0; code < NUM_ENTRIES; code++)
        table[code][7] = (char)snprintf(table[code], 8, "%d, ", code);
}

static char *put_codes(char *to, const void *codes, Py_ssize_t itemsize, Py_ssize_t at,
                       Py_ssize_t count)
{
    for (Py_ssize_t i = at; i < at + count; i++) {
        unsigned code = itemsize == 1 ? ((const uint8_t *)codes)[i] : ((const uint16_t *)codes)[i];
        /* Eight bytes at once; the next code covers those that were too many. */
        memcpy(to, table[code], 8);
        to += table[code][7];
    }
    return to;
}

static Py_ssize_t put_texts(const void *codes, Py_ssize_t itemsize, const int64_t *lengths,
                            Py_ssize_t num_texts, char *text, int64_t *bounds)
{
    char *to = text;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < num_texts; i++) {
        bounds[i] = to - text;
        if (lengths[i] == 0) {
            memcpy(to, "no", 2);
            to += 2;
            continue;
        }
        *to++ = '[';
        to = put_codes(to, codes, itemsize, at, lengths[i]);
        to[-2] = ']';
        to -= 1;
        at += lengths[i];
    }
    bounds[num_texts] = to - text;
    return to - text;
}

static int fits(const Py_buffer *codes, Py_ssize_t itemsize, const Py_buffer *lengths,
                const Py_buffer *text, const Py_buffer *bounds)
{
    Py_ssize_t num_codes = codes->len / itemsize, num_texts = lengths->len / 8, total = 0;
    const int64_t *length = lengths->buf;
    for (Py_ssize_t i = 0; i < num_texts; i++) {
        if (length[i] < 0 || length[i] > num_codes - total)
            return 0;
        total += length[i];
    }
    return total == num_codes && bounds->len == 8 * (num_texts + 1) &&
           text->len >= (MAX_DIGITS + 2) * num_codes + 2 * num_texts + 8;
}

static PyObject *code_texts(PyObject *module, PyObject *args)
{
    Py_buffer codes, lengths, text, bounds;
    Py_ssize_t itemsize, written = -1;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*ny*w*w*", &codes, &itemsize, &lengths, &text, &bounds))
        return NULL;
    if ((itemsize == 1 || itemsize == 2) && fits(&codes, itemsize, &lengths, &text, &bounds)) {
        Py_BEGIN_ALLOW_THREADS
        written = put_texts(codes.buf, itemsize, lengths.buf, lengths.len / 8, text.buf, bounds.buf);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit each other");
    PyBuffer_Release(&codes);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&text);
    PyBuffer_Release(&bounds);
    return written < 0 ? NULL : PyLong_FromSsize_t(written);
}

static PyMethodDef methods[] = {
    {"code_texts", code_texts, METH_VARARGS, "Write codes as JSON text; returns the bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_codetext", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__codetext(void)
{
    fill_table();
    return PyModule_Create(&module);
}
