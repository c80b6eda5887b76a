/* Reads raw rows of conversations for nemo.py, which has the same in Python.
 *
 * scan(rows) returns three bytearrays. The first has eight int64 for each row: characters and UTF-8
 * bytes of its text, its own count of text tokens or NONE, images and videos that it shows, whether
 * it has mm_inputs_meta, and how many entries of images and of videos that lists. The others have
 * six float64 for each entry of an image or a video: what it is, and its numbers.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define NUM_COLUMNS 8
#define NUM_VALUES 6
#define NONE INT64_MIN
#define MAX_NUMBER 9e15

enum { CHARS, BYTES, TOKENS, IMAGES, VIDEOS, HAS_META, IMAGE_ENTRIES, VIDEO_ENTRIES };
enum { MISSING, SIZE, COUNT, UNUSABLE };

typedef struct {
    char *data;
    size_t size, room, width;
} Table;

static PyObject *names[9];
enum { CONVERSATION, CONTENT, TYPE, TEXT, TEXT_TOKENS, META, IMAGES_META, VIDEOS_META, N_TOKENS };
static const char *const NAMES[9] = {"conversation",   "content",     "type",
                                     "text",           "_text_tokens", "mm_inputs_meta",
                                     "images_meta",    "videos_meta", "n_tokens"};

/* Room for one more row of a table, or NULL. */
static void *more(Table *table)
{
    if (table->size == table->room) {
        size_t room = table->room ? 2 * table->room : 1024;
        char *larger = PyMem_Realloc(table->data, room * table->width);
        if (larger == NULL)
            return PyErr_NoMemory();
        table->data = larger;
        table->room = room;
    }
    return table->data + table->width * table->size++;
}

static PyObject *finish(Table *table)
{
    return PyByteArray_FromStringAndSize(table->data, (Py_ssize_t)(table->size * table->width));
}

/* A value of a dict, borrowed; NULL where there is none or the thing is no dict. */
static PyObject *value(PyObject *thing, int name)
{
    if (thing == NULL || !PyDict_Check(thing))
        return NULL;
    PyObject *found = PyDict_GetItemWithError(thing, names[name]);
    if (found == NULL)
        PyErr_Clear();
    return found;
}

static int64_t utf8_bytes(PyObject *text)
{
    Py_ssize_t len = PyUnicode_GET_LENGTH(text);
    if (PyUnicode_IS_ASCII(text))
        return len;
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    int64_t bytes = 0;
    for (Py_ssize_t i = 0; i < len; i++) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);
        /* A lone surrogate cannot be encoded: "?" takes its place. */
        int is_surrogate = c >= 0xD800 && c < 0xE000;
        bytes += 1 + (c >= 0x80 && !is_surrogate) + (c >= 0x800 && !is_surrogate) + (c >= 0x10000);
    }
    return bytes;
}

static void add_text(int64_t *row, PyObject *text)
{
    if (text != NULL && PyUnicode_Check(text)) {
        row[CHARS] += PyUnicode_GET_LENGTH(text);
        row[BYTES] += utf8_bytes(text);
    }
}

static void add_item(int64_t *row, PyObject *item)
{
    PyObject *type = value(item, TYPE);
    if (type == NULL || !PyUnicode_Check(type))
        return;
    if (PyUnicode_CompareWithASCIIString(type, "text") == 0)
        add_text(row, value(item, TEXT));
    else if (PyUnicode_CompareWithASCIIString(type, "image") == 0)
        row[IMAGES]++;
    else if (PyUnicode_CompareWithASCIIString(type, "video") == 0)
        row[VIDEOS]++;
}

static void add_turn(int64_t *row, PyObject *turn)
{
    PyObject *content = value(turn, CONTENT);
    if (content == NULL)
        return;
    add_text(row, content);
    if (PyList_Check(content))
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(content); i++)
            add_item(row, PyList_GET_ITEM(content, i));
}

static int is_list(PyObject *thing)
{
    return thing != NULL && (PyList_Check(thing) || PyTuple_Check(thing));
}

/* A number that is finite and exact as float64; anything else is 0. */
static int number(PyObject *thing, double *found)
{
    if (PyFloat_Check(thing))
        *found = PyFloat_AS_DOUBLE(thing);
    else if (PyLong_Check(thing))
        *found = PyLong_AsDouble(thing);
    else
        return 0;
    if (PyErr_Occurred())
        PyErr_Clear();
    else if (isfinite(*found) && fabs(*found) < MAX_NUMBER)
        return 1;
    return 0;
}

