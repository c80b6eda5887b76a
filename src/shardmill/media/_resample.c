/* Resizes RGB bytes as Pillow does, to the last bit, and computes only the part that is kept.
 *
 * An image is resized across, rounded to bytes, then down, or the reverse. Each output pixel is a
 * sum of input pixels by weights that are whole numbers of 22 bits. Such sums are exact in any
 * order, so that they can be vectorised: the weights decide, and are computed as Pillow does.
 *
 * resample(pixels, width, height, out, resized_width, resized_height, left, top, out_width,
 * out_height, filter, down_first) fills `out` with the part of the resized image from (left, top)
 * on. Filters are numbered as in Pillow. image.py calls Pillow where this is not compiled.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BITS 22
#define ROWS 32 /* that are resized across together */
#define TILE 16
#define MAX_BYTES ((Py_ssize_t)1 << 30)

typedef uint8_t u8;
typedef u8 tile __attribute__((vector_size(TILE)));
#define LOWER(a, b) \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER(a, b) \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* For each output pixel: its first input pixel, how many, and their weights. */
typedef struct {
    Py_ssize_t begin, end; /* of all input pixels that are used */
    Py_ssize_t size;
    Py_ssize_t *first, *count;
    int32_t *weights;
} Taps;

static double box(double x) { return x > -0.5 && x <= 0.5; }

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x)
{
    x *= M_PI;
    return x == 0 ? 1 : sin(x) / x;
}

static double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

static const struct {
    double (*weight)(double);
    double support;
} FILTERS[] = {{NULL, 0}, {lanczos, 3}, {bilinear, 1}, {bicubic, 2}, {box, 0.5}};

static void free_taps(Taps *taps)
{
    PyMem_RawFree(taps->first);
    PyMem_RawFree(taps->weights);
}

/* The taps of the output pixels from `begin` on, of an axis that goes from `in` to `out` pixels. */
static int make_taps(Taps *taps, Py_ssize_t in, Py_ssize_t out, Py_ssize_t begin, Py_ssize_t number,
                     int filter)
{
    double scale = (double)in / out, wide = scale < 1 ? 1 : scale;
    double support = FILTERS[filter].support * wide;
    taps->size = in == out ? 1 : (Py_ssize_t)ceil(support) * 2 + 1;
    taps->first = PyMem_RawCalloc(2 * number, sizeof *taps->first);
    taps->weights = PyMem_RawCalloc(number * taps->size, sizeof *taps->weights);
    double *exact = PyMem_RawCalloc(taps->size, sizeof *exact);
    if (taps->first == NULL || taps->weights == NULL || exact == NULL) {
        PyMem_RawFree(exact);
        return -1;
    }
    taps->count = taps->first + number;
    taps->begin = in;
    taps->end = 0;
    for (Py_ssize_t i = 0; i < number; i++) {
        int32_t *weights = taps->weights + i * taps->size;
        double centre = (begin + i + 0.5) * scale, sum = 0;
        Py_ssize_t first = (Py_ssize_t)(centre - support + 0.5);
        Py_ssize_t last = (Py_ssize_t)(centre + support + 0.5);
        first = first < 0 ? 0 : first;
        last = last > in ? in : last;
        if (in == out) { /* left as it is */
            first = begin + i;
            last = first + 1;
            weights[0] = 1 << BITS;
        } else {
            for (Py_ssize_t j = 0; j < last - first; j++)
                sum += exact[j] = FILTERS[filter].weight((j + first - centre + 0.5) * (1 / wide));
            for (Py_ssize_t j = 0; j < last - first; j++) {
                double weight = sum == 0 ? exact[j] : exact[j] / sum;
                weights[j] = (int32_t)(weight * (1 << BITS) + (weight < 0 ? -0.5 : 0.5));
            }
        }
        taps->first[i] = first;
        taps->count[i] = last - first;
        taps->begin = first < taps->begin ? first : taps->begin;
        taps->end = last > taps->end ? last : taps->end;
    }
    PyMem_RawFree(exact);
    return 0;
}

/* Fills the ROWS bytes at `to` with the weighted sums of `count` lines that lie `pitch` apart. */
static void weigh_plainly(u8 *to, const u8 *from, Py_ssize_t pitch, const int32_t *weights,
                          Py_ssize_t count)
{
    int32_t sums[ROWS];
    for (int i = 0; i < ROWS; i++)
        sums[i] = 1 << (BITS - 1);
    for (Py_ssize_t j = 0; j < count; j++, from += pitch)
        for (int i = 0; i < ROWS; i++)
            sums[i] += from[i] * weights[j];
    for (int i = 0; i < ROWS; i++) {
        int32_t sum = sums[i] >> BITS;
        to[i] = (u8)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }
}

