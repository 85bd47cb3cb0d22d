"""What `tools.studies.peers` compares: the same tasks, done by tracekit and by other packages.

Every task is a method that takes pairs and gives two functions: what is timed, and what brings its
result into the order of tracekit's components. Each side is imported only by the process that runs
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor

SHAPES = {"tiny": (4, 4, 128, 1000), "small": (12, 12, 768, 50_257)}
"""Layers, heads, width and vocabulary; `small` is GPT-2 small."""
STEPS = 5
"""Gradients of EAP-IG."""

Job = tuple[Callable[[], Any], Callable[[Any], Tensor]]


@dataclass(frozen=True)
class Rows:
    """Pairs of prompts of equal length, and an answer for each prompt."""

    clean: list[list[int]]
    corrupted: list[list[int]]
    answers: list[list[int]]

    @classmethod
    def draw(cls, shape: str, seed: int, count: int) -> Rows:
        """Random prompts of 15 to 20 tokens; the third to the sixth differ within a pair."""
        generator = torch.Generator().manual_seed(seed)

        def ids(length: int) -> list[int]:
            return torch.randint(SHAPES[shape][3], (length,), generator=generator).tolist()

        clean = [ids(15 + number % 6) for number in range(count)]
        corrupted = [[*prompt[:2], *ids(4), *prompt[6:]] for prompt in clean]
        return cls(clean, corrupted, [ids(2) for _ in clean])

    def difference(self, logits: Tensor) -> Tensor:
        """The metric of each pair: the logit of the second answer minus the logit of the first."""
        last = torch.tensor([len(row) - 1 for row in self.clean])
        first, second = torch.tensor(self.answers).T
        number = torch.arange(len(last))
        return logits[number, last, second] - logits[number, last, first]


def padded(prompts: list[list[int]], device: str) -> Tensor:
    """Token ids, padded on the right: attention is causal, and nothing before them changes."""
    rows = [torch.tensor(row, device=device) for row in prompts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def random_weights(shape: str, device: str) -> Any:
    """A GPT-2 whose heads differ and whose logits spread as those of trained models do."""
    layers, heads, width, vocabulary = SHAPES[shape]
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        vocab_size=vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        architectures=["GPT2LMHeadModel"],
    )
    made: Any = transformers.GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim == 2:
                std = 0.1 if "wte" in name or "wpe" in name else parameter.shape[0] ** -0.5
                parameter.normal_(0, std, generator=generator)
    return made.eval().to(device)


def edge_labels(shape: str) -> list[str]:
    """Edges by name, in the order of the scores."""
    from tracekit.components import ComponentRegistry

    layers, heads, width, _ = SHAPES[shape]
    sizes = SimpleNamespace(n_layers=layers, n_heads=heads, d_model=width)
    return [str(edge) for edge in ComponentRegistry.build(sizes, "edges")]


def random_circuit(shape: str, size: int, seed: int) -> list[str]:
    """So many edges, each on a path from the embedding to the logits within the set."""
    receivers: dict[str, list[str]] = {}
    for label in edge_labels(shape):
        sender, receiver = label.split(">")
        receivers.setdefault(sender, []).append(receiver)
    generator = torch.Generator().manual_seed(seed)
    circuit: set[str] = set()
    while len(circuit) < size:
        path, sender = set(), "E"
        while sender != "logits":
            choices = receivers[sender]
            receiver = choices[int(torch.randint(len(choices), (1,), generator=generator))]
            path.add(f"{sender}>{receiver}")
            # A head reads by its query, key or value, and writes as a whole.
            sender = receiver.translate(str.maketrans("QKV", "HHH"))
        if len(circuit | path) <= size:
            circuit |= path
    return sorted(circuit)


class Tracekit:
    """This package."""

    def __init__(self, shape: str, device: str) -> None:
        """Loads the model."""
        import tracekit as tk

        self.tk, self.shape = tk, shape
        self.model = tk.load_model(random_weights(shape, device))

    def tracer(self, rows: Rows, components: str) -> Any:
        """A tracer of the pairs."""
        pairs = zip(rows.clean, rows.corrupted, rows.answers, strict=True)
        data = [
            {"prompt_ids": clean, "counterfactual_ids": other, "x_ids": [x], "y_ids": [y]}
            for clean, other, (x, y) in pairs
        ]
        data = self.tk.PromptPairs.from_ids(data)
        return self.tk.Tracer(self.model, data, components, "logit-difference")

    def ranking(self, rows: Rows, components: str, method: str, **options: int) -> Job:
        """Scores of a ranking."""

        def run() -> Tensor:
            tracer = self.tracer(rows, components)
            return tracer.run(method, budget=1, objective="mean", **options).component_scores

        return run, torch.Tensor.flatten

    def eap(self, rows: Rows) -> Job:
        """EAP scores of all edges."""
        return self.ranking(rows, "edges", "attribution")

    def eap_ig(self, rows: Rows) -> Job:
        """EAP-IG scores of all edges."""
        return self.ranking(rows, "edges", "eap-ig", steps=STEPS)

    def head_attribution(self, rows: Rows) -> Job:
        """Attribution patching of all heads."""
        return self.ranking(rows, "head-outputs", "attribution")

    def head_patching(self, rows: Rows) -> Job:
        """The effect of each head alone."""
        return lambda: self.tracer(rows, "head-outputs").single_effects(), lambda all: all.effects

    def circuit(self, rows: Rows, size: int) -> Job:
        """The effect of patching all edges but those of a circuit, on each pair."""
        circuit = set(random_circuit(self.shape, size, 0))
        mask = torch.tensor([label not in circuit for label in edge_labels(self.shape)]).float()
        return lambda: self.tracer(rows, "edges").evaluate(mask, per_example=True), Tensor.flatten

    def next_circuit(self, rows: Rows, size: int) -> Job:
        """The same with a tracer that measured another circuit before."""
        tracer = self.tracer(rows, "edges")
        circuits = [set(random_circuit(self.shape, size, seed)) for seed in range(2)]
        before, mask = (
            torch.tensor([label not in each for label in edge_labels(self.shape)]).float()
            for each in reversed(circuits)
        )
        tracer.evaluate(before)
        return lambda: tracer.evaluate(mask, per_example=True), Tensor.flatten


class EAPIG:
    """github.com/hannamw/EAP-IG, on a HookedTransformer; the folder of `eap` is on the path."""

    def __init__(self, shape: str, device: str) -> None:
        """Loads the model."""
        self.attributing: Any = import_module("eap.attribute")
        self.evaluating: Any = import_module("eap.evaluate")
        self.make_graph = import_module("eap.graph").Graph.from_model
        self.shape, self.device = shape, device
        self.model = hooked_transformer(shape, device)
        # As its notebooks set it.
        self.model.cfg.use_split_qkv_input = True
        self.model.cfg.use_attn_result = True
        self.model.cfg.use_hook_mlp_in = True
        for module in (self.attributing, self.evaluating):
            module.tokenize_plus = self.tokenize_plus

    @staticmethod
    def tokenize_plus(model: Any, prompts: list[list[int]]) -> tuple[Tensor, Tensor, Tensor, int]:
        """What the package makes of text: ids, the mask of attention, lengths and the width."""
        tokens = padded(prompts, model.cfg.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=tokens.device)
        width = tokens.shape[1]
        mask = (torch.arange(width, device=tokens.device) < lengths[:, None]).long()
        return tokens, mask, lengths, width

    def attribution(self, rows: Rows, method: str, **options: int) -> Job:
        """Scores of all edges. It divides by the number of pairs, so the metric is their sum."""
        data = [(rows.clean, rows.corrupted, rows.answers)]

        def run() -> Any:
            graph = self.make_graph(self.model)
            self.attributing.attribute(
                self.model,
                graph,
                data,
                lambda logits, *_: rows.difference(logits).sum(),
                method=method,
                quiet=True,
                **options,
            )
            return graph

        def read(graph: Any) -> Tensor:
            names = map(peer_name, edge_labels(self.shape))
            return torch.stack([graph.edges[name].score for name in names])

        return run, read

    def eap(self, rows: Rows) -> Job:
        """EAP scores of all edges."""
        return self.attribution(rows, "EAP")

    def eap_ig(self, rows: Rows) -> Job:
        """EAP-IG scores of all edges."""
        return self.attribution(rows, "EAP-IG-inputs", ig_steps=STEPS)

    def evaluation(self, rows: Rows, graph: Any, size: int, seed: int) -> Tensor:
        """The metric of each pair with all edges patched but those of a circuit."""
        graph.in_graph[:] = False
        for label in random_circuit(self.shape, size, seed):
            graph.edges[peer_name(label)].in_graph = True
        data = [(rows.clean, rows.corrupted, rows.answers)]
        values = self.evaluating.evaluate_graph(
            self.model, graph, data, lambda logits, *_: rows.difference(logits), quiet=True
        )
        if graph.count_included_edges() != size:
            raise RuntimeError(f"It left {graph.count_included_edges()} of {size} edges.")
        return values

    def change(self, rows: Rows, values: Tensor) -> Tensor:
        """The metric less that of the clean prompts: an effect of tracekit's."""
        with torch.no_grad():
            return values - rows.difference(self.model(padded(rows.clean, self.device))).cpu()

    def circuit(self, rows: Rows, size: int) -> Job:
        """The metric of a circuit, on each pair."""

        def run() -> Tensor:
            return self.evaluation(rows, self.make_graph(self.model), size, 0)

        return run, partial(self.change, rows)

    def next_circuit(self, rows: Rows, size: int) -> Job:
        """The same with a graph that is there already."""
        graph = self.make_graph(self.model)
        return lambda: self.evaluation(rows, graph, size, 0), partial(self.change, rows)


