"""Prices are found from the times of steps, and measured by training on packs of a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pixel_folder import make_processor, save_model, write_pixel_folder

import shardmill as sm
from shardmill.cli.main import cli
from shardmill.errors import ConfigError
from shardmill.train.calibrate import MeasuredStep, fit_prices

TRUE = {"token": 3e-5, "visual": 2e-5, "attention": 1.1e-9, "pack": 0.02}


def steps(*, noise: float = 0.0, **prices: float) -> list[MeasuredStep]:
    rng = np.random.default_rng(0)
    price = {**TRUE, **prices}
    made = []
    for _ in range(24):
        tokens, visual = int(rng.integers(4000, 32_000)), int(rng.integers(0, 4000))
        squares = tokens * int(rng.integers(200, tokens))
        seconds = price["token"] * tokens + price["visual"] * visual
        seconds += price["attention"] * squares + price["pack"]
        seconds *= 1 + noise * rng.standard_normal()
        made.append(MeasuredStep(tokens=tokens, visual=visual, squares=squares, seconds=seconds))
    return made


@pytest.mark.parametrize("absent", [(), ("visual",), ("pack", "visual"), ("attention",)])
def test_prices_are_those_that_made_the_times(absent: tuple[str, ...]) -> None:
    prices = {**TRUE, **dict.fromkeys(absent, 0.0)}
    found = fit_prices(steps(**prices))
    for name, price in prices.items():
        assert getattr(found, name) == pytest.approx(price, rel=1e-6, abs=1e-15), name


def test_no_price_is_below_zero() -> None:
    # A step that gets cheaper with its images cannot be: that price is left out.
    found = fit_prices(steps(visual=-1e-5, noise=0.01))
    assert found.visual == 0
    assert found.token == pytest.approx(TRUE["token"], rel=0.2)


def test_text_without_images_has_no_price_for_them() -> None:
    made = [
        MeasuredStep(tokens=s.tokens, visual=0, squares=s.squares, seconds=s.seconds)
        for s in steps(visual=0)
    ]
    assert fit_prices(made).visual == 0
    assert fit_prices(made).token == pytest.approx(TRUE["token"])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate")
    processor = make_processor()
    model = save_model(folder / "model", processor)
    samples = write_pixel_folder(folder / "samples", count=40)
    lengths = sm.measure(samples, folder / "lengths", model=model, workers=0)
    sm.plan(lengths, folder / "packs.plan", capacity=512)
    return folder


def run(project: Path, *more: object) -> Any:
    places = [project / name for name in ("model", "packs.plan", "samples", "prices.json")]
    given = ["calibrate", *places, "--lengths", project / "lengths", *more]
    return CliRunner().invoke(cli, list(map(str, given)))


def test_a_model_with_images_is_measured_and_planned_for(project: Path) -> None:
    result = run(project, "--device", "cpu", "--steps", "8")
    assert result.exit_code == 0, result.output
    assert "a visual token" in result.output
    written = json.loads((project / "prices.json").read_text())
    assert len(written["steps"]) == 8 and written["model"] == "Qwen2VLForConditionalGeneration"
    assert len({step["tokens"] // 100 for step in written["steps"]}) > 1
    assert any(step["visual"] for step in written["steps"])
    timed = sm.plan(
        project / "lengths", project / "timed.plan", capacity=512, prices=project / "prices.json"
    )
    assert timed.report is not None and timed.report.seconds is not None
    told = sum(step["seconds"] for step in written["steps"]) / 8
    assert told / 5 < timed.report.seconds / len(timed) < told * 5
    assert "on one GPU" in plan_again(project).output


def plan_again(project: Path) -> Any:
    given = ("plan", project / "lengths", project / "timed.plan", "--capacity", 512)
    return CliRunner().invoke(
        cli, [*map(str, given), "--prices", str(project / "prices.json")], catch_exceptions=False
    )


def test_mistakes_are_named(project: Path, tmp_path: Path) -> None:
    assert "at least 8 steps" in str(run(project, "--device", "cpu", "--steps", "3").exception)
    if not torch.cuda.is_available():
        assert "no GPU" in str(run(project).exception)
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ConfigError, match="holds no prices"):
        sm.plan([3, 4], tmp_path / "x.plan", capacity=8, prices=tmp_path / "other.json")
    with pytest.raises(ConfigError, match="not both"):
        sm.plan([3], tmp_path / "x.plan", capacity=8, prices=TRUE, model="layers=2")
    with pytest.raises(ConfigError, match="tokens"):
        sm.plan([3], tmp_path / "x.plan", capacity=8, prices={"tokens": 1.0})
