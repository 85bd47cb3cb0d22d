"""Reading the recorded numbers of the published implementation."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def hf_model(spec: dict[str, Any], recipe_path: Path):
    """The model of a record, rebuilt from its recipe."""
    import transformers

    sizes = dict(spec)
    architecture, seed, scale = (sizes.pop(key) for key in ("architecture", "seed", "scale"))
    module_spec = importlib.util.spec_from_file_location("recipe", recipe_path)
    recipe = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(recipe)
    names = {"gpt2": "GPT2", "llama": "Llama", "qwen3": "Qwen3"}
    config = getattr(transformers, f"{names[architecture]}Config")(**sizes)
    return recipe.fill(transformers.AutoModelForCausalLM.from_config(config), seed, scale)
