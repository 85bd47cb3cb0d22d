"""Paths against plain Hugging Face models with torch hooks, and on chains that were built in."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest
import torch

import tracekit as tk
from tests import tiny
from tools import planted
from tracekit.engine import path_effects
from tracekit.errors import ComponentError, ConfigError, HookPointError

pytestmark = pytest.mark.lens

_LLAMA = {
    "block": "model.layers.{}",
    "attention": "model.layers.{}.self_attn",
    "out": "model.layers.{}.self_attn.o_proj",
    "mlp": "model.layers.{}.mlp",
    "query": "model.layers.{}.self_attn.q_proj",
    "key": "model.layers.{}.self_attn.k_proj",
    "value": "model.layers.{}.self_attn.v_proj",
}
MODULES = {
    "llama": _LLAMA,
    "gemma2": _LLAMA,
    "gpt2": {
        "block": "transformer.h.{}",
        "attention": "transformer.h.{}.attn",
        "out": "transformer.h.{}.attn.c_proj",
        "mlp": "transformer.h.{}.mlp",
        "fused": "transformer.h.{}.attn.c_attn",
    },
    "gpt_neox": {
        "block": "gpt_neox.layers.{}",
        "attention": "gpt_neox.layers.{}.attention",
        "out": "gpt_neox.layers.{}.attention.dense",
        "mlp": "gpt_neox.layers.{}.mlp",
    },
}


class Plain:
    """Path patching with torch hooks on a plain Hugging Face model, one prompt at a time.

    Where the engine adds the sender's change to the clean stream, here all layers after the sender
    are held at their clean outputs, so that the receiver reads the same by another way.
    """

    def __init__(self, architecture, model):
        self.model, self.names = model, MODULES[architecture]
        self.modules = dict(model.named_modules())
        config = model.config
        self.n_layers = config.num_hidden_layers
        self.n_heads, self.width = config.num_attention_heads, config.hidden_size

    def module(self, part, layer):
        return self.modules[self.names[part].format(layer)]

    def run(self, ids, puts=(), seen=()):
        """Logits behind the last token, and what modules give out (of `out`: what they read).

        `puts` are (part, layer, function of the activation); `seen` are parts and layers.
        """
        got = {}

        def ahead(key, function):
            def hook(module, args):
                return (function(args[0]), *args[1:])

            return self.module(*key).register_forward_pre_hook(hook)

        def behind(key, function):
            def hook(module, args, out):
                if isinstance(out, tuple):
                    return (function(out[0]), *out[1:])
                return function(out)

            return self.module(*key).register_forward_hook(hook)

        def keep(key):
            def function(value):
                got[key] = value.clone()
                return value

            return function

        with ExitStack() as stack, torch.no_grad():
            for part, layer, function in [*((*key, keep(key)) for key in seen), *puts]:
                register = ahead if part in ("out", "block") else behind
                stack.callback(register((part, layer), function).remove)
            logits = self.model(torch.tensor([list(ids)])).logits[0, -1]
        return logits, got

    def head(self, head, value):
        """A function that puts a head's part of `value` in."""
        size = value.shape[-1] // self.n_heads
        part = slice(head * size, (head + 1) * size)

        def function(now):
            now = now.clone()
            now[..., part] = value[..., part]
            return now

        return function

    def put(self, member, value):
        """As in `run`, what puts a member's value in."""
        kind, layer, index = member
        if kind == "mlp":
            return ("mlp", layer, lambda now: value)
        return ("out", layer, self.head(index, value))

    def path(self, prompt, counterfactual, sender, receiver, what="all"):
        """Logits where the sender's change reaches them through the receiver alone."""
        layers = range(self.n_layers)
        every = [(part, n) for part in ("out", "attention", "mlp") for n in layers]
        clean, other = self.run(prompt, seen=every)[1], self.run(counterfactual, seen=every)[1]

        def where(member):
            return (member[1], int(member[0] == "mlp"))

        def fixed(part, n):
            return (part, n, lambda now: clean[part, n])

        parts = [("attention", n, 0) for n in layers] + [("mlp", n, 1) for n in layers]
        if sender is None:
            embedding = self.run(counterfactual, seen=[("block", 0)])[1]["block", 0]
            puts = [("block", 0, lambda now: embedding)]
            begin = (-1, 0)
        else:
            part = ("mlp" if sender[0] == "mlp" else "out", sender[1])
            puts, begin = [self.put(sender, other[part])], where(sender)
        end = (self.n_layers, 0) if receiver is None else where(receiver)
        frozen = [fixed(part, n) for part, n, rank in parts if (n, rank) not in (begin, end)]
        if receiver is None:
            return self.run(prompt, [*puts, *frozen])[0]
        own = ("mlp" if receiver[0] == "mlp" else "out", receiver[1])
        if what == "all":
            value = self.run(prompt, [*puts, *frozen], seen=[own])[1][own]
        else:
            of_layer, channels = self.input_of(what, receiver[1])
            there = self.run(prompt, [*puts, *frozen], seen=[of_layer])[1][of_layer]

            def function(now):
                now = now.clone()
                now[..., channels] = there[..., channels]
                return now

            value = self.run(prompt, [(*of_layer, function)], seen=[own])[1][own]
        return self.run(prompt, [self.put(receiver, value)])[0]

    def input_of(self, what, layer):
        """Module that gives out all queries, keys or values of a layer, and its channels."""
        if "fused" in self.names:
            third = ("query", "key", "value").index(what)
            return ("fused", layer), slice(third * self.width, (third + 1) * self.width)
        return (what, layer), slice(None)

    def effect(self, pair, *path):
        """By logit difference."""
        clean, _ = self.run(pair.prompt_ids)
        logits = self.path(pair.prompt_ids, pair.counterfactual_ids, *path)
        (x,), (y,) = pair.x_ids, pair.y_ids
        return ((clean[x] - clean[y]) - (logits[x] - logits[y])).item()