def peer_name(label: str) -> str:
    """EAP-IG's name of an edge: `L3H5>L4K0` is `a3.h5->a4.h0<k>`."""

    def node(name: str) -> str:
        if name in ("E", "logits"):
            return name.replace("E", "input")
        if name.startswith("MLP"):
            return f"m{name[3:]}"
        for letter in "HQKV":
            if letter in name:
                layer, head = name[1:].split(letter)
                return f"a{layer}.h{head}" + ("" if letter == "H" else f"<{letter.lower()}>")
        raise ValueError(name)

    return "->".join(map(node, label.split(">")))


def hooked_transformer(shape: str, device: str) -> Any:
    """The model as TransformerLens had it up to 3.9."""
    lens = import_module("transformer_lens")
    conversions = import_module("transformer_lens.pretrained.weight_conversions")
    layers, heads, width, vocabulary = SHAPES[shape]
    config = lens.HookedTransformerConfig(
        n_layers=layers,
        n_heads=heads,
        d_model=width,
        d_head=width // heads,
        d_mlp=4 * width,
        n_ctx=1024,
        d_vocab=vocabulary,
        act_fn="gelu_new",
        normalization_type="LN",
        device=device,
    )
    model = lens.HookedTransformer(config)
    weights = conversions.convert_gpt2_weights(random_weights(shape, device), config)
    model.load_state_dict(weights, strict=False)
    return model.eval()


