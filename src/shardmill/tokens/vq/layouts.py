"""Names of weights in other layouts, renamed to those of the original VQGAN.

Hugging Face's Chameleon has the original names under a prefix such as `model.vqmodel.`. LlamaGen
numbers where VQGAN names: `conv_blocks.{level}.res.{i}`, `mid.{0,1,2}`; its decoder counts levels
from the coarsest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MARK = "encoder.conv_in.weight"
MIDDLE = {"0": "block_1", "1": "attn_1", "2": "block_2"}


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Return canonical name -> stored name for the tensors of the tokenizer among `names`."""
    names = list(names)
    prefix = _prefix(names)
    own = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    coarsest = max((int(m[1]) for m in map(_BLOCK.match, own) if m), default=0)
    return {_rename(name, coarsest): prefix + name for name in own}


_BLOCK = re.compile(r"decoder\.conv_blocks\.(\d+)\.")


def _prefix(names: list[str]) -> str:
    found = sorted((name for name in names if name.endswith(MARK)), key=len)
    return found[0][: -len(MARK)] if found else ""


def _rename(name: str, coarsest: int) -> str:
    part, _, rest = name.partition(".")
    if part not in ("encoder", "decoder"):
        return name
    middle = re.match(r"mid\.([012])\.(.*)", rest)
    if middle:
        return f"{part}.mid.{MIDDLE[middle[1]]}.{middle[2]}"
    block = re.match(r"conv_blocks\.(\d+)\.(.*)", rest)
    if not block:
        return name
    inner = re.sub(r"^res\.", "block.", block[2])
    if part == "encoder":
        return f"encoder.down.{block[1]}.{inner}"
    return f"decoder.up.{coarsest - int(block[1])}.{inner}"