def plainly(tracer, plain, rows):
    """What `Plain` finds for rows of paths, on every example."""

    def member(index):
        if index is None:
            return None
        component = tracer.registry[index]
        kind = "mlp" if component.kind == "mlp-blocks" else "head"
        return kind, component.layer, component.index

    return torch.tensor(
        [
            [
                plain.effect(pair, member(r.sender), member(r.receiver), r.input)
                for pair in tracer.engine.pairs
            ]
            for r in rows
        ]
    )


def traced(architecture, kinds="head-outputs+mlp-blocks", n=2, **options):
    model = tiny.shared_model(architecture)
    data = tiny.pairs(n, seed=5, longest=1)
    return tk.Tracer(model, data, kinds, "logit-difference", **options)


MEMBERS = ["L0H1", "MLP0", "L1H0", "L1H2", "MLP1", "L2H3"]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox", "gemma2"])
def test_every_path_equals_plain_hooks(architecture):
    tracer = traced(architecture)
    is_split = architecture in ("llama", "gpt2", "gemma2")
    paths = tracer.paths(MEMBERS, by_input=is_split)
    expected = plainly(tracer, Plain(architecture, tiny.hf_model(architecture)), paths.rows)
    torch.testing.assert_close(paths.effects, expected, rtol=1e-3, atol=2e-5)
    assert paths.effects.abs().mean(1).max() > 0.01
    whole = {(row.sender, row.receiver) for row in paths.rows}
    # Parallel blocks: no MLP reads what the attention of its layer writes.
    pairs = {(a, b) for a, b in whole if None not in (a, b)}
    assert len(pairs) == (11 if architecture == "gpt_neox" else 14)
    assert len(whole) == len(pairs) + 13


def test_without_block_skipping_in_one_layer_and_in_small_batches():
    tracer = traced("llama", "mlp-blocks+attention-patterns+keys", n=4, max_batch_size=3)
    plain = traced(
        "llama",
        "mlp-blocks+attention-patterns+keys",
        n=4,
        capabilities=tk.Capabilities.none(),
    )
    members = ["MLP0", "MLP2", "L0H1", "L1H3", "L1K0", "L2K1"]
    paths, expected = tracer.paths(members), plain.paths(members)
    assert paths.rows == expected.rows
    torch.testing.assert_close(paths.effects, expected.effects, rtol=1e-3, atol=1e-5)
    # A pattern reads by query and key, keys by nothing else than themselves.
    inputs = {(str(tracer.registry[r.receiver]), r.input) for r in paths.rows if r.receiver}
    assert {what for name, what in inputs if name == "L1H3"} == {"all", "query", "key"}
    assert {what for name, what in inputs if name == "L2K1"} == {"all"}
    assert paths.cost.forward == len(paths.rows)