class _Lens:
    """Patching of heads by `transformer_lens.patching`, on either of its models."""

    model: Any
    shape: str
    device: str

    def head_patching(self, rows: Rows) -> Job:
        """The metric with each head patched alone."""
        from transformer_lens import patching

        clean, corrupted = (padded(each, self.device) for each in (rows.clean, rows.corrupted))

        def metric(logits: Tensor) -> Tensor:
            return rows.difference(logits).mean()

        @torch.no_grad()
        def run() -> Tensor:
            _, cache = self.model.run_with_cache(
                corrupted, names_filter=lambda name: name.endswith("hook_z")
            )
            return patching.get_act_patch_attn_head_out_all_pos(self.model, clean, cache, metric)

        @torch.no_grad()
        def read(patched: Tensor) -> Tensor:
            return (torch.as_tensor(patched) - metric(self.model(clean))).flatten().cpu()

        return run, read


class HookedTransformerSide(_Lens):
    """TransformerLens up to 3.9, as in its demonstrations."""

    def __init__(self, shape: str, device: str) -> None:
        """Loads the model."""
        self.shape, self.device = shape, device
        self.model = hooked_transformer(shape, device)

    def head_attribution(self, rows: Rows) -> Job:
        """Attribution patching of all heads, with caches of activations and gradients."""
        clean, corrupted = (padded(each, self.device) for each in (rows.clean, rows.corrupted))

        def is_z(name: str) -> bool:
            return name.endswith("hook_z")

        def run() -> Tensor:
            activations: dict[str, Tensor] = {}
            gradients: dict[str, Tensor] = {}

            def keep(cache: dict[str, Tensor], value: Tensor, hook: Any) -> None:
                cache[hook.name] = value.detach()

            with torch.no_grad():
                _, cache = self.model.run_with_cache(corrupted, names_filter=is_z)
            hooks = {
                "fwd_hooks": [(is_z, partial(keep, activations))],
                "bwd_hooks": [(is_z, partial(keep, gradients))],
            }
            with self.model.hooks(**hooks):
                rows.difference(self.model(clean)).mean().backward()
            self.model.zero_grad()
            scores = [
                ((cache[name] - activations[name]) * gradients[name]).sum((0, 1, 3))
                for name in activations
            ]
            return torch.stack(scores)

        return run, lambda scores: scores.flatten().cpu()


