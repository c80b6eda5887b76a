"""Measuring chats with images: `sm.measure` on two workers, and the processor itself.

100,000 chats of one to three questions and answers in English prose, about 1.1 KB, four in five
with an image of a common size; the real Qwen2.5 tokenizer, and a template that does what that of
Qwen2.5-VL does (default system prompt, numbered images, items). The processor gets blank
images of the same sizes; it is the only exact alternative, and so slow that it gets 200 samples.
"""

from __future__ import annotations

import io
import json
import pydoc_data.topics
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fetch_tokenizers
from made_data import SUPPORT_DIR
from side_by_side import Contest, save_report, sized

sys.path.insert(0, str(SUPPORT_DIR))

NUM_CHATS, PER_SHARD = sized(100_000, 200), sized(1000, 50)
NUM_PROCESSED = sized(200, 10)
PHOTOS = Path(__file__).parent.parent / "demo" / "data" / "photos"
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


def make_chats(folder: Path, num: int, max_questions: int) -> Any:
    """Write chats and their images, the same every time, and return their shards."""
    import shardmill as sm

    (folder / "images").mkdir()
    for width, height in SIZES:
        (folder / "images" / f"{width}.{height}.jpg").write_bytes(jpeg(width, height))
    rng = random.Random(0)
    with (folder / "chats.jsonl").open("w") as file:
        for number in range(num):
            row: dict[str, Any] = {"id": f"{number:08d}", "conversations": []}
            if rng.random() < 0.8:
                width, height = rng.choice(SIZES)
                row["image"] = f"images/{width}.{height}.jpg"
            for turn in range(rng.randint(1, max_questions)):
                for who, longest in (("human", 160), ("gpt", 900)):
                    start = rng.randrange(len(PROSE) - longest)
                    text = PROSE[start : start + rng.randint(20, longest)]
                    if "image" in row and who == "human" and not turn:
                        text = f"<image>{text}"
                    row["conversations"].append({"from": who, "value": text})
            file.write(json.dumps(row) + "\n")
    return sm.ingest(folder / "chats.jsonl", folder / "shards", per_shard=PER_SHARD)


def jpeg(width: int, height: int) -> bytes:
    """Return one of the demo's photographs at this size."""
    from PIL import Image, ImageOps

    names = ["astronaut.jpg", "cat.jpg", "coffee.webp", "flower.jpg", "palace.jpg", "rocket.jpg"]
    file = io.BytesIO()
    with Image.open(PHOTOS / names[(width + height) % len(names)]) as photo:
        ImageOps.fit(photo.convert("RGB"), (width, height)).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_model(folder: Path, family: str = "Qwen2_5_VL") -> None:
    """Write what a processor of the family needs, with the settings of its checkpoints."""
    shutil.copytree(fetch_tokenizers.fetch("qwen2.5"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config: dict[str, Any] = {"image_processor_type": "Qwen2VLImageProcessor"}
    if family == "Qwen3VL":
        config |= {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}
        config |= {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    else:
        config |= {"min_pixels": 3136, "max_pixels": 12845056}
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"processor_class": f"{family}Processor", **config})
    )


def shardmill(folder: str, workers: int) -> Callable[[], int]:
    """Measure into a fresh folder each time."""
    import shardmill as sm

    def work() -> int:
        with tempfile.TemporaryDirectory() as out:
            model = f"{folder}/model"
            return len(sm.measure(f"{folder}/shards", out, model=model, workers=workers))

    return work


def processor(folder: str) -> Callable[[], int]:
    """Call the processor with each chat and its images; check the lengths, too."""
    from hf_processors import transformers
    from PIL import Image

    import shardmill as sm

    ready = transformers().Qwen2_5_VLProcessor.from_pretrained(Path(folder) / "model")
    lengths = sm.open(f"{folder}/lengths")
    chats = []
    for sample in sm.open(f"{folder}/shards")[:NUM_PROCESSED]:
        sizes = [Image.open(io.BytesIO(image)).size for image in sample.images]
        chats.append((_messages(sample), [Image.new("RGB", size) for size in sizes]))

    def work() -> int:
        for row, (messages, images) in enumerate(chats):
            text = ready.apply_chat_template(messages, tokenize=False)
            ids = ready(text=[text], images=images or None)["input_ids"][0]
            assert len(ids) == lengths[row].num_tokens
        return len(chats)

    return work


def _messages(sample: Any) -> list[dict[str, Any]]:
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
    """Run the contest and say how many samples a minute are measured on two cores."""
    import shardmill as sm

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shards = make_chats(folder, NUM_CHATS, 3)
        make_model(folder / "model")
        sm.measure(shards, folder / "lengths", model=folder / "model")
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
        contest.run(rounds=sized(3, 1))
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
