# mypy: ignore-errors
"""Triton kernels of the encoder on a Hopper GPU; activations are [batch, height, width, channels].

A convolution is a sum of nine matrix products, one a tap, whose left side is a box of pixels that
the tensor copy engine fetches shifted, with zeros outside the picture. Its epilogue adds bias and
residual in fp32 and leaves, for each box and channel, the mean and the sum of squared deviations:
the next group norm then costs one pass, and is the same in every run, since nothing is added in the
order of arrival.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv3x3(
    x_desc, w_desc, bias, add_desc, out_desc, moments, height, width, num_y, num_x,
    CIN: tl.constexpr, COUT: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr,
    HAS_ADD: tl.constexpr, HAS_EDGE: tl.constexpr,
):  # fmt: skip
    """out[box, n] = sum over taps and channels of x * w, + bias (+ add); moments of each box.

    `height` and `width` are those of the output; HAS_EDGE says that boxes reach beyond them.
    """
    BM: tl.constexpr = BH * BW
    num_n: tl.constexpr = COUT // BN
    program = tl.program_id(0)
    box, co = program // num_n, (program % num_n) * BN
    image, rest = box // (num_y * num_x), box % (num_y * num_x)
    y, x = (rest // num_x) * BH, (rest % num_x) * BW
    steps: tl.constexpr = CIN // BK
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(TAPS * steps):
        tap = k // steps
        c = (k % steps) * BK
        dy, dx = tap // 3, tap % 3
        if TAPS == 1:
            a = x_desc.load([image, y, x, c]).reshape(BM, BK)
        elif STRIDE == 1:
            a = x_desc.load([image, y + dy - 1, x + dx - 1, c]).reshape(BM, BK)
        else:  # [batch, height / 2, 2, width / 2, 2 * channels]: no padding left and above
            a = x_desc.load([image, y + dy // 2, dy % 2, x + dx // 2, (dx % 2) * CIN + c])
            a = a.reshape(BM, BK)
        b = w_desc.load([co, tap * CIN + c])
        acc = tl.dot(a, b.T, acc, input_precision="tf32")
    acc += tl.load(bias + co + tl.arange(0, BN))[None, :]
    if HAS_ADD:
        acc += add_desc.load([image, y, x, co]).reshape(BM, BN).to(tl.float32)
    _store_moments(acc, moments, box, co, y, x, height, width, COUT, BH, BW, BN, HAS_EDGE)
    out_desc.store([image, y, x, co], acc.to(out_desc.dtype).reshape(1, BH, BW, BN))


@triton.jit
def _store_moments(
    acc, moments, box, co, y, x, height, width,
    COUT: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr,
    HAS_EDGE: tl.constexpr,
):  # fmt: skip
    if HAS_EDGE:
        m = tl.arange(0, BH * BW)
        inside = ((y + m // BW < height) & (x + m % BW < width))[:, None]
        count = tl.minimum(BH, height - y) * tl.minimum(BW, width - x)
        mean = tl.sum(tl.where(inside, acc, 0.0), 0) / count
        off = tl.where(inside, acc - mean[None, :], 0.0)
    else:
        mean = tl.sum(acc, 0) / (BH * BW)
        off = acc - mean[None, :]
    place = moments + box.to(tl.int64) * 2 * COUT + co + tl.arange(0, BN)
    tl.store(place, mean)
    tl.store(place + COUT, tl.sum(off * off, 0))


@triton.jit
def conv_pixels(
    pixels, weight, bias, out, moments, height, width, num_y, num_x,
    COUT: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, HAS_EDGE: tl.constexpr,
):  # fmt: skip
    """The first convolution, from bytes [batch, height, width, 3]; weight is [32, COUT], 27 used.

    A byte less 127.5 is exact even in fp16; the division by 127.5 comes after the sum, in fp32.
    """
    BM: tl.constexpr = BH * BW
    box = tl.program_id(0)
    image, rest = box // (num_y * num_x), box % (num_y * num_x)
    m = tl.arange(0, BM)
    y0, x0 = (rest // num_x) * BH, (rest % num_x) * BW
    y, x = y0 + m // BW, x0 + m % BW
    k = tl.arange(0, 32)
    iy, ix = y[:, None] + (k // 9 - 1)[None, :], x[:, None] + ((k % 9) // 3 - 1)[None, :]
    inside = (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width) & (k < 27)[None, :]
    place = ((image.to(tl.int64) * height + iy) * width + ix) * 3 + (k % 3)[None, :]
    value = tl.load(pixels + place, mask=inside, other=0).to(tl.float32) - 127.5
    a = tl.where(inside, value, 0.0).to(weight.dtype.element_ty)
    n = tl.arange(0, COUT)
    b = tl.load(weight + k[:, None] * COUT + n[None, :])
    acc = tl.dot(a, b, input_precision="tf32x3") / 127.5 + tl.load(bias + n)[None, :]
    _store_moments(acc, moments, box, 0, y0, x0, height, width, COUT, BH, BW, COUT, HAS_EDGE)
    row = (image.to(tl.int64) * height + y) * width + x
    place = out + row[:, None] * COUT + n[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=((y < height) & (x < width))[:, None])


@triton.jit
def fold_moments(
    moments, weight, bias, scale, shift, height, width, num_y, num_x,
    C: tl.constexpr, GROUP: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn a picture's moments into what group norm multiplies by and adds, for each channel."""
    image, group = tl.program_id(0), tl.program_id(1)
    c = group * GROUP + tl.arange(0, GROUP)
    num_boxes = num_y * num_x
    base = moments + image.to(tl.int64) * num_boxes * 2 * C
    count = height.to(tl.float32) * width * GROUP
    total = tl.zeros((BLOCK, GROUP), tl.float32)
    for first in range(0, num_boxes, BLOCK):
        box = first + tl.arange(0, BLOCK)
        pixels = _pixels_of(box, height, width, num_x, num_boxes, BH, BW)[:, None]
        place = base + box[:, None] * 2 * C + c[None, :]
        total += tl.load(place, mask=pixels > 0, other=0.0) * pixels
    mean = tl.sum(total) / count
    spread = tl.zeros((BLOCK, GROUP), tl.float32)
    for first in range(0, num_boxes, BLOCK):
        box = first + tl.arange(0, BLOCK)
        pixels = _pixels_of(box, height, width, num_x, num_boxes, BH, BW)[:, None]
        place = base + box[:, None] * 2 * C + c[None, :]
        off = tl.load(place, mask=pixels > 0, other=0.0) - mean
        spread += tl.load(place + C, mask=pixels > 0, other=0.0) + off * off * pixels
    gain = tl.load(weight + c) * (1.0 / tl.sqrt(tl.sum(spread) / count + 1e-6))
    tl.store(scale + image * C + c, gain)
    tl.store(shift + image * C + c, tl.load(bias + c) - mean * gain)


@triton.jit
def _pixels_of(
    box, height, width, num_x, num_boxes, BH: tl.constexpr, BW: tl.constexpr
):  # fmt: skip
    tall = tl.minimum(BH, height - (box // num_x) * BH)
    wide = tl.minimum(BW, width - (box % num_x) * BW)
    return tl.where(box < num_boxes, tall * wide, 0).to(tl.float32)


@triton.jit
def scale_silu(
    x, scale, shift, out, num_pixels,
    C: tl.constexpr, ROWS: tl.constexpr, SILU: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """out = silu(x * scale + shift); ROUND rounds to tf32, which the matrix units would cut off."""
    image = tl.program_id(1)
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, C)
    place = (image.to(tl.int64) * num_pixels + pixel[:, None]) * C + c[None, :]
    inside = (pixel < num_pixels)[:, None]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    value = value * tl.load(scale + image * C + c)[None, :]
    value += tl.load(shift + image * C + c)[None, :]
    if SILU:
        value = value / (1.0 + tl.exp(-value))
    if ROUND:
        bits = value.to(tl.uint32, bitcast=True)
        value = ((bits + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


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
