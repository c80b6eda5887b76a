"""Public packers as functions of (lengths, capacity), each with the buffer it ships with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from made_data import SUPPORT_DIR
from peers import peer_dir

Packer = Callable[[list[int], int], list[Any]]


def nemo() -> Packer:
    """NeMo Automodel: all lengths at once, least filled pack first."""
    return nemo_module().greedy_knapsack  # type: ignore[no-any-return]


def nemo_module() -> Any:
    """Return NeMo's module, after giving transformers what it lacks to load on a CPU."""
    for folder in (str(SUPPORT_DIR), str(peer_dir("nemo"))):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    import hf_processors

    hf_processors.transformers()
    from nemo_automodel.components.datasets.vlm import neat_packing_vlm

    return neat_packing_vlm


def llama_factory(buffer: int = 1000) -> Packer:
    """LLaMA-Factory's knapsack, which Megatron's multimodal example uses with Energon too."""
    path = peer_dir("llamafactory") / "llamafactory/data/processor/processor_utils.py"
    knapsack = _function(path, "greedy_knapsack")

    def pack(lengths: list[int], capacity: int) -> list[Any]:
        return [p for part in _parts(lengths, buffer) for p in knapsack(list(part), capacity)]

    return pack


def ms_swift(buffer: int = 1000) -> Packer:
    """ms-swift: `binpacking` on each thousand samples."""
    sys.path.insert(0, str(peer_dir("binpacking")))
    import binpacking

    def pack(lengths: list[int], capacity: int) -> list[Any]:
        return [
            found
            for part in _parts(lengths, buffer)
            for found in binpacking.to_constant_volume(
                list(enumerate(part)), capacity, weight_pos=1
            )
        ]

    return pack


def _parts(lengths: list[int], size: int) -> Iterator[list[int]]:
    return (lengths[start : start + size] for start in range(0, len(lengths), size))


def _function(path: Path, name: str) -> Any:
    # The one function, without the package around it: it needs nothing of it.
    source = path.read_text()
    start = source.index(f"def {name}(")
    search = source.index("def search_for_fit(")
    names: dict[str, Any] = {}
    for begin in (search, start):
        end = source.find("\n\n\n", begin)
        code = "from __future__ import annotations\nimport bisect\n" + source[begin:end]
        exec(compile(code, str(path), "exec"), names)
    return names[name]
