/* The loops of planning: loops.py says what each takes and returns, and has the same in Python.
 *
 * Arrays come as buffers, C-contiguous and of the types that compiled.py gives them; it also makes
 * those that are filled here. Lengths lie between 0 and the capacity: compiled.py has checked.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef int32_t i32;
typedef int64_t i64;
typedef uint32_t u32;
typedef uint64_t u64;

#define MAX_BUFFERS 8

typedef struct {
    Py_buffer held[MAX_BUFFERS];
    int num;
} Buffers;

static void release(Buffers *buffers)
{
    while (buffers->num > 0)
        PyBuffer_Release(&buffers->held[--buffers->num]);
}

/* The memory of an array; NULL with an error if it has none. */
static void *take(Buffers *buffers, PyObject *array, int flags, i64 width, i64 *len)
{
    Py_buffer *buffer = &buffers->held[buffers->num];
    if (PyObject_GetBuffer(array, buffer, PyBUF_C_CONTIGUOUS | flags) < 0)
        return NULL;
    buffers->num++;
    if (len != NULL)
        *len = buffer->len / width;
    return buffer->buf;
}

#define READ(array, type, len) take(&buffers, array, 0, sizeof(type), len)
#define FILL(array, type, len) take(&buffers, array, PyBUF_WRITABLE, sizeof(type), len)

/* Where the rows of each length begin when they are sorted by it. */
static i64 *places(const i64 *histogram, i64 len)
{
    i64 *place = PyMem_Malloc((size_t)len * sizeof(i64));
    i64 sum = 0;
    for (i64 i = 0; place != NULL && i < len; i++) {
        place[i] = sum;
        sum += histogram[i];
    }
    return place;
}

