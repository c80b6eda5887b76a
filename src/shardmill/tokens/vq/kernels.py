# mypy: ignore-errors
"""Triton kernels of the encoder on a Hopper GPU.

Activations are [batch, line, channels]: the rows of an image one after the other, each followed by
two zeros, then a row of zeros, then zeros up to a multiple of 256. So the neighbour of position p
in direction (dy, dx) is p + dy * pitch + dx with pitch = width + 2, and a convolution is nine
matrix products whose left sides are the same positions, shifted: the tensor copy engine feeds them
to the matrix units directly. The zeros after a row are also those before the next one; the zeros
below an image are also those above the next.

A convolution's epilogue adds bias and residual in fp32 and leaves, for each box (a run of positions
of one image) and channel, the mean and the sum of squared deviations. The next group norm then
costs one pass, and gives the same in every run, since nothing is added in the order of arrival.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve(
    x_desc, w_desc, bias, add_desc, out_desc, out, moments,
    height, width, run, line_in, line_out, pitch_out, num_boxes,
    CIN: tl.constexpr, COUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, HAS_ADD: tl.constexpr,
):  # fmt: skip
    """out = x * w + bias (+ add), and the moments of each box.

    `height` and `width` are those of the output. Positions are counted in rows of `run`: the pitch,
    or for stride 2, where a box stays in one row, the width rounded up to boxes; x is then seen as
    pairs of pixels. `line_in` and `line_out` are the rows of an image in the descriptors.
    """
    num_n: tl.constexpr = COUT // BN
    steps: tl.constexpr = CIN // BK
    program = tl.program_id(0)
    box, co = program // num_n, (program % num_n) * BN
    image, first = box // num_boxes, (box % num_boxes) * BM
    base = image * line_in + first
    if STRIDE == 2:
        base = image * line_in + (first // run) * 2 * (width + 1) + first % run
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(TAPS * steps):
        tap, c = k // steps, (k % steps) * BK
        dy, dx = tap // 3, tap % 3
        if TAPS == 1:
            a = x_desc.load([base, c])
        elif STRIDE == 1:
            a = x_desc.load([base + (dy - 1) * run + dx - 1, c])
        else:
            a = x_desc.load([base + dy * (width + 1) + dx // 2, (dx % 2) * CIN + c])
        b = w_desc.load([co, tap * CIN + c])
        acc = tl.dot(a, b.T, acc)
    p, n = first + tl.arange(0, BM), co + tl.arange(0, BN)
    y, x = p // run, p % run
    inside = ((y < height) & (x < width))[:, None]
    acc += tl.load(bias + n)[None, :]
    if HAS_ADD:
        acc += add_desc.load([base, co]).to(tl.float32)
    acc = tl.where(inside, acc, 0.0)
    if STRIDE == 1:
        out_desc.store([base, co], acc.to(out_desc.dtype))
    else:
        place = (y * pitch_out + x)[:, None] * COUT + n[None, :]
        out += image.to(tl.int64) * line_out * COUT
        written = (y <= height) & (x < pitch_out)
        tl.store(out + place, acc.to(out.dtype.element_ty), mask=written[:, None])
    _store_moments(acc, moments, box, n, first, height, width, run, COUT, BM)


@triton.jit
def convolve_pixels(
    pixels, weight, bias, out, moments, height, width, pitch, line, num_boxes,
    COUT: tl.constexpr, BM: tl.constexpr, GREY: tl.constexpr,
):  # fmt: skip
    """The first convolution, from bytes [batch, height, width, 3]; weight is [32, COUT], 27 used.

    GREY is the byte that the network sees as 0, 127.5 by nature: a byte less that is exact even in
    fp16. The division by it comes after the sum, in fp32.
    """
    box = tl.program_id(0)
    image, first = (box // num_boxes).to(tl.int64), (box % num_boxes) * BM
    p = first + tl.arange(0, BM)
    y, x, n, k = p // pitch, p % pitch, tl.arange(0, COUT), tl.arange(0, 32)
    iy, ix = y[:, None] + (k // 9 - 1)[None, :], x[:, None] + ((k % 9) // 3 - 1)[None, :]
    there = (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width) & (k < 27)[None, :]
    source = (iy * width + ix) * 3 + (k % 3)[None, :]
    value = tl.load(pixels + image * (height * width * 3) + source, mask=there, other=0)
    value = value.to(tl.float32) - GREY
    a = tl.where(there, value, 0.0).to(weight.dtype.element_ty)
    b = tl.load(weight + k[:, None] * COUT + n[None, :])
    acc = tl.dot(a, b, input_precision="tf32x3") / GREY + tl.load(bias + n)[None, :]
    inside = ((y < height) & (x < width))[:, None]
    acc = tl.where(inside, acc, 0.0)
    _store_moments(acc, moments, box, n, first, height, width, pitch, COUT, BM)
    place = p[:, None] * COUT + n[None, :]
    out += image * line * COUT
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=(p < line)[:, None])


@triton.jit
def _store_moments(
    acc, moments, box, n, first, height, width, run, C: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    # `acc` is 0 outside of the image. Within one box the squares do not cancel out in fp32;
    # across boxes they could, so that fold_moments works with deviations.
    count = _count(first + BM, height, width, run) - _count(first, height, width, run)
    total = tl.sum(acc, 0)
    mean = total / tl.maximum(count, 1)
    place = moments + box.to(tl.int64) * 2 * C + n
    tl.store(place, mean)
    tl.store(place + C, tl.maximum(tl.sum(acc * acc, 0) - total * mean, 0.0))


@triton.jit
def _count(p, height, width, run):
    """Pixels of the image before position p."""
    y = tl.minimum(p // run, height)
    return y * width + tl.where(p // run < height, tl.minimum(p % run, width), 0)


@triton.jit
def fold_moments(
    moments, weight, bias, scale, shift, height, width, run, num_boxes,
    C: tl.constexpr, GROUP: tl.constexpr, BM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn an image's moments into what group norm multiplies by and adds, for each channel."""
    image, group = tl.program_id(0), tl.program_id(1)
    c = group * GROUP + tl.arange(0, GROUP)
    base = moments + image.to(tl.int64) * num_boxes * 2 * C
    total = tl.zeros((BLOCK, GROUP), tl.float32)
    for start in range(0, num_boxes, BLOCK):
        box = start + tl.arange(0, BLOCK)
        pixels = _pixels_of(box, height, width, run, num_boxes, BM)[:, None]
        place = base + box[:, None] * 2 * C + c[None, :]
        total += tl.load(place, mask=pixels > 0, other=0.0) * pixels
    count = 1.0 * height * width * GROUP
    mean = tl.sum(total) / count
    spread = tl.zeros((BLOCK, GROUP), tl.float32)
    for start in range(0, num_boxes, BLOCK):
        box = start + tl.arange(0, BLOCK)
        pixels = _pixels_of(box, height, width, run, num_boxes, BM)[:, None]
        place = base + box[:, None] * 2 * C + c[None, :]
        off = tl.load(place, mask=pixels > 0, other=0.0) - mean
        spread += tl.load(place + C, mask=pixels > 0, other=0.0) + off * off * pixels
    gain = tl.load(weight + c) * (1.0 / tl.sqrt(tl.sum(spread) / count + 1e-6))
    tl.store(scale + image * C + c, gain)
    tl.store(shift + image * C + c, tl.load(bias + c) - mean * gain)


