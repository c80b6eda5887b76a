/* Padded rows without their padding: how long they are, where a value stands, and a copy of their ids.
 *
 * A row is `width` or `lengths[i]` values from `first[i]` on, in a buffer that may be a whole
 * mapped file. `first`, `lengths`, `runs` and `to` are int64; a run is (row, start in the row,
 * length), in order. paddedrows.py has the same in numpy.
 *
 * prefix_lengths(mask, first, width, lengths) -> False if some row is not ones and then zeros
 * find_runs(values, first, lengths, value, runs) -> number of runs; stores as many as have room
 * copy_rows(ids, size, first, lengths, runs, to, out, out_size, last, run_last, shift)
 *     -> False if an id is above `last`, or one in a run above `run_last`. Row i goes to out[to[i]]
 *     and on, its runs get `shift` more. Ids are read unsigned, so that one below zero is above
 *     any last.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct { int64_t row, start, length; } Run;

static int all_equal(const uint8_t *at, int64_t count, uint8_t value)
{
    return count == 0 || (at[0] == value && memcmp(at, at + 1, (size_t)count - 1) == 0);
}

/* The place of the first value that differs, looking at eight at a time. */
static int64_t end_of_run(const uint8_t *at, int64_t count, uint8_t value)
{
    uint64_t word, wanted = 0x0101010101010101ULL * value;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        memcpy(&word, at + i, 8);
        if (word != wanted)
            break;
    }
    while (i < count && at[i] == value)
        i++;
    return i;
}

static int measure(const uint8_t *mask, const int64_t *first, int64_t num_rows, int64_t width,
                   int64_t *lengths)
{
    for (int64_t i = 0; i < num_rows; i++) {
        const uint8_t *row = mask + first[i], *end = memchr(row, 0, (size_t)width);
        lengths[i] = end ? end - row : width;
        if (!all_equal(row, lengths[i], 1) || !all_equal(row + lengths[i], width - lengths[i], 0))
            return 0;
    }
    return 1;
}

static int64_t look_for_runs(const uint8_t *values, const int64_t *first, const int64_t *lengths,
                             int64_t num_rows, uint8_t value, Run *runs, int64_t room)
{
    int64_t count = 0;
    for (int64_t i = 0; i < num_rows; i++) {
        const uint8_t *row = values + first[i], *end = row + lengths[i], *at = row;
        while (at < end && (at = memchr(at, value, (size_t)(end - at)))) {
            int64_t length = end_of_run(at, end - at, value);
            if (count < room)
                runs[count] = (Run){i, at - row, length};
            count++;
            at += length;
        }
    }
    return count;
}

#define COPY(NAME, FROM, TO)                                                                       \
    static int NAME(const void *source, int64_t at, int64_t count, void *target, int64_t to,       \
                    uint32_t last, uint32_t shift)                                                 \
    {                                                                                              \
        const FROM *ids = (const FROM *)source + at;                                               \
        TO *out = (TO *)target + to;                                                               \
        FROM limit = (FROM)last, above = 0;                                                        \
        TO more = (TO)shift;                                                                       \
        for (int64_t i = 0; i < count; i++) {                                                      \
            above |= (FROM)(ids[i] > limit);                                                       \
            out[i] = (TO)((TO)ids[i] + more);                                                      \
        }                                                                                          \
        return above == 0;                                                                         \
    }

COPY(copy_2_2, uint16_t, uint16_t)
COPY(copy_2_4, uint16_t, uint32_t)
COPY(copy_4_2, uint32_t, uint16_t)
COPY(copy_4_4, uint32_t, uint32_t)

typedef int (*Copy)(const void *, int64_t, int64_t, void *, int64_t, uint32_t, uint32_t);

static Copy copy_of(Py_ssize_t size, Py_ssize_t out_size)
{
    if (size == 2)
        return out_size == 2 ? copy_2_2 : out_size == 4 ? copy_2_4 : NULL;
    return size != 4 ? NULL : out_size == 2 ? copy_4_2 : out_size == 4 ? copy_4_4 : NULL;
}