class TransformerBridgeSide(_Lens):
    """TransformerLens from 4 on; its attribution takes one pair, as a metric does."""

    def __init__(self, shape: str, device: str) -> None:
        """Loads the model."""
        from tokenizers import Tokenizer, models
        from transformer_lens.model_bridge import TransformerBridge

        self.shape, self.device = shape, device
        words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        weights = random_weights(shape, device)
        with TemporaryDirectory() as folder:
            weights.config.save_pretrained(folder)
            self.model = TransformerBridge.boot_transformers(
                folder,
                hf_model=weights,
                tokenizer=transformers.PreTrainedTokenizerFast(
                    tokenizer_object=words, unk_token="<unk>"
                ),
                device=device,
                dtype=torch.float32,
            )

    def attribution(self, rows: Rows, granularity: Any) -> list[Any]:
        """Results of all pairs; its gradients are those of the prompt it calls corrupted."""
        from transformer_lens.tools.analysis import attribution_patching as lens

        def scores(clean: list[int], other: list[int], answers: list[int]) -> Any:
            first, second = answers
            return lens.attribution_patch(
                self.model,
                torch.tensor([other], device=self.device),
                torch.tensor([clean], device=self.device),
                lambda logits: logits[0, -1, second] - logits[0, -1, first],
                config=lens.EdgeAttributionConfig(granularity=granularity),
            )

        return list(map(scores, rows.clean, rows.corrupted, rows.answers))

    def eap(self, rows: Rows) -> Job:
        """EAP scores of all edges, which it gives for each token."""

        def name(node: Any) -> str:
            if node.kind in ("embed", "logits"):
                return {"embed": "E"}.get(node.kind, node.kind)
            if node.kind in ("mlp_in", "mlp_out"):
                return f"MLP{node.layer}"
            letter = "H" if node.kind == "attn_head_out" else node.kind[0].upper()
            return f"L{node.layer}{letter}{node.head}"

        def read(results: list[Any]) -> Tensor:
            totals = dict.fromkeys(edge_labels(self.shape), 0.0)
            for result in results:
                for (sender, receiver), score in result.edge_scores.items():
                    totals[f"{name(sender)}>{name(receiver)}"] += score / len(results)
            return torch.tensor(list(totals.values()))

        return lambda: self.attribution(rows, "edge"), read

    def head_attribution(self, rows: Rows) -> Job:
        """Attribution patching of all heads, which it gives for each token."""

        def read(results: list[Any]) -> Tensor:
            layers, heads, _, _ = SHAPES[self.shape]
            scores = torch.zeros(layers, heads)
            for result in results:
                for node, score in result.node_scores.items():
                    if node.kind == "attn_head_out":
                        scores[node.layer, node.head] += score / len(results)
            return scores.flatten()

        return lambda: self.attribution(rows, "node"), read
