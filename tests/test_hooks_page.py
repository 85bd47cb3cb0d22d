"""The table of `docs/hooks.md`: which module of a Hugging Face model has which hook point."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tests.tiny as tiny
import tracekit as tk
from tracekit.models.hooked import HookedModel

PAGE = Path(__file__).resolve().parent.parent / "docs/hooks.md"
LAYER = 1
TOKENS = torch.tensor([[3, 9, 4, 7]])

_ROW = re.compile(
    r"^\| `(?P<kind>[\w-]+)` \| `(?P<hook>[\w.]+)` \| (?P<gpt2>[^|]+) \| (?P<llama>[^|]+) \|$",
    re.MULTILINE,
)


def _rows() -> list[dict[str, str]]:
    return [row.groupdict() for row in _ROW.finditer(PAGE.read_text(encoding="utf-8"))]


def _tensor_of(block: nn.Module, run: nn.Module, place: str) -> Tensor:
    """The tensor at a place such as *input of `attn.c_proj`* of a block."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]):
        value = inputs[0] if place.startswith("input") else output
        seen.append(value[0] if isinstance(value, tuple) else value)

    named = re.search(r"`(.+)`", place)
    module = block.get_submodule(named[1]) if named else block
    with torch.no_grad(), module.register_forward_hook(keep):
        run(TOKENS)
    return seen[0]


def _model(architecture: str) -> tuple[nn.Module, nn.Module, HookedModel]:
    plain = tiny.hf_model(architecture)
    layers = plain.transformer.h if architecture == "gpt2" else plain.model.layers
    return plain, layers[LAYER], tk.load_model(tiny.hf_model(architecture))


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_modules_have_the_tensors_of_hook_points(architecture: str):
    plain, block, model = _model(architecture)
    rows = _rows()
    assert len(rows) == 6
    for row in rows:
        name = f"blocks.{LAYER}.{row['hook']}"
        registry = tk.components.ComponentRegistry.build(model.cfg, row["kind"])
        assert name in registry.hook_names, row
        _, cache = model.run_with_cache(TOKENS, names_filter=lambda hook, name=name: hook == name)
        tensor = _tensor_of(block, plain, row[architecture])
        ours = cache[name].reshape(tensor.shape)
        torch.testing.assert_close(ours, tensor, atol=1e-5, rtol=1e-5, msg=str(row))
