"""Plain Hugging Face models with torch hooks: the reference for interventions.

It runs one example and one continuation at a time, shares nothing, and knows neither
TransformerLens nor the engine.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import torch

from tests import tiny

MODULES = {
    "gpt2": ("transformer.h.{}", "transformer.h.{}.mlp", "transformer.h.{}.attn.c_proj"),
    "llama": ("model.layers.{}", "model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
    "qwen3": ("model.layers.{}", "model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
    "gemma2": (
        "model.layers.{}",
        "model.layers.{}.post_feedforward_layernorm",
        "model.layers.{}.self_attn.o_proj",
    ),
    "gpt_neox": (
        "gpt_neox.layers.{}",
        "gpt_neox.layers.{}.mlp",
        "gpt_neox.layers.{}.attention.dense",
    ),
}
"""Block, what the MLP adds to the residual stream, and what reads the outputs of the heads."""


class Plain:
    """A Hugging Face model, and interventions on what its MLPs add or its heads give out."""

    def __init__(self, architecture, kind):
        self.model = tiny.hf_model(architecture)
        self.kind = kind
        named = dict(self.model.named_modules())
        block, mlp, heads = MODULES[architecture]
        self.first_block = named[block.format(0)]
        name = mlp if kind == "mlp-outputs" else heads
        n_layers = self.model.config.num_hidden_layers
        self.modules = [named[name.format(layer)] for layer in range(n_layers)]
        self.n_heads = self.model.config.num_attention_heads

    @contextmanager
    def hooked(self, change):
        """`change(layer, value)` is seen or replaces the activation, if it returns something."""
        with ExitStack() as stack:
            for layer, module in enumerate(self.modules):
                if self.kind == "mlp-outputs":
                    handle = module.register_forward_hook(
                        lambda m, given, out, layer=layer: change(layer, out)
                    )
                else:

                    def before(m, given, layer=layer):
                        value = change(layer, given[0])
                        return None if value is None else (value,)

                    handle = module.register_forward_pre_hook(before)
                stack.callback(handle.remove)
            yield

    @contextmanager
    def noisy(self, noise):
        def add(module, args, kwargs):
            hidden = (args[0] if args else kwargs["hidden_states"]).clone()
            hidden[0, : len(noise)] += noise
            if args:
                return (hidden, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": hidden}

        if noise is None:
            yield
            return
        handle = self.first_block.register_forward_pre_hook(add, with_kwargs=True)
        yield
        handle.remove()

    def run(self, ids, change, noise=None):
        with torch.no_grad(), self.hooked(change), self.noisy(noise):
            return self.model(torch.tensor([list(ids)])).logits[0].log_softmax(-1)

    def activations(self, ids, noise=None):
        seen = {}
        self.run(ids, lambda layer, value: seen.update({layer: value[0].clone()}), noise)
        return seen

    def score(self, prompt, ids, change, noise=None):
        tokens = [*prompt, *ids[:-1]]
        logs = self.run(tokens, change, noise)
        at = range(len(prompt) - 1, len(tokens))
        return torch.stack([logs[p, t] for p, t in zip(at, ids, strict=True)]).mean()

    def mixed(self, mask, source, length):
        """Mixes `source[layer]` (positions first) into the first `length` positions."""

        def change(layer, value):
            weight = mask[layer]
            if self.kind == "head-outputs":
                weight = weight.repeat_interleave(value.shape[-1] // self.n_heads)
            value = value.clone()
            value[0, :length] = (1 - weight) * value[0, :length] + weight * source[layer][:length]
            return value

        return change
