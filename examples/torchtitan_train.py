"""torchtitan, resumable: torchrun examples/torchtitan_train.py packs.plan tokens MODEL_DIR OUT"""

import sys
from dataclasses import dataclass

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.tools.logging import init_logger

import shardmill as sm


class PackedLoader(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        plan: str = ""

    def __init__(self, config, *, dp_rank, dp_world_size, seq_len, local_batch_size, **more):
        how = {"collate": sm.Collate("torchtitan", length=seq_len), "batch_size": local_batch_size}
        how |= {"rank": dp_rank, "world": dp_world_size}  # ranks of tensor parallel share theirs
        self.loader = sm.loader(config.plan, config.dataset_path, **how)
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self):
        while True:
            yield from self.loader


plan, tokens, model_dir, out = sys.argv[1:5]
config = llama3_debugmodel()  # its attention, flex, keeps documents apart by their positions
config.dataloader = PackedLoader.Config(plan=plan, dataset_path=tokens)
config.training.seq_len, config.training.local_batch_size, config.training.steps = 128, 2, 12
config.checkpoint = CheckpointManager.Config(enable=True, interval=1, folder=out)
config.validator.enable, config.hf_assets_path = False, model_dir
config.debug.seed = 0
init_logger()
trainer = config.build()
trainer.train()
trainer.close()