@triton.jit
def _pixels_of(box, height, width, run, num_boxes, BM: tl.constexpr):
    first = tl.minimum(box, num_boxes) * BM
    last = tl.minimum(box + 1, num_boxes) * BM
    return (_count(last, height, width, run) - _count(first, height, width, run)).to(tl.float32)


@triton.jit
def scale_silu(
    x, scale, shift, out, height, width, pitch, line,
    C: tl.constexpr, ROWS: tl.constexpr, SILU: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """out = silu(x * scale + shift) inside the image, else 0; ROUND rounds to tf32."""
    image = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, C)
    place = p[:, None] * C + c[None, :]
    x += image * line * C
    out += image * line * C
    inside = ((p // pitch < height) & (p % pitch < width))[:, None]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    value = value * tl.load(scale + image * C + c)[None, :]
    value += tl.load(shift + image * C + c)[None, :]
    if SILU:
        value = value / (1.0 + tl.exp(-value))
    if ROUND:
        bits = value.to(tl.uint32, bitcast=True)
        value = ((bits + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
    value = tl.where(inside, value, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=(p < line)[:, None])


@triton.jit
def nearest(
    vectors, codebook, squares, codes, num_vectors,
    NUM_CODES: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """codes[i] = the first code with the least |e|^2 - 2 z.e; NUM_CODES is a multiple of BN."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = (row < num_vectors)[:, None]
    best = tl.full((BM,), float("inf"), tl.float32)
    chosen = tl.zeros((BM,), tl.int32)
    steps: tl.constexpr = D // BD
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(NUM_CODES // BN * steps):
        first, d = (k // steps) * BN, (k % steps) * BD + tl.arange(0, BD)
        code = first + tl.arange(0, BN)
        z = tl.load(vectors + row[:, None] * D + d[None, :], mask=inside, other=0.0)
        e = tl.load(codebook + code[None, :] * D + d[:, None])
        acc = tl.dot(z, e, acc, input_precision="tf32x3")
        if k % steps == steps - 1:
            distance = tl.load(squares + code)[None, :] - 2.0 * acc
            least, where = tl.min(
                distance, 1, return_indices=True, return_indices_tie_break_left=True
            )
            closer = least < best
            best = tl.where(closer, least, best)
            chosen = tl.where(closer, first + where, chosen)
            acc = tl.zeros((BM, BN), tl.float32)
    tl.store(codes + row, chosen, mask=row < num_vectors)