@pytest.mark.parametrize(
    "options",
    [
        {"direction": "denoising"},
        {"positions": "last"},
        {"split_by": "span"},
        {"source": "noise"},
        {"source": "zero"},
    ],
    ids=str,
)
def test_of_all_options_a_chain_of_everything_is_the_whole(options):
    """One layer of attention and all MLPs: a path to the logits is the effect where all is kept."""
    rows = tiny.rows(4, seed=2)
    for row in rows:
        row["spans"] = {"first": [0, 1]}
    model = tk.load_model(tiny.hf_model("gpt2"))
    tracer = tk.Tracer(
        model, tk.PromptPairs.from_ids(rows), "mlp-blocks", "logit-difference", **options
    )
    last = [label for label in tracer.registry.flat_by_label if label.startswith("MLP2")]
    paths = tracer.paths(["MLP1" + last[0][4:], *last], by_input=False)
    # Behind the last MLP only the logits read: its path there is its effect.
    whole = {
        r.sender: e for r, e in zip(paths.rows, paths.effects, strict=True) if r.receiver is None
    }
    for label in last:
        expected = tracer.evaluate(label, per_example=True)
        torch.testing.assert_close(
            whole[tracer.registry.index(label)], expected, rtol=1e-3, atol=1e-5
        )
    assert (None in whole) == (options.get("source") != "zero")
    if options.get("positions") == "last":
        # The last token is the same, and nothing else is patched of the embedding.
        assert all(
            (e == 0).all()
            for r, e in zip(paths.rows, paths.effects, strict=True)
            if r.sender is None
        )
    said = re.search("embedding is no sender.*'zero' is no run", str(paths))
    assert (said is not None) == (options.get("source") == "zero")


def found(paths):
    """Effects by sender, receiver and input."""
    names = {"all": "effect", "query": "query", "key": "key", "value": "value"}
    return {
        (row["sender"], row["receiver"], via): row[name]
        for row in paths.table.to_dict("records")
        for via, name in names.items()
        if row[name] == row[name]
    }


def test_of_a_chain_through_an_mlp_and_one_by_a_query():
    backup = planted.planted_model("backup")
    kinds = "head-outputs+mlp-blocks"
    tracer = tk.Tracer(backup.model, backup.pairs, kinds, "logit-difference")
    effects = found(tracer.paths(["L0H0", "L0H3", "MLP0", "L1H0", "MLP1"]))
    expected = {
        # The MLP of layer 0 passes a decoy on, and all decoys to the logits.
        ("L0H3", "MLP0", "all"): 0.1,
        ("L0H3", "L1H0", "all"): 0,
        ("L0H3", "logits", "all"): 0,
        ("MLP0", "logits", "all"): 0.1 + 0.08 + 0.06 + 0.04,
        # Without the first signal the backup wakes up: alone, it does harm by its query.
        ("MLP0", "L1H0", "all"): -1,
        ("MLP0", "L1H0", "query"): -1,
        ("MLP0", "L1H0", "key"): 0,
        ("MLP0", "L1H0", "value"): 0,
        ("MLP0", "MLP1", "all"): 1,
        # What it takes away the backup brings.
        ("L0H0", "MLP0", "all"): 0,
        ("embedding", "logits", "all"): 0,
    }
    for path, value in expected.items():
        assert effects[path] == pytest.approx(value, abs=2e-3), path


