"""Effects and gradients of edges, against patched nodes, paths and differences."""

from __future__ import annotations

from dataclasses import replace

import peft
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components import ComponentRegistry
from tracekit.components.edges import EDGE_KINDS
from tracekit.engine import checks, edge_patch
from tracekit.errors import ComponentError, HookPointError

pytestmark = pytest.mark.lens

METRIC = "logit-difference"


def bridged(architecture):
    return tiny.shared_model(architecture)


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", EDGE_KINDS)
@pytest.mark.parametrize("architecture", tiny.ARCHITECTURE_CASES)
def test_edges_of_a_node_are_its_patch_and_all_edges_the_counterfactual_run(architecture, kind):
    model, pairs = bridged(architecture), tiny.pairs(4)
    engine = tiny.engine(model, pairs, kind, METRIC)
    checks.check_sites(model, engine.registry)
    n = engine.n_components
    assert engine.effects(torch.zeros(n)).eq(0).all()
    embeddings = tiny.engine(model, pairs, "residual-before", METRIC, layers=[0])
    torch.testing.assert_close(engine.full_effects, embeddings.full_effects, rtol=1e-4, atol=1e-5)
    attention = "attention-blocks" if kind == "edges-by-block" else "head-outputs"
    nodes = tiny.engine(model, pairs, f"{attention}+mlp-blocks", METRIC)
    of_edges = torch.tensor(
        [[edge.ends.startswith(f"{node}>") for edge in engine.registry] for node in nodes.registry]
    )
    torch.testing.assert_close(
        engine.effects(of_edges.float()),
        nodes.effects(torch.eye(len(nodes.registry))),
        rtol=1e-4,
        atol=2e-5,
    )


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox", "gemma2"])
def test_single_edges_are_paths(architecture):
    """What `tracer.paths` measures with all but one receiver frozen, here with every one free."""
    # Of one token each: in a longer one, later positions read the keys that an edge changed.
    model, pairs = bridged(architecture), tiny.pairs(4, longest=1)
    edges = tiny.engine(model, pairs, "edges", METRIC)
    members = ["L0H1", "MLP0", "L1H0", "MLP1"] if architecture != "gpt_neox" else ["L0H1", "L1H0"]
    tracer = tk.Tracer(model, pairs, "head-outputs+mlp-blocks", METRIC)
    paths = tracer.paths(members).table
    n_compared = 0
    is_grouped = architecture == "gemma2"
    for row in paths.to_dict("records"):
        sender = {"embedding": "E"}.get(row["sender"], row["sender"])
        receiver = row["receiver"]
        reads = {"effect": [receiver]}
        if "H" in receiver:
            letters = {"query": "Q"} if is_grouped else {"query": "Q", "key": "K", "value": "V"}
            by = {use: [receiver.replace("H", letter)] for use, letter in letters.items()}
            reads = by if is_grouped else by | {"effect": [n for each in by.values() for n in each]}
        for column, receivers in reads.items():
            mask = torch.zeros(edges.n_components)
            mask[[edges.registry.index(f"{sender}>{each}") for each in receivers]] = 1
            assert edges.effects(mask).mean().item() == pytest.approx(row[column], abs=2e-5)
            n_compared += 1
    assert n_compared > 10


