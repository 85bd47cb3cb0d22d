"""Plain Hugging Face models with torch hooks: the reference for interventions.

It runs one example and one continuation at a time, shares nothing, and knows neither
TransformerLens nor the engine.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import torch

from tests import tiny

_LLAMA = {
    "block": "model.layers.{}",
    "mlp": "model.layers.{}.mlp",
    "attention": "model.layers.{}.self_attn",
    "heads": "model.layers.{}.self_attn.o_proj",
    "queries": "model.layers.{}.self_attn.q_proj",
    "keys": "model.layers.{}.self_attn.k_proj",
    "values": "model.layers.{}.self_attn.v_proj",
}
MODULES = {
    "gpt2": {
        "block": "transformer.h.{}",
        "mlp": "transformer.h.{}.mlp",
        "attention": "transformer.h.{}.attn",
        "heads": "transformer.h.{}.attn.c_proj",
        "fused": "transformer.h.{}.attn.c_attn",
    },
    "llama": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": {
        **_LLAMA,
        "mlp": "model.layers.{}.post_feedforward_layernorm",
        "attention": "model.layers.{}.post_attention_layernorm",
    },
    "gpt_neox": {
        "block": "gpt_neox.layers.{}",
        "mlp": "gpt_neox.layers.{}.mlp",
        "attention": "gpt_neox.layers.{}.attention",
        "heads": "gpt_neox.layers.{}.attention.dense",
        "fused": "gpt_neox.layers.{}.attention.query_key_value",
    },
}
"""Modules of a layer; `mlp` and `attention` give out what is added to the residual stream."""
KINDS = (
    "attention-blocks",
    "head-outputs",
    "keys",
    "mlp-blocks",
    "mlp-outputs",
    "queries",
    "residual",
    "residual-before",
    "residual-between",
    "values",
)
"""Kinds of component that the reference knows."""


class Plain:
    """A Hugging Face model, and interventions on one kind of component of it."""

    def __init__(self, architecture, kind, model=None):
        self.model = tiny.hf_model(architecture) if model is None else model
        config = self.model.config
        named = dict(self.model.named_modules())
        parts = MODULES[architecture]
        part, self.before = {
            "attention-blocks": ("attention", False),
            "head-outputs": ("heads", True),
            "mlp-blocks": ("mlp", False),
            "mlp-outputs": ("mlp", False),
            "residual": ("block", False),
            "residual-before": ("block", True),
            "residual-between": ("attention", False),
        }.get(kind, ("fused" if "fused" in parts else kind, False))
        self.between = kind == "residual-between"
        self.multiplier = getattr(config, "residual_multiplier", 1.0)
        self.blocks = [
            named[parts["block"].format(layer)] for layer in range(config.num_hidden_layers)
        ]
        self.first_block = named[parts["block"].format(0)]
        layers = range(config.num_hidden_layers)
        self.modules = [named[parts[part].format(layer)] for layer in layers]
        heads = config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        counts = {"head-outputs": heads, "queries": heads, "keys": groups, "values": groups}
        self.count = config.hidden_size if kind == "mlp-outputs" else counts.get(kind, 1)
        self.channels = slice(None)
        if part == "fused":
            width = config.hidden_size
            third = ("queries", "keys", "values").index(kind)
            if architecture == "gpt2":
                self.channels = torch.arange(width) + third * width
            else:
                # Head by head its queries, keys and values.
                numbers = torch.arange(3 * width).reshape(heads, 3, -1)
                self.channels = numbers[:, third].flatten()

    @contextmanager
    def hooked(self, change):
        """`change(layer, value)` is seen or replaces the activation, if it returns something."""

        entered = {}

        def enters(layer):
            def hook(module, args, kwargs):
                entered[layer] = (args[0] if args else kwargs["hidden_states"]).clone()

            return hook

        def after(layer):
            def hook(module, given, out):
                value = out[0] if isinstance(out, tuple) else out
                # Between attention and MLP, the stream is what entered and what attention adds.
                before = entered[layer] if self.between else 0
                times = self.multiplier if self.between else 1
                value = change(layer, before + times * value)
                value = None if value is None else (value - before) / times
                return (value, *out[1:]) if isinstance(out, tuple) and value is not None else value

            return hook

        def ahead(layer):
            def hook(module, args, kwargs):
                value = change(layer, args[0] if args else kwargs["hidden_states"])
                if value is None:
                    return None
                if args:
                    return (value, *args[1:]), kwargs
                return args, {**kwargs, "hidden_states": value}

            return hook

        with ExitStack() as stack:
            for layer, block in enumerate(self.blocks if self.between else ()):
                handle = block.register_forward_pre_hook(enters(layer), with_kwargs=True)
                stack.callback(handle.remove)
            for layer, module in enumerate(self.modules):
                handle = (
                    module.register_forward_pre_hook(ahead(layer), with_kwargs=True)
                    if self.before
                    else module.register_forward_hook(after(layer))
                )
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
        # Noise first: what stands before the first block has it.
        with torch.no_grad(), self.noisy(noise), self.hooked(change):
            return self.model(torch.tensor([list(ids)])).logits[0].log_softmax(-1)

    def activations(self, ids, noise=None):
        """What the components give out: by layer, positions first."""
        seen = {}

        def see(layer, value):
            seen[layer] = value[0][:, self.channels].clone()

        self.run(ids, see, noise)
        return seen

    def score(self, prompt, ids, change, noise=None):
        tokens = [*prompt, *ids[:-1]]
        logs = self.run(tokens, change, noise)
        at = range(len(prompt) - 1, len(tokens))
        return torch.stack([logs[p, t] for p, t in zip(at, ids, strict=True)]).mean()

    def mixed(self, mask, source, length):
        """Mixes `source[layer]` (positions first) into the first `length` positions.

        `mask[layer]` has an entry per component, or per position and component.
        """

        def change(layer, value):
            value = value.clone()
            part = value[0, :length][:, self.channels]
            weight = mask[layer].repeat_interleave(part.shape[-1] // self.count, -1)
            part = (1 - weight) * part + weight * source[layer][:length]
            value[0, :length, self.channels] = part
            return value

        return change


def effects_by_span(plain, rows, tracer, mask):
    """Log-odds that a tracer by spans should find, for any of its sources and directions."""
    names, n_layers = tracer.registry.spans, len(plain.modules)
    by_span = mask.reshape(n_layers, plain.count, len(names))
    every = [plain.activations(row["prompt_ids"]) for row in rows]
    layers = range(n_layers)
    means = {
        "zero": lambda layer: torch.zeros(1),
        "mean": lambda layer: torch.cat([each[layer] for each in every]).mean(0),
        "mean-positional": lambda layer: torch.stack([each[layer] for each in every]).mean(0),
    }
    is_noising = tracer.direction == "noising"
    noising = tracer.engine.pairs if is_noising else tracer.engine.pairs.reversed()
    expected = []
    for row, own, pair in zip(rows, every, noising, strict=True):
        clean, length = row["prompt_ids"], len(row["prompt_ids"])
        noise = pair.counterfactual.noise if tracer.source == "noise" else None
        if tracer.source in means:
            width = own[0].shape[-1]
            values = {n: means[tracer.source](n).expand(length, width) for n in layers}
        else:
            others = {
                "counterfactual": lambda row=row: row["counterfactual_ids"],
                "resample": lambda pair=pair: pair.counterfactual.ids,
            }
            other = others.get(tracer.source, lambda clean=clean: clean)()
            values = plain.activations(other, noise)
        base, base_noise = clean, None
        if not is_noising:
            base, base_noise, values = other, noise, own
        weights = []
        spans = {**row["spans"], "last": [length - 1, length]}
        for layer in by_span:
            weight = layer[:, names.index("rest")].repeat(length, 1)
            # Named spans take the place of what is implied.
            for name in sorted(spans, key=lambda name: name != "last"):
                weight[slice(*spans[name])] = layer[:, names.index(name)]
            weights.append(weight)
        odds = [
            plain.score(base, row["y_ids"], act, base_noise)
            - plain.score(base, row["x_ids"], act, base_noise)
            for act in (plain.mixed(weights, values, length), lambda layer, value: None)
        ]
        expected.append((1 if is_noising else -1) * (odds[0] - odds[1]))
    return torch.stack(expected)