static void (*weigh)(u8 *, const u8 *, Py_ssize_t, const int32_t *, Py_ssize_t) = weigh_plainly;

#if defined(__x86_64__)
#include <immintrin.h>

/* The same by AVX2, eight bytes in a register: compilers make less of the loops above. */
__attribute__((target("avx2"))) static void weigh_avx2(u8 *to, const u8 *from, Py_ssize_t pitch,
                                                       const int32_t *weights, Py_ssize_t count)
{
    __m256i sums[ROWS / 8];
    for (int i = 0; i < ROWS / 8; i++)
        sums[i] = _mm256_set1_epi32(1 << (BITS - 1));
    for (Py_ssize_t j = 0; j < count; j++, from += pitch) {
        __m256i weight = _mm256_set1_epi32(weights[j]);
        for (int i = 0; i < ROWS / 8; i++) {
            __m128i values = _mm_loadl_epi64((const __m128i *)(from + 8 * i));
            __m256i product = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(values), weight);
            sums[i] = _mm256_add_epi32(sums[i], product);
        }
    }
    /* Packing cuts off at 0 and 255, and leaves groups of four bytes in another order. */
    for (int i = 0; i < ROWS / 8; i++)
        sums[i] = _mm256_srai_epi32(sums[i], BITS);
    __m256i low = _mm256_packs_epi32(sums[0], sums[1]), high = _mm256_packs_epi32(sums[2], sums[3]);
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    _mm256_storeu_si256((__m256i *)to, bytes);
}
#endif

/* Turns a square of TILE x TILE bytes: each of four rounds shuffles the upper half of the rows into
 * the lower, like cards. */
static void turn_tile(u8 *to, Py_ssize_t to_pitch, const u8 *from,
                                    Py_ssize_t from_pitch)
{
    tile rows[TILE], mixed[TILE];
    for (int i = 0; i < TILE; i++)
        memcpy(&rows[i], from + i * from_pitch, TILE);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < TILE / 2; i++) {
            mixed[2 * i] = LOWER(rows[i], rows[i + TILE / 2]);
            mixed[2 * i + 1] = UPPER(rows[i], rows[i + TILE / 2]);
        }
        memcpy(rows, mixed, sizeof rows);
    }
    for (int i = 0; i < TILE; i++)
        memcpy(to + i * to_pitch, &rows[i], TILE);
}

/* Turns `rows` rows of `width` bytes into columns. */
static void turn(u8 *to, Py_ssize_t to_pitch, const u8 *from, Py_ssize_t from_pitch,
                               Py_ssize_t rows, Py_ssize_t width)
{
    Py_ssize_t high = rows / TILE * TILE, broad = width / TILE * TILE;
    for (Py_ssize_t x = 0; x < broad; x += TILE)
        for (Py_ssize_t y = 0; y < high; y += TILE)
            turn_tile(to + x * to_pitch + y, to_pitch, from + y * from_pitch + x, from_pitch);
    for (Py_ssize_t y = 0; y < rows; y++)
        for (Py_ssize_t x = y < high ? broad : 0; x < width; x++)
            to[x * to_pitch + y] = from[y * from_pitch + x];
}

/* Resizes up to ROWS rows across. They are turned, so that the same byte of all of them is one
 * vector: `turned` holds the rows so, `done` what becomes of them. */
static void across(u8 *out, const u8 *pixels, Py_ssize_t pitch, Py_ssize_t rows, Py_ssize_t number,
                   const Taps *taps, u8 *turned, u8 *done)
{
    turn(turned, ROWS, pixels, pitch, rows, (taps->end - taps->begin) * 3);
    for (Py_ssize_t i = 0; i < number; i++)
        for (int colour = 0; colour < 3; colour++)
            weigh(done + (i * 3 + colour) * ROWS,
                  turned + ((taps->first[i] - taps->begin) * 3 + colour) * ROWS, 3 * ROWS,
                  taps->weights + i * taps->size, taps->count[i]);
    turn(out, number * 3, done, ROWS, number * 3, rows);
}

