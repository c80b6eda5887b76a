/* Weaves rows of bytes from columns, and writes numbers as text.
 *
 * weave(columns, out) copies to `out`, row by row, the part of each column that belongs to the row.
 * A column is (data, starts, lengths): row i is data[starts[i] : starts[i] + lengths[i]], both
 * int64, of any stride, so that what all rows share is stored once. `out` must be just large enough.
 *
 * write(columns, descriptor) writes the same bytes to a file, through a piece of memory that stays
 * in the processor's cache, and lets other threads run from the first row to the last.
 *
 * write_all(content, descriptor) writes any bytes to a file. Both write pieces of 256 KiB: of larger
 * ones the system makes larger pieces of its cache, for which it needs memory that lies together,
 * and in a virtual machine that is memory which the host must give first.
 *
 * number_texts(values, itemsize, counts, separator, opening, closing, text, bounds) -> bytes written
 * to `text`. Row i has the next counts[i] of the unsigned `values` of 1, 2, 4 or 8 bytes as decimal
 * digits, with the separator of 1 or 2 bytes between them and one byte, or none, on either side.
 * `text` must have room for as many digits as the largest of them may have (3, 5, 10 or 20) and 2
 * bytes more for each value, 2 bytes for each row, and 8 bytes more at its end. `bounds` gets the
 * int64 byte at which each row begins, and the end.
 *
 * weave.py and numbertext.py have the same in Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (1 << 18)

typedef struct {
    Py_buffer data, starts, lengths;
} Column;

static int64_t item(const Py_buffer *numbers, Py_ssize_t row)
{
    return *(const int64_t *)((const char *)numbers->buf + row * numbers->strides[0]);
}

static int open_numbers(PyObject *object, Py_buffer *numbers)
{
    if (PyObject_GetBuffer(object, numbers, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return -1;
    if (numbers->ndim == 1 && numbers->itemsize == 8 && strchr("lq", numbers->format[0]) != NULL)
        return 0;
    PyBuffer_Release(numbers);
    PyErr_SetString(PyExc_ValueError, "starts and lengths must be flat arrays of int64");
    return -1;
}

static void close_column(Column *column)
{
    PyBuffer_Release(&column->data);
    PyBuffer_Release(&column->starts);
    PyBuffer_Release(&column->lengths);
}

static int open_column(PyObject *given, Column *column)
{
    PyObject *data, *starts, *lengths;
    memset(column, 0, sizeof *column);
    if (!PyArg_ParseTuple(given, "OOO", &data, &starts, &lengths))
        return -1;
    if (PyObject_GetBuffer(data, &column->data, PyBUF_SIMPLE) < 0 ||
        open_numbers(starts, &column->starts) < 0 || open_numbers(lengths, &column->lengths) < 0)
        return -1;
    return 0;
}

/* Where rows go: to memory, and from there to a file if there is one (`descriptor` >= 0). */
typedef struct {
    char *memory;
    Py_ssize_t size, used;
    int descriptor, error;
} Target;

enum { WHOLE, MISFIT, FAILED };

/* Writes to the file, a piece at a time. */
static int write_pieces(Target *target, const char *from, Py_ssize_t length)
{
    while (length > 0) {
        Py_ssize_t part = length < PIECE_BYTES ? length : PIECE_BYTES;
        ssize_t written = write(target->descriptor, from, (size_t)part);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            target->error = errno;
            return FAILED;
        }
        from += written;
        length -= written;
    }
    return WHOLE;
}

static int flush(Target *target)
{
    int result = write_pieces(target, target->memory, target->used);
    target->used = 0;
    return result;
}

static int put(Target *target, const char *from, Py_ssize_t length)
{
    while (length > target->size - target->used) {
        Py_ssize_t part = target->size - target->used;
        if (target->descriptor < 0)
            return MISFIT;
        memcpy(target->memory + target->used, from, (size_t)part);
        target->used += part;
        from += part;
        length -= part;
        if (flush(target) != WHOLE)
            return FAILED;
    }
    memcpy(target->memory + target->used, from, (size_t)length);
    target->used += length;
    return WHOLE;
}

static int put_rows_of(const Column *columns, Py_ssize_t num_columns, Target *target)
{
    Py_ssize_t num_rows = num_columns ? columns[0].starts.shape[0] : 0;
    for (Py_ssize_t row = 0; row < num_rows; row++)
        for (Py_ssize_t i = 0; i < num_columns; i++) {
            const Column *column = &columns[i];
            int64_t start = item(&column->starts, row), length = item(&column->lengths, row);
            int result;
            if (start < 0 || length < 0 || start > column->data.len ||
                length > column->data.len - start)
                return MISFIT;
            result = put(target, (const char *)column->data.buf + start, (Py_ssize_t)length);
            if (result != WHOLE)
                return result;
        }
    if (target->descriptor >= 0)
        return flush(target);
    return target->used == target->size ? WHOLE : MISFIT;
}