def test_of_a_head_that_two_heads_read():
    n = 4
    hf = planted._build("sum", n)
    first, second = hf.transformer.h[:2]
    with torch.no_grad():
        first.mlp.c_proj.weight[0] = 0
        for head, weight in ((1, 0.5), (2, 0.25)):
            planted._head(second.attn, head, planted._LENGTH - 1, planted._ANSWER, weight)
            value = 2 * planted._D_MODEL + head * planted._D_MODEL // planted._N_HEADS
            second.attn.c_attn.weight[:, value] = planted._read(planted._BY_HEAD[0])
    tracer = tk.Tracer(
        tk.load_model(hf), planted._pairs("sum", n), "head-outputs", "logit-difference"
    )
    paths = tracer.paths(["L0H0", "L1H1", "L1H2"])
    effects = found(paths)
    expected = {
        ("embedding", "L0H0", "all"): 0.75,
        ("embedding", "L0H0", "value"): 0.75,
        ("embedding", "L1H1", "all"): 0,
        ("L0H0", "L1H1", "all"): 0.5,
        ("L0H0", "L1H1", "value"): 0.5,
        ("L0H0", "L1H1", "query"): 0,
        ("L0H0", "L1H1", "key"): 0,
        ("L0H0", "L1H2", "value"): 0.25,
        ("L0H0", "logits", "all"): 0,
        ("L1H1", "logits", "all"): 0.5,
        ("L1H2", "logits", "all"): 0.25,
    }
    for path, value in expected.items():
        assert effects[path] == pytest.approx(value, abs=2e-3), path
    assert ("L1H1", "L1H2", "all") not in effects
    strongest = paths.table.set_index(["sender", "receiver"])["strongest"]
    assert strongest["L0H0", "L1H1"] == "value"


def test_blocks_below_a_receiver_are_not_run_for_it():
    tracer = traced("llama", "head-outputs", n=4)
    runs = [0, 0, 0]

    def count(number):
        def hook(*_):
            runs[number] += 1

        return hook

    blocks = tracer.model.original_model.model.layers
    handles = [block.mlp.register_forward_hook(count(n)) for n, block in enumerate(blocks)]
    paths = tracer.paths(["L2H0", "L2H1", "L2H3"])
    for handle in handles:
        handle.remove()
    # Four inputs of each head from the embedding, and four paths to the logits.
    assert len(paths.rows) == 16
    # The probe, the clean and the counterfactual run, and that the model is as it was.
    assert runs[0] == runs[1] <= 5
    assert runs[2] >= runs[0] + 12


@pytest.mark.parametrize(
    ("kinds", "options", "members", "text"),
    [
        ("residual", {}, "all", "'residual' add nothing .*at one place.*Give parts of attention"),
        ("mlp-blocks", {"layer_window": 2}, "all", "act in several layers at once have no place"),
        ("mlp-outputs", {}, "all", "among 72 components .*Give 1 to 64"),
        ("mlp-blocks", {}, [], "among 0 components .*Give 1 to 64"),
    ],
)
def test_sets_without_paths(kinds, options, members, text):
    with pytest.raises(ComponentError, match=text):
        traced("gpt2", kinds, **options).paths(members)


def test_by_input_is_a_truth_value(unchecked):
    with pytest.raises(ConfigError, match="by_input is 'query'. Pass bool"):
        traced("gpt2").paths("MLP0", by_input="query")


def test_models_in_which_paths_cannot_be_followed(monkeypatch):
    tracer = traced("gpt2", "head-outputs")
    for hooks, text in (
        ({"query": "attn.hook_q", "key": "attn.hook_k"}, "do not give the blocks.1.attn.hook_z"),
        ({"query": "attn.hook_none"}, r"no hook point blocks\.1\.attn\.hook_none.*Give by_input"),
    ):
        monkeypatch.setattr(path_effects, "INPUT_HOOKS", hooks)
        with pytest.raises(HookPointError, match=text):
            tracer.paths("L1H0")
        assert len(tracer.paths("L1H0", by_input=False).rows) == 3
    # What the attention adds is not where it is looked for.
    monkeypatch.setattr(
        path_effects,
        "out_hook",
        lambda layer, part: f"blocks.{layer}.{('attn.hook_v', 'hook_mlp_out')[part]}",
    )
    with pytest.raises(HookPointError, match="change of its input does not reach its output"):
        tracer.paths("L0H0", by_input=False)
