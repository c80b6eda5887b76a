"""Decoding and cropping photos on one core: python benchmarks/decode_images.py

Goal: twice the images/s of Pillow's way (decode, Lanczos, crop) for JPEG of 1024 x 768 to 512. This
measures the internal decoder that `sm.codes` feeds the GPU with.
"""

from __future__ import annotations

import io

import numpy as np
from made_data import PHOTOS_DIR
from side_by_side import Contest, Work, save_report, sized

NUM_IMAGES = sized(32, 4)


def photos(width: int, height: int, count: int = NUM_IMAGES) -> list[bytes]:
    """Return JPEG photos of one size, cut from those of the demo at several scales."""
    from PIL import Image

    found = []
    names = sorted(path for path in PHOTOS_DIR.iterdir() if path.suffix == ".jpg")
    for number in range(count):
        with Image.open(names[number % len(names)]) as image:
            scale = max(width / image.width, height / image.height) * (1 + number / count)
            size = round(image.width * scale) + 1, round(image.height * scale) + 1
            enlarged = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        file = io.BytesIO()
        enlarged.crop((left, top, left + width, top + height)).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def shardmill(width: int, height: int, side: int) -> Work:
    """Our decoding and cropping."""
    import torch

    from shardmill.media.geometry import Square
    from shardmill.media.image import decode_image, resize_crop

    torch.set_num_threads(1)
    contents, geometry = photos(width, height), Square(resolution=side)

    def work() -> int:
        for content in contents:
            pixels = decode_image(content)
            resize_crop(pixels, geometry.fit(pixels.shape[1], pixels.shape[0]))
        return len(contents)

    return work


def pillow(width: int, height: int, side: int) -> Work:
    """What is done elsewhere: Pillow decodes, resizes by Lanczos to cover, and crops."""
    contents = photos(width, height)

    def work() -> int:
        for content in contents:
            pillow_crop(content, side)
        return len(contents)

    return work


def pillow_crop(content: bytes, side: int) -> np.ndarray:
    """Return the middle square by Pillow."""
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGB")
    factor = min(image.size) / side
    size = int(image.width / factor), int(image.height / factor)
    image = image.resize(size, Image.Resampling.LANCZOS)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)))


def decode_only(width: int, height: int, side: int) -> Work:
    """libjpeg-turbo alone: the least that any way must do."""
    import simplejpeg

    contents = photos(width, height)

    def work() -> int:
        for content in contents:
            simplejpeg.decode_jpeg(content)
        return len(contents)

    return work


def difference(width: int, height: int, side: int) -> str:
    """Say how far our pixels are from Pillow's."""
    from shardmill.media.geometry import Square
    from shardmill.media.image import decode_image, resize_crop

    largest, num_other, num_all = 0, 0, 0
    for content in photos(width, height, 8):
        pixels = decode_image(content)
        ours = resize_crop(pixels, Square(resolution=side).fit(width, height)).astype(int)
        off = np.abs(ours - pillow_crop(content, side))
        largest = max(largest, int(off.max()))
        num_other, num_all = num_other + int((off > 0).sum()), num_all + off.size
    return f"Pixels: {100 * num_other / num_all:.2f} % differ from Pillow's, by at most {largest}."


def section(width: int, height: int, side: int, rounds: int) -> str:
    """Run one contest and return its table."""
    contest = Contest(f"JPEG {width} x {height} to {side} x {side}", unit="image")
    for name, function in {
        "shardmill": shardmill,
        "Pillow": pillow,
        "libjpeg-turbo, decoding alone": decode_only,
    }.items():
        contest.add(name, __file__, function.__name__, width=width, height=height, side=side)
    contest.run(rounds)
    words = difference(width, height, side)
    return f"## {contest.title}\n\n{contest.table(than='shardmill')}\n\n{words}"


if __name__ == "__main__":
    rounds = sized(6, 1)
    sizes = [(1024, 768, 512), (640, 480, 256)]
    save_report(__file__, "Decoding images", [section(*size, rounds) for size in sizes])