/* Resizes rows of `width` bytes that lie `pitch` apart down. */
static void down(u8 *out, const u8 *rows, Py_ssize_t pitch, Py_ssize_t width, Py_ssize_t number,
                 const Taps *taps)
{
    u8 rest[ROWS];
    for (Py_ssize_t i = 0; i < number; i++, out += width) {
        const u8 *from = rows + (taps->first[i] - taps->begin) * pitch;
        const int32_t *weights = taps->weights + i * taps->size;
        Py_ssize_t at = 0, count = taps->count[i];
        for (; at + ROWS <= width; at += ROWS)
            weigh(out + at, from + at, pitch, weights, count);
        if (at < width && width >= ROWS) { /* the last ones again, not to read beyond the end */
            weigh(rest, from + width - ROWS, pitch, weights, count);
            memcpy(out + at, rest + ROWS - (width - at), width - at);
            continue;
        }
        for (; at < width; at++) {
            int32_t sum = 1 << (BITS - 1);
            for (Py_ssize_t j = 0; j < count; j++)
                sum += from[j * pitch + at] * weights[j];
            sum >>= BITS;
            out[at] = (u8)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
        }
    }
}

static int resize(u8 *out, const u8 *pixels, Py_ssize_t width, Py_ssize_t out_width,
                  Py_ssize_t out_height, const Taps *wide, const Taps *tall, int down_first)
{
    Py_ssize_t used = wide->end - wide->begin;
    Py_ssize_t rows = down_first ? out_height : tall->end - tall->begin;
    Py_ssize_t line = (down_first ? used : out_width) * 3;
    if (rows > MAX_BYTES / line)
        return -1;
    u8 *between = PyMem_RawMalloc(rows * line);
    u8 *turned = PyMem_RawCalloc(used * 3, ROWS);
    u8 *done = PyMem_RawMalloc(out_width * 3 * ROWS);
    int problem = between == NULL || turned == NULL || done == NULL;
    const u8 *from = pixels + (tall->begin * width + wide->begin) * 3;
    Py_ssize_t pitch = width * 3;
    if (!problem && down_first) {
        down(between, from, pitch, line, out_height, tall);
        from = between;
        pitch = line;
    }
    u8 *to = down_first ? out : between;
    for (Py_ssize_t row = 0; !problem && row < rows; row += ROWS)
        across(to + row * out_width * 3, from + row * pitch, pitch,
               rows - row < ROWS ? rows - row : ROWS, out_width, wide, turned, done);
    if (!problem && !down_first)
        down(out, between, line, line, out_height, tall);
    PyMem_RawFree(between);
    PyMem_RawFree(turned);
    PyMem_RawFree(done);
    return problem ? -1 : 0;
}

static PyObject *resample(PyObject *self, PyObject *args)
{
    Py_buffer pixels, out;
    Py_ssize_t width, height, resized_width, resized_height, left, top, out_width, out_height;
    int filter, down_first, problem;
    Taps wide = {0}, tall = {0};
    if (!PyArg_ParseTuple(args, "y*nnw*nnnnnnip", &pixels, &width, &height, &out, &resized_width,
                          &resized_height, &left, &top, &out_width, &out_height, &filter,
                          &down_first))
        return NULL;
    const Py_ssize_t most = (Py_ssize_t)1 << 40;
    if (filter < 1 || filter > 4 || width < 1 || height < 1 || width > most || height > most ||
        left < 0 || top < 0 || out_width < 1 || out_height < 1 || resized_width > most ||
        resized_height > most || left > resized_width - out_width ||
        top > resized_height - out_height || pixels.len / 3 / width != height ||
        pixels.len != width * height * 3 || out.len / 3 / out_width != out_height ||
        out.len != out_width * out_height * 3) {
        PyBuffer_Release(&pixels);
        PyBuffer_Release(&out);
        PyErr_SetString(PyExc_ValueError, "sizes and buffers do not fit together");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    problem = make_taps(&wide, width, resized_width, left, out_width, filter) < 0 ||
              make_taps(&tall, height, resized_height, top, out_height, filter) < 0 ||
              resize(out.buf, pixels.buf, width, out_width, out_height, &wide, &tall,
                     down_first) < 0;
    free_taps(&wide);
    free_taps(&tall);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&out);
    if (problem)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resample", resample, METH_VARARGS, "Fill a buffer with a part of an image that is resized."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_resample", NULL, 0, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__resample(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        weigh = weigh_avx2;
#endif
    return PyModule_Create(&definition);
}