static int read_sizes(double *entry, PyObject *given, int num)
{
    for (int i = 0; i < num; i++)
        if (!number(PySequence_Fast_GET_ITEM(given, i), &entry[1 + i]))
            return UNUSABLE;
    return SIZE;
}

static void read_entry(double *entry, PyObject *given, int num)
{
    int is = UNUSABLE;
    memset(entry, 0, NUM_VALUES * sizeof(double));
    if (given == Py_None) {
        is = MISSING;
    } else if (PyDict_Check(given)) {
        PyObject *count = value(given, N_TOKENS);
        if (count != NULL && PyLong_Check(count) && number(count, &entry[1]))
            is = COUNT;
    } else if (is_list(given) && PySequence_Fast_GET_SIZE(given) >= num) {
        is = read_sizes(entry, given, num);
    }
    if (is == UNUSABLE)
        memset(entry, 0, NUM_VALUES * sizeof(double));
    entry[0] = is;
}

static int add_entries(PyObject *listed, int num, Table *entries, int64_t *count)
{
    *count = is_list(listed) ? PySequence_Fast_GET_SIZE(listed) : 0;
    for (Py_ssize_t i = 0; i < *count; i++) {
        double *entry = more(entries);
        if (entry == NULL)
            return -1;
        read_entry(entry, PySequence_Fast_GET_ITEM(listed, i), num);
    }
    return 0;
}

static int add_row(PyObject *given, Table *rows, Table *images, Table *videos)
{
    int64_t *row = more(rows);
    if (row == NULL)
        return -1;
    memset(row, 0, NUM_COLUMNS * sizeof(int64_t));
    PyObject *turns = value(given, CONVERSATION), *counted = value(given, TEXT_TOKENS);
    if (is_list(turns))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(turns); i++)
            add_turn(row, PySequence_Fast_GET_ITEM(turns, i));
    double tokens;
    row[TOKENS] = counted != NULL && number(counted, &tokens) ? (int64_t)tokens : NONE;
    PyObject *meta = value(given, META);
    row[HAS_META] = meta != NULL && PyDict_Check(meta);
    if (add_entries(value(meta, IMAGES_META), 2, images, &row[IMAGE_ENTRIES]) < 0)
        return -1;
    return add_entries(value(meta, VIDEOS_META), 5, videos, &row[VIDEO_ENTRIES]);
}

static PyObject *scan(PyObject *self, PyObject *given)
{
    Table rows = {.width = NUM_COLUMNS * sizeof(int64_t)};
    Table images = {.width = NUM_VALUES * sizeof(double)}, videos = images;
    PyObject *each = PyObject_GetIter(given), *row, *found = NULL;
    if (each == NULL)
        return NULL;
    int failed = 0;
    while (!failed && (row = PyIter_Next(each)) != NULL) {
        PyObject *plain = Py_NewRef(row);
        if (!PyDict_Check(row)) {
            /* Rows of a data set may be mappings of their own. */
            Py_SETREF(plain, PyObject_HasAttrString(row, "keys") ? PyDict_New() : NULL);
            if (plain == NULL)
                PyErr_Format(PyExc_TypeError, "a raw row must be a mapping, got %.100s",
                             Py_TYPE(row)->tp_name);
            failed = plain == NULL || PyDict_Update(plain, row) < 0;
        }
        failed = failed || add_row(plain, &rows, &images, &videos) < 0;
        Py_XDECREF(plain);
        Py_DECREF(row);
    }
    if (!PyErr_Occurred())
        found = Py_BuildValue("(NNN)", finish(&rows), finish(&images), finish(&videos));
    Py_DECREF(each);
    PyMem_Free(rows.data);
    PyMem_Free(images.data);
    PyMem_Free(videos.data);
    return found;
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_O, "Return what rows say of their lengths, as columns."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", NULL, 0, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void)
{
    for (int i = 0; i < 9; i++)
        if (names[i] == NULL && (names[i] = PyUnicode_InternFromString(NAMES[i])) == NULL)
            return NULL;
    return PyModule_Create(&definition);
}
