"""Runs an example where the CPU build of torchvision lacks operators that transformers asks for."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hf_processors import transformers

if __name__ == "__main__":
    transformers()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