/* Returns 1 if all is well, 0 if an id is too large, -1 if runs do not fit the rows. */
static int copy_all(const void *ids, const int64_t *first, const int64_t *lengths,
                    int64_t num_rows, const Run *run, const Run *last_run, const int64_t *to,
                    void *out, Copy copy, uint32_t last, uint32_t run_last, uint32_t shift)
{
    int good = 1;
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t at = 0;
        for (; run < last_run && run->row == i; run++) {
            if (run->start < at || run->length < 0 || run->length > lengths[i] - run->start)
                return -1;
            good &= copy(ids, first[i] + at, run->start - at, out, to[i] + at, last, 0);
            at = run->start + run->length;
            good &= copy(ids, first[i] + run->start, run->length, out, to[i] + run->start,
                         run_last, shift);
        }
        good &= copy(ids, first[i] + at, lengths[i] - at, out, to[i] + at, last, 0);
    }
    return run == last_run ? good : -1;
}

/* Whether every row lies in `count` values. */
static int are_inside(const Py_buffer *first, const Py_buffer *lengths, int64_t width,
                      int64_t count)
{
    int64_t num_rows = first->len / 8;
    const int64_t *begin = first->buf, *length = lengths ? lengths->buf : NULL;
    if (lengths && lengths->len != first->len)
        return 0;
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t wanted = length ? length[i] : width;
        if (wanted < 0 || begin[i] < 0 || begin[i] > count || wanted > count - begin[i])
            return 0;
    }
    return 1;
}

static PyObject *refuse(void)
{
    PyErr_SetString(PyExc_ValueError, "the buffers do not fit each other");
    return NULL;
}

static PyObject *prefix_lengths(PyObject *module, PyObject *args)
{
    Py_buffer mask, first, lengths;
    Py_ssize_t width;
    int good = -1;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*nw*", &mask, &first, &width, &lengths))
        return NULL;
    if (lengths.len == first.len && are_inside(&first, NULL, width, mask.len)) {
        Py_BEGIN_ALLOW_THREADS
        good = measure(mask.buf, first.buf, first.len / 8, width, lengths.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&mask);
    PyBuffer_Release(&first);
    PyBuffer_Release(&lengths);
    return good < 0 ? refuse() : PyBool_FromLong(good);
}

static PyObject *find_runs(PyObject *module, PyObject *args)
{
    Py_buffer values, first, lengths, runs;
    unsigned char value;
    int64_t count = -1;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*bw*", &values, &first, &lengths, &value, &runs))
        return NULL;
    if (are_inside(&first, &lengths, 0, values.len)) {
        Py_BEGIN_ALLOW_THREADS
        count = look_for_runs(values.buf, first.buf, lengths.buf, first.len / 8, value, runs.buf,
                              runs.len / (Py_ssize_t)sizeof(Run));
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&first);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&runs);
    return count < 0 ? refuse() : PyLong_FromLongLong(count);
}

static PyObject *copy_rows(PyObject *module, PyObject *args)
{
    Py_buffer ids, first, lengths, runs, to, out;
    Py_ssize_t size, out_size;
    unsigned int last, run_last, shift;
    int good = -1;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*ny*y*y*y*w*nIII", &ids, &size, &first, &lengths, &runs, &to,
                          &out, &out_size, &last, &run_last, &shift))
        return NULL;
    Copy copy = copy_of(size, out_size);
    if (copy && are_inside(&first, &lengths, 0, ids.len / size) &&
        are_inside(&to, &lengths, 0, out.len / out_size)) {
        const Run *run = runs.buf;
        Py_BEGIN_ALLOW_THREADS
        good = copy_all(ids.buf, first.buf, lengths.buf, first.len / 8, run,
                        run + runs.len / (Py_ssize_t)sizeof(Run), to.buf, out.buf, copy, last,
                        run_last, shift);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&ids);
    PyBuffer_Release(&first);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&runs);
    PyBuffer_Release(&to);
    PyBuffer_Release(&out);
    return good < 0 ? refuse() : PyBool_FromLong(good);
}

static PyMethodDef methods[] = {
    {"prefix_lengths", prefix_lengths, METH_VARARGS, "Measure rows of ones and then zeros."},
    {"find_runs", find_runs, METH_VARARGS, "Find where a value stands; returns how many runs."},
    {"copy_rows", copy_rows, METH_VARARGS, "Copy rows and shift their runs."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_paddedrows", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__paddedrows(void)
{
    return PyModule_Create(&module);
}
