"""Measuring chats with images: the whole stage on two workers, and the processor itself.

100,000 chats of one to three questions and answers in English prose, about 1.1 KB, four in five
with an image of a common size; the real Qwen2.5 tokenizer, and a template that does what that of
Qwen2.5-VL does (default system prompt, numbered images, items). The processor gets blank
images of the same sizes; it is the only exact alternative, and so slow that it gets 200 samples.
"""

from __future__ import annotations

import json
import pydoc_data.topics
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fetch_tokenizers
from side_by_side import Contest, save_report

from shardmill.model.sample import Document, MediaSize, Sample, Segment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

NUM_SHARDS, PER_SHARD = 100, 1000
NUM_PROCESSED = 200
SIZES = [(640, 480), (480, 640), (1024, 768), (336, 336), (1280, 720), (500, 375), (768, 1024)]
PROSE = "".join(pydoc_data.topics.topics.values())
TEMPLATE = """{% set image_count = namespace(value=0) %}
{%- set video_count = namespace(value=0) %}
{%- for message in messages %}
{%- if loop.first and message['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}
{{- message['content'] + '<|im_end|>\\n' }}
{%- else %}
{%- for content in message['content'] %}
{%- if content['type'] == 'image' or 'image' in content or 'image_url' in content %}
{%- set image_count.value = image_count.value + 1 %}
{%- if add_vision_id %}{{- 'Picture ' + image_count.value | string + ': ' }}{% endif %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif content['type'] == 'video' or 'video' in content %}
{%- set video_count.value = video_count.value + 1 %}
{%- if add_vision_id %}{{- 'Video ' + video_count.value | string + ': ' }}{% endif %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in content %}
{{- content['text'] }}
{%- endif %}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


def make_chats(num: int) -> Iterator[tuple[Sample, dict[str, MediaSize]]]:
    """Yield chats and the sizes of their images, the same every time."""
    rng = random.Random(0)
    for number in range(num):
        media, sizes, segments = {}, {}, []
        if rng.random() < 0.8:
            width, height = rng.choice(SIZES)
            media["jpg"] = rng.randbytes(2000)
            sizes["jpg"] = MediaSize(width=width, height=height)
            segments.append(Segment(kind="image", media="jpg", role="user"))
        for turn in range(0, 2 * rng.randint(1, 3), 2):
            for role, longest in (("user", 160), ("assistant", 900)):
                start = rng.randrange(len(PROSE) - longest)
                text = PROSE[start : start + rng.randint(20, longest)]
                at = turn + (role == "assistant")
                segments.append(Segment(kind="text", text=text, role=role, turn=at))
        yield Sample(key=f"{number:08d}", document=Document(tuple(segments)), media=media), sizes


def make_inputs(folder: Path) -> None:
    """Write the shards and the model folder."""
    from sample_folder import write_sample_folder

    chats = list(make_chats(NUM_SHARDS * PER_SHARD))
    shards = [chats[i : i + PER_SHARD] for i in range(0, len(chats), PER_SHARD)]
    write_sample_folder(folder / "shards", shards)
    make_model(folder / "model")


def make_model(folder: Path) -> None:
    """Write what a processor of Qwen2.5-VL needs, with the settings of its checkpoint."""
    shutil.copytree(fetch_tokenizers.fetch("qwen2.5"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = {
        "processor_class": "Qwen2_5_VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 3136,
        "max_pixels": 12845056,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config))


def shardmill(folder: str, workers: int) -> Callable[[], int]:
    """Run the stage from the plan to the merged table; a fresh output folder each time."""
    from shardmill.running.runner import run_stage
    from shardmill.stages.measure import Measure, merge_lengths
    from shardmill.tokens.visual.pretrained import rule_of_folder

    root = Path(folder)
    rule = rule_of_folder(root / "model")
    stage = Measure(input_dir=root / "shards", rule=rule, tokenizer=root / "model")

    def work() -> int:
        with tempfile.TemporaryDirectory() as out:
            run_stage(stage, Path(out) / "lengths", workers=workers)
            return len(merge_lengths(Path(out) / "lengths"))

    return work


def processor(folder: str) -> Callable[[], int]:
    """Call the processor with each chat and its images; check the lengths, too."""
    from hf_processors import transformers

    hf = transformers()
    from PIL import Image

    from shardmill.shards.plans import open_lengths

    model = Path(folder) / "model"
    ready = hf.Qwen2_5_VLProcessor.from_pretrained(model)
    table = open_lengths(Path(folder) / "lengths" / "lengths.bin")
    chats = [(_messages(sample), sizes) for sample, sizes in make_chats(NUM_PROCESSED)]

    def work() -> int:
        for row, (messages, sizes) in enumerate(chats):
            text = ready.apply_chat_template(messages, tokenize=False)
            images = [Image.new("RGB", (s.width, s.height)) for s in sizes.values()]
            ids = ready(text=[text], images=images or None)["input_ids"][0]
            assert len(ids) == table.num_tokens[row]
        return len(chats)

    return work


def _messages(sample: Sample) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for segment in sample.document.segments:
        if not messages or messages[-1]["role"] != segment.role:
            messages.append({"role": segment.role, "content": []})
        item = {"type": segment.kind}
        messages[-1]["content"].append(
            item if segment.kind == "image" else {**item, "text": segment.text}
        )
    return messages


def main() -> None:
    """Run the contest and say how many samples a minute the stage measures on two cores."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_inputs(folder)
        from shardmill.running.runner import run_stage
        from shardmill.stages.measure import Measure, merge_lengths
        from shardmill.tokens.visual.pretrained import rule_of_folder

        stage = Measure(
            input_dir=folder / "shards",
            rule=rule_of_folder(folder / "model"),
            tokenizer=folder / "model",
        )
        run_stage(stage, folder / "lengths")
        merge_lengths(folder / "lengths")
        contest = Contest("Measuring chats with images", unit="sample")
        for workers in (0, 2):
            name = f"shardmill, {workers} workers" if workers else "shardmill, in process"
            contest.add(name, __file__, "shardmill", folder=temporary, workers=workers)
        contest.add(
            "Qwen2_5_VLProcessor",
            __file__,
            "processor",
            folder=temporary,
            note=f"{NUM_PROCESSED} samples, lengths checked to be equal",
        )
        contest.run(rounds=3)
        best = contest.best("shardmill, 2 workers")
        rate = 60 * best.num_items / min(best.wall_s)
        free = 2 * 60e6 / best.cpu_us
        figure = (
            f"{rate:,.0f} samples a minute on two workers by the clock, which counts the load of "
            f"others; {free:,.0f} by CPU time, as on two free cores (wanted: 200,000)."
        )
        table = contest.table(than="shardmill, in process")
        save_report(__file__, "Measuring chats with images", [figure, table])


if __name__ == "__main__":
    main()