@pytest.mark.pairwise
@pytest.mark.parametrize("at", ["prompt", "last", "spans"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_gradients_are_differences(architecture, at):
    model = bridged(architecture)
    pairs, options = tiny.pairs(3, longest=1), {"positions": at}
    if at == "spans":
        rows = [
            row
            | {
                "prompt_ids": row["prompt_ids"][:3],
                "counterfactual_ids": [*row["counterfactual_ids"][:2], row["prompt_ids"][2]],
            }
            for row in tiny.rows(3, longest=1)
        ]
        pairs = tk.PromptPairs.from_ids(rows).by_position(("0", "1", "2"))
        options = {"spans": ("0", "1", "2")}
    engine = tiny.engine(model, pairs, "edges-by-head", METRIC, **options)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(engine.n_components, generator=generator) * 0.8 + 0.1
    mask[::5] = 0
    direction = torch.randn(engine.n_components, generator=generator) * (mask > 0)
    slopes = engine.gradient(mask, torch.ones_like)[1]
    step = 2e-3 / direction.abs().max()
    ahead, behind = (engine.effects(mask + sign * step * direction).sum() for sign in (1, -1))
    assert (slopes @ direction).item() == pytest.approx(
        ((ahead - behind) / (2 * step)).item(), rel=2e-2, abs=2e-2
    )
    # Receivers that the mask leaves out have slopes too, and those below them are counted once.
    empty, joining = torch.zeros_like(mask), torch.rand(len(mask), generator=generator)
    slopes = engine.gradient(empty, torch.ones_like)[1]
    step = 1e-2
    ahead, further = (engine.effects(n * step * joining).sum().item() for n in (1, 2))
    at_zero = (4 * ahead - further) / (2 * step)
    assert (slopes @ joining).item() == pytest.approx(at_zero, rel=3e-2, abs=3e-2)


@pytest.mark.parametrize("source", ["counterfactual", "zero", "noise"])
def test_batches_sets_and_selections_do_not_matter(source):
    model, pairs = bridged("llama"), tiny.pairs(6)
    tracer = tk.Tracer(model, pairs, "edges", METRIC, source=source)
    whole, drawn = tracer.engine, torch.Generator().manual_seed(1)
    sets = [
        tuple(torch.randperm(190, generator=drawn)[:k].sort().values.tolist()) for k in (1, 9, 90)
    ]
    masks = torch.zeros(3, 190)
    for row, members in zip(masks, sets, strict=True):
        row[list(members)] = 1
    expected = torch.stack([whole.effects(mask) for mask in masks])
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(whole.effects(masks), expected, **close)
    torch.testing.assert_close(whole.set_effects(sets), expected, **close)
    small = tk.Tracer(model, pairs, "edges", METRIC, source=source, max_batch_size=2).engine
    torch.testing.assert_close(small.set_effects(sets), expected, **close)
    chosen = ComponentRegistry.of_edges(
        model.cfg, senders=["L0H1", "MLP1"], receivers=["MLP2", "L1Q2"]
    )
    some = tk.Tracer(model, pairs, chosen, METRIC, source=source).engine
    mask = torch.zeros(190)
    mask[[whole.registry.index(str(edge)) for edge in chosen]] = 1
    torch.testing.assert_close(some.full_effects, whole.effects(mask), **close)


def test_a_bound_on_memory_makes_batches_smaller_and_changes_nothing():
    model, pairs = bridged("llama"), tiny.pairs(6)
    plain, bound = (
        tiny.engine(model, pairs, "edges", METRIC, max_memory=m) for m in (None, 40_000)
    )
    assert bound.config.max_batch_size < plain.config.max_batch_size
    mask = torch.linspace(0, 1, plain.n_components)
    torch.testing.assert_close(bound.effects(mask), plain.effects(mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("denoised", [False, True])
def test_a_tracer_searches_edges(denoised):
    model, pairs = bridged("gpt2"), tiny.pairs(8)
    direction = "denoising" if denoised else "noising"
    tracer = tk.Tracer(model, pairs, "edges-by-block", METRIC, direction=direction)
    result = tracer.run("local-search", budget=3, sign="full")
    assert result.n_selected == 3
    assert tracer.evaluate(result.labels) == pytest.approx(result.effect, abs=1e-5)


@pytest.mark.parametrize(
    ("spoilt", "text"),
    [
        ({"norm": torch.nn.Identity()}, "do not read the stream by their norms"),
        ({"out_weights": None}, "all edges out of L1H0 and those beside it"),
        (None, "the parts of its block 1 cannot be found (no q)"),
    ],
)
def test_models_that_cannot_be_split(spoilt, text, monkeypatch):
    parts_of = edge_patch.block_parts

    def some(model, layer):
        parts = parts_of(model, layer)
        if layer != 1:
            return parts
        if spoilt is None:
            raise AttributeError("no q")
        if "norm" in spoilt:
            return replace(parts, **spoilt)
        return replace(parts, out=parts_of(model, 0).out)

    monkeypatch.setattr(edge_patch, "block_parts", some)
    model = bridged("gpt2")
    with pytest.raises(HookPointError, match="Edges cannot be patched in GPT2") as error:
        checks.check_sites(model, ComponentRegistry.build(model.cfg, "edges"))
    assert text in str(error.value)


class ScaledProjection(torch.nn.Module):
    """An output projection that is not one linear map with a matrix `weight`."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, heads):
        return 1.0 * self.inner(heads)


def test_an_output_projection_without_a_matrix_is_refused():
    given = tiny.hf_model("llama")
    for layer in given.model.layers:
        layer.self_attn.o_proj = ScaledProjection(layer.self_attn.o_proj)
    model = tk.load_model(given)
    message = (
        r"its output projection is a ScaledProjection, which has no matrix.* Trace head-outputs"
    )
    with pytest.raises(HookPointError, match=message):
        tk.Tracer(model, tiny.pairs(4), "edges", METRIC).run("eap-ig", budget=2)


def test_adapters_that_are_not_merged_are_refused_with_the_advice_to_merge_them():
    config = peft.LoraConfig(target_modules=["o_proj", "q_proj"], init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        adapted = peft.get_peft_model(tiny.hf_model("llama"), config).bfloat16().eval()
    model = tk.load_model(adapted)
    registry = ComponentRegistry.build(model.cfg, "edges")
    with pytest.raises(HookPointError, match="merge them before it is loaded") as error:
        checks.check_sites(model, registry)
    assert "tk.load_model" not in str(error.value)


def test_text_is_not_written_through_edges():
    tracer = tk.Tracer("demo", tk.load_dataset("demo-facts", "demo")[:4], "edges-by-block", METRIC)
    with pytest.raises(ComponentError, match=r"not while text is written.*result\.nodes"):
        tracer.generate(["MLP0>MLP1"], "Mara lives in")
    zeroed = tk.Tracer(
        "demo", tk.load_dataset("demo-facts", "demo")[:4], "edges-by-block", METRIC, source="zero"
    )
    with pytest.raises(ComponentError, match="not while text is written"):
        zeroed.steer(["MLP0>MLP1"])


def test_masks_act_where_the_model_is():
    """A device without data stands in for an accelerator, with which the CPU does not mix."""
    model = tk.load_model(tiny.hf_model("llama"))
    registry = ComponentRegistry.build(model.cfg, "edges")
    tokens = torch.zeros(2, 4, dtype=torch.long)
    names = [*registry.hook_names, "blocks.0.hook_resid_pre"]
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: name in names)
    model.original_model.to("meta")
    patch = edge_patch.EdgePatch(
        model=model,
        registry=registry,
        counterfactual={name: value.to("meta") for name, value in cache.items()},
        positions=torch.ones(2, 4, dtype=torch.bool, device="meta"),
    )
    mask = torch.full((len(registry),), 0.5)
    logits = model.run_with_hooks(tokens.to("meta"), fwd_hooks=patch.hooks(mask))
    assert logits.device.type == "meta"
