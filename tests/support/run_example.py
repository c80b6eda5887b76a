"""Runs an example on a CPU, for which some packages are not made."""

import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from hf_processors import transformers


def megatron_on_cpu() -> None:
    """Let Megatron-core take the CPU for its device, where a rank needs no seed of its own."""
    from megatron.core import tensor_parallel
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    torch.cuda.current_device = lambda: "cpu"
    tensor_parallel.model_parallel_cuda_manual_seed = torch.manual_seed
    CudaRNGStatesTracker.fork = lambda *given: nullcontext()


def torchtitan_on_cpu() -> None:
    """Let torchtitan take the CPU for its device, and its masks where flex has no kernel."""
    from torch.nn.attention.flex_attention import create_mask
    from torch.nn.functional import scaled_dot_product_attention

    torch._utils._get_available_device_type = lambda: "cpu"
    device = type("Device", (), {"total_memory": 1 << 34})
    told = {"get_device_name": "cpu", "get_device_properties": device, "memory_stats": {}}
    for name, answer in {**told, "reset_peak_memory_stats": None, "empty_cache": None}.items():
        setattr(torch.cpu, name, lambda *given, answer=answer: answer)
    torch.compiler.set_stance("force_eager")
    import torchtitan.distributed.utils
    from torchtitan.config import TrainingConfig
    from torchtitan.models.common.attention import FlexAttention

    def attend(q, k, v, *, block_mask, scale, enable_gqa, **more):
        mask = create_mask(block_mask.mask_mod, q.shape[0], 1, q.shape[2], k.shape[2], "cpu")
        how = {"attn_mask": mask, "scale": scale, "enable_gqa": enable_gqa}
        return scaled_dot_product_attention(q, k, v, **how), None

    FlexAttention._compiled_flex_attn = staticmethod(attend)
    torchtitan.distributed.utils.set_pg_timeouts = lambda **given: None  # gloo has none
    # bf16 is slow on a CPU.
    TrainingConfig.__init__.__kwdefaults__["mixed_precision_param"] = "float32"


ON_CPU = {"megatron_loop.py": megatron_on_cpu, "torchtitan_train.py": torchtitan_on_cpu}

if __name__ == "__main__":
    # The CPU build of torchvision lacks operators that transformers asks for.
    transformers()
    sys.argv = sys.argv[1:]
    ON_CPU.get(Path(sys.argv[0]).name, lambda: None)()
    runpy.run_path(sys.argv[0], run_name="__main__")