static PyObject *sort_rows(PyObject *self, PyObject *args)
{
    PyObject *a[4];
    long long block_rows;
    Buffers buffers = {.num = 0};
    PyObject *done = NULL;
    if (!PyArg_ParseTuple(args, "OOLOO", &a[0], &a[1], &block_rows, &a[2], &a[3]))
        return NULL;
    i64 num_rows, num_blocks, num_lengths;
    const i32 *lengths = READ(a[0], i32, &num_rows);
    const i64 *blocks = lengths ? READ(a[1], i64, &num_blocks) : NULL;
    const i64 *histogram = blocks ? READ(a[2], i64, &num_lengths) : NULL;
    u32 *rows = histogram ? FILL(a[3], u32, NULL) : NULL;
    i64 *place = rows ? places(histogram, num_lengths) : NULL;
    if (place == NULL) {
        release(&buffers);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (i64 b = 0; b < num_blocks; b++) {
        i64 row = blocks[b] * block_rows, stop = row + block_rows;
        for (stop = stop < num_rows ? stop : num_rows; row < stop; row++)
            if (lengths[row] > 0)
                rows[place[lengths[row]]++] = (u32)row;
    }
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
    PyMem_Free(place);
    release(&buffers);
    return done;
}

static PyObject *deal_rows(PyObject *self, PyObject *args)
{
    PyObject *a[7];
    Buffers buffers = {.num = 0};
    if (!PyArg_ParseTuple(args, "OOOOOOO", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6]))
        return NULL;
    i64 num_patterns, num_lengths;
    const i32 *run_length = READ(a[0], i32, NULL);
    const i32 *run_count = run_length ? READ(a[1], i32, NULL) : NULL;
    const i64 *run_starts = run_count ? READ(a[2], i64, NULL) : NULL;
    const i64 *repeats = run_starts ? READ(a[3], i64, &num_patterns) : NULL;
    const u32 *rows = repeats ? READ(a[4], u32, NULL) : NULL;
    const i64 *histogram = rows ? READ(a[5], i64, &num_lengths) : NULL;
    u32 *members = histogram ? FILL(a[6], u32, NULL) : NULL;
    i64 *place = members ? places(histogram, num_lengths) : NULL;
    if (place == NULL) {
        release(&buffers);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    i64 start = 0;
    for (i64 p = 0; p < num_patterns; p++) {
        i64 documents = 0, column = start;
        for (i64 run = run_starts[p]; run < run_starts[p + 1]; run++)
            documents += run_count[run];
        for (i64 run = run_starts[p]; run < run_starts[p + 1]; run++) {
            i64 source = place[run_length[run]], count = run_count[run];
            for (i64 pack = 0; pack < repeats[p]; pack++)
                for (i64 nth = 0; nth < count; nth++)
                    members[column + pack * documents + nth] = rows[source++];
            place[run_length[run]] = source;
            column += count;
        }
        start += documents * repeats[p];
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(place);
    release(&buffers);
    Py_RETURN_NONE;
}

/* Class k was made from class `parent` by putting `quantity` samples of `length` into each pack.
 * Open classes with the same room form a stack: `head[room]`, then `below`. */
typedef struct {
    i64 parent, length, quantity, documents, packs, below;
} Class;

typedef struct {
    i64 capacity, num, size;
    i64 *head;        /* of each room */
    u64 *bits;        /* one bit for each room of an open pack */
    u64 *above;       /* one bit for each word of `bits` that is not 0 */
    i64 num_bits, num_above;
    Class *classes;
} Classes;

static void free_classes(Classes *all)
{
    PyMem_RawFree(all->head);
    PyMem_RawFree(all->bits);
    PyMem_RawFree(all->above);
    PyMem_RawFree(all->classes);
}

/* The smallest room of an open pack that is at least `length`, -1 if there is none. A search looks
 * at a few words, of which a capacity of 128k has 2,048. */
static i64 next_room(const Classes *all, i64 length)
{
    i64 word = length >> 6;
    u64 rest = all->bits[word] >> (length & 63);
    if (rest)
        return length + __builtin_ctzll(rest);
    if (++word >= all->num_bits)
        return -1;
    i64 group = word >> 6;
    rest = all->above[group] >> (word & 63);
    if (rest) {
        word += __builtin_ctzll(rest);
    } else {
        for (group++; group < all->num_above && all->above[group] == 0; group++)
            ;
        if (group >= all->num_above)
            return -1;
        word = (group << 6) + __builtin_ctzll(all->above[group]);
    }
    return (word << 6) + __builtin_ctzll(all->bits[word]);
}

static void close_room(Classes *all, i64 room)
{
    all->bits[room >> 6] ^= (u64)1 << (room & 63);
    if (all->bits[room >> 6] == 0)
        all->above[room >> 12] ^= (u64)1 << ((room >> 6) & 63);
}

static i64 least(i64 a, i64 b)
{
    return a < b ? a : b;
}

/* One step of best fit: puts samples of one length into one class of packs; -1 without memory. */
static i64 place_some(Classes *all, i64 length, i64 count, i64 max_documents)
{
    if (all->num == all->size) {
        size_t more = (size_t)all->size * 2 * sizeof(Class);
        Class *larger = PyMem_RawRealloc(all->classes, more);
        if (larger == NULL)
            return -1;
        all->classes = larger;
        all->size *= 2;
    }
    i64 chosen = -1, documents = 0, available = count, room = next_room(all, length);
    if (room < 0) {
        room = all->capacity;
    } else {
        chosen = all->head[room];
        documents = all->classes[chosen].documents;
        available = all->classes[chosen].packs;
    }
    i64 quantity = least(least(room / length, max_documents - documents), count);
    i64 packs = least(available, count / quantity);
    if (chosen >= 0) {
        all->classes[chosen].packs -= packs;
        if (all->classes[chosen].packs == 0) {
            all->head[room] = all->classes[chosen].below;
            if (all->head[room] < 0)
                close_room(all, room);
        }
    }
    Class *made = &all->classes[all->num];
    *made = (Class){chosen, length, quantity, documents + quantity, packs, -1};
    room -= length * quantity;
    if (room > 0 && made->documents < max_documents) {
        made->below = all->head[room];
        all->head[room] = all->num;
        all->bits[room >> 6] |= (u64)1 << (room & 63);
        all->above[room >> 12] |= (u64)1 << ((room >> 6) & 63);
    }
    all->num++;
    return count - quantity * packs;
}

/* The classes that still have packs, as patterns: lengths, counts, starts and repeats. */
static PyObject *chains(const Classes *all)
{
    i64 num_patterns = 0, num_runs = 0;
    for (i64 last = 0; last < all->num; last++)
        if (all->classes[last].packs > 0) {
            num_patterns++;
            for (i64 at = last; at >= 0; at = all->classes[at].parent)
                num_runs++;
        }
    PyObject *made[4] = {
        PyByteArray_FromStringAndSize(NULL, num_runs * (i64)sizeof(i32)),
        PyByteArray_FromStringAndSize(NULL, num_runs * (i64)sizeof(i32)),
        PyByteArray_FromStringAndSize(NULL, (num_patterns + 1) * (i64)sizeof(i64)),
        PyByteArray_FromStringAndSize(NULL, num_patterns * (i64)sizeof(i64)),
    };
    if (!made[0] || !made[1] || !made[2] || !made[3]) {
        for (int i = 0; i < 4; i++)
            Py_XDECREF(made[i]);
        return NULL;
    }
    i32 *lengths = (i32 *)PyByteArray_AS_STRING(made[0]);
    i32 *counts = (i32 *)PyByteArray_AS_STRING(made[1]);
    i64 *starts = (i64 *)PyByteArray_AS_STRING(made[2]);
    i64 *repeats = (i64 *)PyByteArray_AS_STRING(made[3]);
    i64 pattern = 0, end = 0;
    starts[0] = 0;
    for (i64 last = 0; last < all->num; last++) {
        if (all->classes[last].packs == 0)
            continue;
        for (i64 at = last; at >= 0; at = all->classes[at].parent)
            end++;
        i64 place = end;
        for (i64 at = last; at >= 0; at = all->classes[at].parent) {
            place--;
            lengths[place] = (i32)all->classes[at].length;
            counts[place] = (i32)all->classes[at].quantity;
        }
        repeats[pattern++] = all->classes[last].packs;
        starts[pattern] = end;
    }
    return Py_BuildValue("(NNNN)", made[0], made[1], made[2], made[3]);
}

static PyObject *best_fit(PyObject *self, PyObject *args)
{
    PyObject *counted, *found = NULL;
    long long capacity, max_documents;
    Buffers buffers = {.num = 0};
    if (!PyArg_ParseTuple(args, "OLL", &counted, &capacity, &max_documents))
        return NULL;
    const i64 *histogram = READ(counted, i64, NULL);
    if (histogram == NULL)
        return NULL;
    Classes all = {.capacity = capacity, .size = 1024, .num_bits = (capacity >> 6) + 1};
    all.num_above = (all.num_bits >> 6) + 1;
    all.head = PyMem_RawMalloc((size_t)(capacity + 1) * sizeof(i64));
    all.bits = PyMem_RawCalloc((size_t)all.num_bits, sizeof(u64));
    all.above = PyMem_RawCalloc((size_t)all.num_above, sizeof(u64));
    all.classes = PyMem_RawMalloc((size_t)all.size * sizeof(Class));
    i64 left = all.head && all.bits && all.above && all.classes ? 0 : -1;
    Py_BEGIN_ALLOW_THREADS
    for (i64 room = 0; left == 0 && room <= capacity; room++)
        all.head[room] = -1;
    for (i64 length = capacity; left == 0 && length > 0; length--)
        for (left = histogram[length]; left > 0;)
            left = place_some(&all, length, left, max_documents);
    Py_END_ALLOW_THREADS
    if (left == 0)
        found = chains(&all);
    else
        PyErr_NoMemory();
    free_classes(&all);
    release(&buffers);
    return found;
}

static PyObject *halve(PyObject *self, PyObject *args)
{
    PyObject *a[4];
    long long width, middle;
    Buffers buffers = {.num = 0};
    if (!PyArg_ParseTuple(args, "OOOLLO", &a[0], &a[1], &a[2], &width, &middle, &a[3]))
        return NULL;
    i64 num_rows;
    u32 *by_visual = FILL(a[0], u32, NULL);
    u32 *by_cost = by_visual ? FILL(a[1], u32, NULL) : NULL;
    const char *on_cost = by_cost ? READ(a[2], char, &num_rows) : NULL;
    char *is_left = on_cost ? FILL(a[3], char, NULL) : NULL;
    u32 *rest = is_left ? PyMem_Malloc((size_t)width * sizeof(u32)) : NULL;
    if (rest == NULL) {
        release(&buffers);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (i64 row = 0; row < num_rows; row++) {
        /* The matrix that decides is sorted already: its left half is the cheap one. */
        u32 *decided = (on_cost[row] ? by_cost : by_visual) + row * width;
        u32 *other = (on_cost[row] ? by_visual : by_cost) + row * width;
        i64 kept = 0, moved = 0;
        for (i64 place = 0; place < middle; place++)
            is_left[decided[place]] = 1;
        for (i64 place = 0; place < width; place++)
            if (is_left[other[place]])
                other[kept++] = other[place];
            else
                rest[moved++] = other[place];
        memcpy(other + kept, rest, (size_t)moved * sizeof(u32));
        for (i64 place = 0; place < middle; place++)
            is_left[decided[place]] = 0;
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(rest);
    release(&buffers);
    Py_RETURN_NONE;
}

/* What choosing one pack from a window works with. */
typedef struct {
    i32 *waiting;
    i64 num_waiting;
    char *chosen;
    i64 *tried;
    u64 *steps;
} Window;

/* reach |= reach >> length, word by word; shifting twice keeps a shift of 64 defined. */
static void reach_with(u64 *restrict after, const u64 *restrict before, i64 length, i64 num_words)
{
    i64 shift = length >> 6, moved = num_words - shift;
    unsigned low = length & 63, high = 63 - low;
    const u64 *shifted = before + shift;
    for (i64 word = 0; word < moved; word++)
        after[word] = before[word] | shifted[word] >> low | shifted[word + 1] << 1 << high;
    for (i64 word = moved; word < num_words; word++)
        after[word] = before[word];
    after[num_words] = 0;
}

typedef struct {
    i64 last, left, found;
} Search;

/* Row k of `steps` (each `num_words` words and a word of zero) is what k samples can leave free. */
static Search search(Window *window, i64 first, i64 room)
{
    i64 num_words = (room >> 6) + 1, width = num_words + 1, done = 0, place = first;
    u64 *row = window->steps;
    memset(row, 0, (size_t)width * sizeof(u64));
    row[room >> 6] = (u64)1 << (room & 63);
    for (; place < window->num_waiting && !(row[0] & 1); place++)
        if (window->waiting[place] <= room) {
            reach_with(row + width, row, window->waiting[place], num_words);
            window->tried[done++] = place;
            row += width;
        }
    i64 free = 0, found = 0;
    while (row[free >> 6] == 0)
        free += 64;
    free += __builtin_ctzll(row[free >> 6]);
    i64 left = free;
    while (free < room) {
        done--;
        row -= width;
        if (!(row[free >> 6] >> (free & 63) & 1)) {
            window->chosen[window->tried[done]] = 1;
            free += window->waiting[window->tried[done]];
            found++;
        }
    }
    return (Search){place, left, found};
}

static i64 largest_first(Window *window, i64 capacity, i64 max_documents)
{
    i64 room = capacity - window->waiting[0];
    window->chosen[0] = 1;
    for (i64 taken = 1; taken < max_documents; taken++) {
        i64 best = -1;
        for (i64 place = 1; place < window->num_waiting; place++) {
            int fits = !window->chosen[place] && window->waiting[place] <= room;
            if (fits && (best < 0 || window->waiting[place] > window->waiting[best]))
                best = place;
        }
        if (best < 0)
            break;
        window->chosen[best] = 1;
        room -= window->waiting[best];
    }
    return window->num_waiting;
}

/* Marks the chosen places; returns one more than the last place that was looked at. */
static i64 choose(Window *window, i64 capacity, i64 blind, i64 max_documents)
{
    const i32 *waiting = window->waiting;
    i64 room = capacity - waiting[0], first = 1;
    while (first < window->num_waiting && room - waiting[first] >= blind)
        room -= waiting[first++];
    Search found = search(window, first, room);
    if (found.left > 0 && first > 1) {
        memset(window->chosen, 0, (size_t)found.last);
        first = 1;
        found = search(window, 1, capacity - waiting[0]);
    }
    if (first + found.found > max_documents) {
        memset(window->chosen, 0, (size_t)found.last);
        return largest_first(window, capacity, max_documents);
    }
    memset(window->chosen, 1, (size_t)first);
    return found.last > first ? found.last : first;
}

static PyObject *fill_window(PyObject *self, PyObject *args)
{
    PyObject *a[4];
    long long capacity, size, blind, max_documents;
    int flush;
    Buffers buffers = {.num = 0};
    if (!PyArg_ParseTuple(args, "OLLLLpOOO", &a[0], &capacity, &size, &blind, &max_documents,
                          &flush, &a[1], &a[2], &a[3]))
        return NULL;
    i64 num_stream, next_in = 0, num_items = 0, num_packs = 0;
    Window window = {.num_waiting = 0};
    const i32 *stream = READ(a[0], i32, &num_stream);
    i32 *items = stream ? FILL(a[1], i32, NULL) : NULL;
    i64 *ends = items ? FILL(a[2], i64, NULL) : NULL;
    window.waiting = ends ? FILL(a[3], i32, NULL) : NULL;
    if (window.waiting == NULL) {
        release(&buffers);
        return NULL;
    }
    size_t num_words = (size_t)(size + 1) * (size_t)((capacity >> 6) + 2);
    window.chosen = PyMem_Calloc((size_t)size, 1);
    window.tried = PyMem_Malloc((size_t)size * sizeof(i64));
    window.steps = PyMem_Malloc(num_words * sizeof(u64));
    int ready = window.chosen && window.tried && window.steps;
    Py_BEGIN_ALLOW_THREADS
    while (ready) {
        while (window.num_waiting < size && next_in < num_stream)
            window.waiting[window.num_waiting++] = stream[next_in++];
        if (window.num_waiting == 0 || (window.num_waiting < size && !flush))
            break;
        i64 last = choose(&window, capacity, blind, max_documents), kept = 0;
        for (i64 place = 0; place < last; place++)
            if (window.chosen[place]) {
                window.chosen[place] = 0;
                items[num_items++] = window.waiting[place];
            } else {
                window.waiting[kept++] = window.waiting[place];
            }
        size_t rest = (size_t)(window.num_waiting - last);
        memmove(window.waiting + kept, window.waiting + last, rest * sizeof(i32));
        window.num_waiting = kept + (i64)rest;
        ends[num_packs++] = num_items;
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(window.chosen);
    PyMem_Free(window.tried);
    PyMem_Free(window.steps);
    release(&buffers);
    if (!ready)
        return PyErr_NoMemory();
    return Py_BuildValue("(LLL)", num_items, num_packs, window.num_waiting);
}

/* A heap of packs, the least filled on top, of equally filled ones the oldest. */
typedef struct {
    i64 fill, pack;
} Open;

static int before(Open a, Open b)
{
    return a.fill < b.fill || (a.fill == b.fill && a.pack < b.pack);
}

static void sink(Open *heap, i64 num, Open open)
{
    i64 at = 0;
    for (i64 child; (child = 2 * at + 1) < num; at = child) {
        child += child + 1 < num && before(heap[child + 1], heap[child]);
        if (!before(heap[child], open))
            break;
        heap[at] = heap[child];
    }
    heap[at] = open;
}

static void rise(Open *heap, i64 at, Open open)
{
    for (i64 parent; at > 0 && before(open, heap[parent = (at - 1) / 2]); at = parent)
        heap[at] = heap[parent];
    heap[at] = open;
}

static PyObject *worst_fit(PyObject *self, PyObject *args)
{
    PyObject *a[2];
    long long capacity;
    Buffers buffers = {.num = 0};
    if (!PyArg_ParseTuple(args, "OLO", &a[0], &capacity, &a[1]))
        return NULL;
    i64 num, num_packs = 0;
    const i64 *lengths = READ(a[0], i64, &num);
    i64 *pack_of = lengths ? FILL(a[1], i64, NULL) : NULL;
    Open *heap = pack_of ? PyMem_Malloc((size_t)(num + 1) * sizeof(Open)) : NULL;
    if (heap == NULL) {
        release(&buffers);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (i64 i = 0; i < num; i++) {
        if (num_packs > 0 && lengths[i] <= capacity - heap[0].fill) {
            pack_of[i] = heap[0].pack;
            sink(heap, num_packs, (Open){heap[0].fill + lengths[i], heap[0].pack});
        } else {
            pack_of[i] = num_packs;
            rise(heap, num_packs, (Open){lengths[i], num_packs});
            num_packs++;
        }
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(heap);
    release(&buffers);
    return PyLong_FromLongLong(num_packs);
}

static PyMethodDef methods[] = {
    {"best_fit", best_fit, METH_VARARGS, "Best-fit decreasing over a histogram of lengths."},
    {"fill_window", fill_window, METH_VARARGS, "Packs filled from a window of samples."},
    {"sort_rows", sort_rows, METH_VARARGS, "Rows by length, in an order of blocks."},
    {"deal_rows", deal_rows, METH_VARARGS, "Rows dealt to the places of patterns."},
    {"halve", halve, METH_VARARGS, "One level of the splitting by cost."},
    {"worst_fit", worst_fit, METH_VARARGS, "Each sample into the least filled pack."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_loops", NULL, 0, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__loops(void)
{
    return PyModule_Create(&definition);
}
