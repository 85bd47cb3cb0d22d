"""Attribution patching and integrated gradients over masks."""

from __future__ import annotations

import runpy

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NonFiniteMetricError,
    NotDifferentiableError,
)


class TestGradientBaselines:
    """Attribution patching and integrated gradients over masks."""

    def test_attribution_is_the_slope_of_the_effect_at_the_empty_mask(self, tracer):
        result = tracer.run("attribution", budget=3)
        step = 1e-3
        masks = step * torch.eye(len(tracer.registry))
        slopes = tracer.engine.effects(masks).mean(1) / step
        torch.testing.assert_close(result.component_scores, slopes, rtol=0.05, atol=2e-3)
        members_of = result.component_scores.argsort(descending=True)[:3]
        assert result.binary_mask.nonzero()[:, 0].tolist() == sorted(members_of.tolist())
        assert (result.cost.forward, result.cost.backward) == (2, 1)

    def test_integrated_gradients_are_complete(self, tracer):
        """Along the diagonal the scores sum to the effect of all components."""
        result = tracer.run("mask-ig", budgets=[2, 5], steps=40)
        assert result[0].component_scores.sum().item() == pytest.approx(
            tracer.full_effect, rel=0.02
        )
        assert (result[0].cost.forward, result[0].cost.backward) == (41 + 2, 41)

    @pytest.mark.parametrize("method", ["attribution", "mask-ig"])
    def test_they_need_a_gradient_and_a_goal(self, model, method):
        accuracy = tk.Tracer(model, tiny.pairs(), metric="accuracy")
        with pytest.raises(NotDifferentiableError, match=f"no gradient for {method} to follow"):
            accuracy.run(method, budget=2)
        with pytest.raises(BudgetError, match="needs to know how many components"):
            tk.Tracer(model, tiny.pairs()).run(method)

    @pytest.mark.parametrize(
        ("method", "options"),
        [("attribution", {}), ("mask-ig", {}), ("empirical-bayes-top-k", {"by_gradients": True})],
    )
    def test_they_need_a_finite_gradient(self, model, method, options):
        def rooted(clean, intervened):
            return (intervened.x - intervened.x.detach()).clamp(min=0).sqrt()

        text = "gradient of the metric 'rooted' is not finite.*bounded metric.*probability-drop"
        with pytest.raises(NonFiniteMetricError, match=text):
            tk.Tracer(model, tiny.pairs(6), metric=rooted).run(method, budget=2, **options)

    @pytest.mark.slow
    def test_eap_ig_agrees_with_plain_pytorch(self, shared, tmp_path):
        """Another implementation, of Llama alone; with queries that share keys, in any batches."""
        plain = runpy.run_path(str(shared / "prototypes/edges.py"))
        rows = [
            {**row, "x_ids": row["x_ids"][:1], "y_ids": [(row["x_ids"][0] + 7) % tiny.VOCABULARY]}
            for row in tiny.rows(5)
        ]
        tiny.hf_model("llama").save_pretrained(tmp_path)
        keys = {"prompt": "prompt_ids", "cf": "counterfactual_ids", "x": "x_ids", "y": "y_ids"}
        task = plain["Task"](
            plain["Edges"](tmp_path), [{a: row[b] for a, b in keys.items()} for row in rows]
        )
        expected = dict(zip(task.g.names(), task.eap(4).tolist(), strict=True))
        model = tk.load_model(tiny.hf_model("llama"))
        pairs = tk.PromptPairs.from_ids(rows)
        for size in (None, 2):
            tracer = tk.Tracer(model, pairs, "edges", "logit-difference", max_batch_size=size)
            result = tracer.run("eap-ig", budget=20, steps=4)
            labels = [edge.ends for edge in tracer.registry]
            mine = dict(zip(labels, result.component_scores.tolist(), strict=True))
            assert mine == pytest.approx(expected, rel=1e-4, abs=1e-6)
            assert result.cost.backward == 4

    def test_eap_ig_moves_the_input_where_it_is_patched(self):
        """By plain hooks: edges into the logits, at the last token alone."""
        model, rows = tk.load_model(tiny.hf_model("gpt2")), tiny.rows(3, longest=1)
        names = ["blocks.0.hook_resid_pre", "blocks.1.hook_mlp_out"]
        last, expected = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post", torch.zeros(2)
        for row in rows:
            runs = [
                model.run_with_cache(torch.tensor([row[key]]), names_filter=names)[1]
                for key in ("counterfactual_ids", "prompt_ids")
            ]
            changes = [runs[0][name][0, -1] - runs[1][name][0, -1] for name in names]

            def move(stream, hook=None, change=changes[0]):
                moved = stream.clone()
                moved[:, -1] += change
                return moved

            streams = []

            def keep(stream, hook=None, streams=streams):
                streams.append(stream.detach().requires_grad_(True))
                return streams[0]

            hooks = [(names[0], move), (last, keep)]
            with torch.enable_grad():
                logits = model.run_with_hooks(torch.tensor([row["prompt_ids"]]), fwd_hooks=hooks)
                x, y = (logits[0, -1, row[key][0]] for key in ("x_ids", "y_ids"))
                (slope,) = torch.autograd.grad(y - x, streams[0])
            expected += torch.stack([slope[0, -1] @ change for change in changes]) / len(rows)
        pairs = tk.PromptPairs.from_ids(rows)
        tracer = tk.Tracer(model, pairs, "edges", "logit-difference", positions="last")
        scores = tracer.run("eap-ig", budget=2, steps=1).component_scores
        mine = scores[[tracer.registry.index(f"{name}>logits") for name in ("E", "MLP1")]]
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)

    def test_eap_ig_ranks_edges_by_their_mean_effect_alone(self, model):
        heads = tk.Tracer(model, tiny.pairs(), "head-outputs", "logit-difference")
        text = "eap-ig ranks edges by their mean effect, and it was asked to rank 12 components"
        with pytest.raises(ConfigError, match=text):
            heads.run("eap-ig", budget=2)
        edges = tk.Tracer(model, tiny.pairs(), "edges-by-block", "logit-difference")
        with pytest.raises(ConfigError, match="components by logit-difference, median"):
            edges.run("eap-ig", budget=2, objective="median")

    def test_attribution_agrees_with_transformer_lens(self):
        """Its own attribution patching, of head outputs and MLP blocks, on one-token answers."""
        module = pytest.importorskip("transformer_lens.tools.analysis.attribution_patching")
        model = tk.load_model(tiny.hf_model("gpt2"))
        for parameter in model.parameters():
            parameter.requires_grad_(True)  # Theirs needs it.
        rows = [
            {**row, "x_ids": row["x_ids"][:1], "y_ids": [(row["x_ids"][0] + 7) % tiny.VOCABULARY]}
            for row in tiny.rows(4)
        ]
        tracer = tk.Tracer(
            model,
            tk.PromptPairs.from_ids(rows),
            "head-outputs+mlp-blocks",
            "logit-difference",
        )
        ours = tracer.run("attribution", budget=1).component_scores
        theirs = torch.zeros(len(tracer.registry))
        for row in rows:
            x, y = row["x_ids"][0], row["y_ids"][0]
            # Theirs points from corrupt to clean, ours from clean to counterfactual.
            found = module.attribution_patch(
                model,
                torch.tensor([row["counterfactual_ids"]]),
                torch.tensor([row["prompt_ids"]]),
                lambda logits, x=x, y=y: logits[0, -1, y] - logits[0, -1, x],
            )
            for node, score in found.node_scores.items():
                if node.kind == "attn_head_out":
                    component = tk.Component("head-outputs", node.layer, node.head)
                elif node.kind == "mlp_out":
                    component = tk.Component("mlp-blocks", node.layer)
                else:
                    continue
                theirs[tracer.registry.index(component)] += float(score) / len(rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