static int same_rows(const Column *columns, Py_ssize_t num_columns)
{
    for (Py_ssize_t i = 0; i < num_columns; i++)
        if (columns[i].starts.shape[0] != columns[0].starts.shape[0] ||
            columns[i].lengths.shape[0] != columns[0].starts.shape[0])
            return 0;
    return 1;
}

static int weave_opened(const Column *columns, Py_ssize_t num_columns, Target *target)
{
    int result = MISFIT;
    if (same_rows(columns, num_columns)) {
        Py_BEGIN_ALLOW_THREADS
        result = put_rows_of(columns, num_columns, target);
        Py_END_ALLOW_THREADS
    }
    if (result == MISFIT)
        PyErr_SetString(PyExc_ValueError, "the columns do not fit each other or their data");
    if (result == FAILED) {
        errno = target->error;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return result == WHOLE ? 0 : -1;
}

static int weave_all(PyObject *columns_given, Target *target)
{
    PyObject *given = PySequence_Fast(columns_given, "columns must be a sequence");
    Py_ssize_t num_columns = given == NULL ? 0 : PySequence_Fast_GET_SIZE(given), num_open = 0;
    Column *columns = PyMem_Calloc((size_t)num_columns + 1, sizeof(Column));
    int result = -1;
    if (given == NULL || columns == NULL)
        goto done;
    while (num_open < num_columns) {
        int opened = open_column(PySequence_Fast_GET_ITEM(given, num_open), &columns[num_open]);
        num_open++; /* half open ones are closed as well */
        if (opened < 0)
            goto done;
    }
    result = weave_opened(columns, num_columns, target);
done:
    for (Py_ssize_t i = 0; i < num_open; i++)
        close_column(&columns[i]);
    if (columns == NULL && given != NULL)
        PyErr_NoMemory();
    PyMem_Free(columns);
    Py_XDECREF(given);
    return result;
}

static PyObject *weave(PyObject *module, PyObject *args)
{
    PyObject *given;
    Py_buffer out;
    Target target = {NULL, 0, 0, -1, 0};
    int result;
    (void)module;
    if (!PyArg_ParseTuple(args, "Ow*", &given, &out))
        return NULL;
    target.memory = out.buf;
    target.size = out.len;
    result = weave_all(given, &target);
    PyBuffer_Release(&out);
    if (result < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *write_woven(PyObject *module, PyObject *args)
{
    PyObject *given;
    Target target = {NULL, PIECE_BYTES, 0, -1, 0};
    int result;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oi", &given, &target.descriptor))
        return NULL;
    if (target.descriptor < 0)
        return PyErr_Format(PyExc_ValueError, "%d is no file", target.descriptor);
    target.memory = PyMem_Malloc(PIECE_BYTES);
    if (target.memory == NULL)
        return PyErr_NoMemory();
    result = weave_all(given, &target);
    PyMem_Free(target.memory);
    if (result < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *write_all(PyObject *module, PyObject *args)
{
    Py_buffer content;
    Target target = {NULL, 0, 0, -1, 0};
    int result;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*i", &content, &target.descriptor))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = write_pieces(&target, content.buf, content.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&content);
    if (result == WHOLE)
        Py_RETURN_NONE;
    errno = target.error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the first digit must be the lowest byte; Python does it here"
#endif

#define TABLE_SIZE 65536
#define LAST_FOUR 10000

/* The digits of each number of 16 bits, the first one lowest, and in the top byte how many. */
static uint64_t table[TABLE_SIZE];

/* The last four digits of a larger number, zeros in front. */
static char last_four[LAST_FOUR][4];

static void fill_tables(void)
{
    char digits[8];
    for (int number = 0; number < TABLE_SIZE; number++) {
        memset(digits, 0, sizeof digits);
        digits[7] = (char)snprintf(digits, 7, "%d", number);
        memcpy(&table[number], digits, 8);
    }
    for (int number = 0; number < LAST_FOUR; number++) {
        snprintf(digits, sizeof digits, "%04d", number);
        memcpy(last_four[number], digits, 4);
    }
}

/* What stands after a number, as a word, and its bytes. */
typedef struct {
    uint64_t word;
    Py_ssize_t width;
} Separator;

/* Puts eight bytes at once; what comes next covers those that were too many. */
static inline char *put_small(char *to, uint64_t number, Separator after)
{
    uint64_t digits = table[number], count = digits >> 56;
    digits |= after.word << (8 * count);
    memcpy(to, &digits, 8);
    return to + count + after.width;
}

static char *put_number(char *to, uint64_t number, Separator after)
{
    static const Separator NOTHING = {0, 0};
    uint64_t first = number / LAST_FOUR;
    if (number < TABLE_SIZE)
        return put_small(to, number, after);
    to = first < TABLE_SIZE ? put_small(to, first, NOTHING) : put_number(to, first, NOTHING);
    memcpy(to, last_four[number % LAST_FOUR], 4);
    memcpy(to + 4, &after.word, 2);
    return to + 4 + after.width;
}

/* Masks are all single digits, which a compiler turns into a few steps for many. */
static char *put_digits(char *to, const uint8_t *values, Py_ssize_t count, char separator)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        to[2 * i] = (char)('0' + values[i]);
        to[2 * i + 1] = separator;
    }
    return to + 2 * count;
}

static int all_single(const uint8_t *values, Py_ssize_t count)
{
    uint8_t largest = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        largest = values[i] > largest ? values[i] : largest;
    return largest < 10;
}

typedef struct {
    Py_buffer values, counts, separator, opening, closing, text, bounds;
    Py_ssize_t itemsize;
} Texts;

/* Puts numbers with a separator after each. */
static char *put_numbers(char *to, const Texts *texts, Py_ssize_t at, Py_ssize_t count)
{
    const uint8_t *bytes = (const uint8_t *)texts->values.buf + at * texts->itemsize;
    Separator after = {0, texts->separator.len};
    memcpy(&after.word, texts->separator.buf, (size_t)after.width);
    if (texts->itemsize == 1 && after.width == 1 && all_single(bytes, count))
        return put_digits(to, bytes, count, (char)after.word);
    switch (texts->itemsize) {
    case 1:
        for (Py_ssize_t i = 0; i < count; i++)
            to = put_small(to, bytes[i], after);
        break;
    case 2:
        for (Py_ssize_t i = 0; i < count; i++)
            to = put_small(to, ((const uint16_t *)bytes)[i], after);
        break;
    case 4:
        for (Py_ssize_t i = 0; i < count; i++)
            to = put_number(to, ((const uint32_t *)bytes)[i], after);
        break;
    default:
        for (Py_ssize_t i = 0; i < count; i++)
            to = put_number(to, ((const uint64_t *)bytes)[i], after);
    }
    return to;
}

static char *put_piece(char *to, const Py_buffer *piece)
{
    memcpy(to, piece->buf, (size_t)piece->len);
    return to + piece->len;
}

static Py_ssize_t put_rows(const Texts *texts)
{
    char *to = texts->text.buf;
    const int64_t *counts = texts->counts.buf;
    int64_t *bounds = texts->bounds.buf;
    Py_ssize_t at = 0, num_rows = texts->counts.len / 8;
    for (Py_ssize_t i = 0; i < num_rows; i++) {
        bounds[i] = to - (char *)texts->text.buf;
        to = put_piece(to, &texts->opening);
        to = put_numbers(to, texts, at, (Py_ssize_t)counts[i]);
        if (counts[i] > 0)
            to -= texts->separator.len;
        to = put_piece(to, &texts->closing);
        at += (Py_ssize_t)counts[i];
    }
    bounds[num_rows] = to - (char *)texts->text.buf;
    return bounds[num_rows];
}

static int texts_fit(const Texts *texts)
{
    static const Py_ssize_t ROOM[9] = {0, 5, 7, 0, 12, 0, 0, 0, 22};
    const int64_t *counts = texts->counts.buf;
    Py_ssize_t total = 0, num_rows = texts->counts.len / 8, itemsize = texts->itemsize;
    if (itemsize < 1 || itemsize > 8 || ROOM[itemsize] == 0)
        return 0;
    for (Py_ssize_t i = 0; i < num_rows; i++) {
        if (counts[i] < 0 || counts[i] > texts->values.len / itemsize - total)
            return 0;
        total += (Py_ssize_t)counts[i];
    }
    return total == texts->values.len / itemsize && texts->bounds.len == 8 * (num_rows + 1) &&
           (texts->separator.len == 1 || texts->separator.len == 2) && texts->opening.len <= 1 &&
           texts->closing.len <= 1 && texts->text.len >= ROOM[itemsize] * total + 2 * num_rows + 8;
}

static PyObject *number_texts(PyObject *module, PyObject *args)
{
    Texts texts;
    Py_ssize_t written = -1;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*ny*y*y*y*w*w*", &texts.values, &texts.itemsize, &texts.counts,
                          &texts.separator, &texts.opening, &texts.closing, &texts.text,
                          &texts.bounds))
        return NULL;
    if (texts_fit(&texts)) {
        Py_BEGIN_ALLOW_THREADS
        written = put_rows(&texts);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit each other");
    PyBuffer_Release(&texts.values);
    PyBuffer_Release(&texts.counts);
    PyBuffer_Release(&texts.separator);
    PyBuffer_Release(&texts.opening);
    PyBuffer_Release(&texts.closing);
    PyBuffer_Release(&texts.text);
    PyBuffer_Release(&texts.bounds);
    return written < 0 ? NULL : PyLong_FromSsize_t(written);
}

static PyMethodDef methods[] = {
    {"weave", weave, METH_VARARGS, "Copy the rows of columns, one after the other, to a buffer."},
    {"write", write_woven, METH_VARARGS, "Write the same bytes to the file of a descriptor."},
    {"write_all", write_all, METH_VARARGS, "Write bytes to the file of a descriptor."},
    {"number_texts", number_texts, METH_VARARGS, "Write numbers as text; returns the bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_weave", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__weave(void)
{
    fill_tables();
    return PyModule_Create(&module);
}
