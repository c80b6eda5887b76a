"""The flow keeps order and loses nothing, whatever sizes and broken images come."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.media.geometry import Native
from shardmill.stages import codes as stages
from shardmill.stages.codes import ImageFlow
from shardmill.tokens.vq.encode import BatchEncoder

Image = pytest.importorskip("PIL.Image")
SIZES = [(8, 8), (8, 12), (12, 8), (12, 12), (16, 12)]


class FirstByte:
    """A tokenizer whose code of a square of 4 x 4 is the red of its first pixel."""

    factor, num_codes, can_replay = 4, 256, False

    def __init__(self) -> None:
        self.batches: list[int] = []

    def encode(self, pixels: Any) -> Any:
        self.batches.append(len(pixels))
        return pixels[:, ::4, ::4, 0].int()

    def decode(self, codes: Any) -> Any:
        raise NotImplementedError


def png(number: int, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def tokenizer() -> FirstByte:
    return FirstByte()


@pytest.fixture(scope="module")
def flow(tokenizer: FirstByte) -> Iterator[ImageFlow]:
    """A flow that gathers three sizes at a time and keeps little memory."""
    before = torch.get_num_threads()
    limits = pytest.MonkeyPatch()
    limits.setattr(stages, "MAX_GATHERING", 3)
    limits.setattr(stages, "MAX_FREE", 2)
    flow = ImageFlow(
        Native(factor=4),
        BatchEncoder(tokenizer, "cpu"),
        num_threads=3,
        batch_pixels=5 * 64,
        pin=False,
    )
    yield flow
    flow.close()
    limits.undo()
    torch.set_num_threads(before)


kinds = st.sampled_from([0, 1, 2, 3, 4, "text", "cut"])


@given(plan=st.lists(kinds, max_size=40))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_outcomes_are_in_order_and_complete(flow: ImageFlow, plan: list[Any]) -> None:
    images = []
    for number, kind in enumerate(plan):
        content = png(number, SIZES[kind] if isinstance(kind, int) else SIZES[0])
        images.append({"text": b"no image", "cut": content[: len(content) // 2]}.get(kind, content))
    firsts: list[int] = []
    outcomes = flow.encode(images, lambda number, _: firsts.append(number))
    assert len(outcomes) == len(plan)
    for number, (kind, outcome) in enumerate(zip(plan, outcomes)):
        if isinstance(kind, int):
            width, height = SIZES[kind]
            assert np.array_equal(outcome, np.full((height // 4, width // 4), number))
        else:
            assert isinstance(outcome, SampleError)
    good = [number for number, kind in enumerate(plan) if isinstance(kind, int)]
    assert len(firsts) == min(1, len(good))
    assert set(firsts) <= set(good)


def test_the_last_batch_goes_without_most_of_its_empty_places(
    flow: ImageFlow, tokenizer: FirstByte
) -> None:
    tokenizer.batches.clear()
    flow.encode([png(number, SIZES[0]) for number in range(11)])
    assert tokenizer.batches == [5, 5, 1]


def test_a_failing_device_stops_the_flow_and_the_next_one_works(flow: ImageFlow) -> None:
    class Broken:
        def launch(self, pixels: Any, count: int | None = None) -> Any:
            raise RuntimeError("gone")

    working, flow._encoder = flow._encoder, Broken()
    with pytest.raises(RuntimeError, match="gone"):
        flow.encode([png(number, SIZES[0]) for number in range(30)])
    flow._encoder = working
    (outcome,) = flow.encode([png(7, SIZES[0])])
    assert (outcome == 7).all()
