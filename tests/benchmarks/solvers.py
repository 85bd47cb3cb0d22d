"""The tables of docs/search-quality.md: `python -m tests.benchmarks.solvers TABLE [--family ...]`.

- `greedy`: paths (also with 0.15 of greedy's passes), and single budgets with refinement, against
  greedy and the best known at 10, 20, 30 and 40 % of the heads, and the single best head against
  all single heads. On the demo tasks (`demo`), and on random GPT-2s with strong and mild
  interactions (8 layers of 8 heads, width 64, vocabulary 600, weights by the recipe of the recorded
  numbers at scale 1.3 and 0.85; 64 pairs of 9 + 3 random tokens with one prompt token changed,
  oriented so that the full intervention moves each towards y).
- `fresh`: effects on pairs that had no part in the search, by method; `--kind mlp-outputs` for
  neurons.
- `objectives`: the same, by objective.
- `choices`: what `objective="auto"` decides by, on the examples at hand, and what it should have
  decided, on fresh pairs.
- `ceiling`: heads ranked by single effects on thousands of other pairs, on fresh ones.
- `rivals`: neurons, against top-k, random, integrated gradients over masks, and PGB-CT's search of
  lambda.
- `large`: the same rivals, on 20,480 hidden MLP units of a random GPT-2.
- `optimum`: against exhaustive search over 9 to 14 heads of random GPT-2s.
- `ablations`: 2,048 hidden units of the demo model, which are too many for a walk, without one part
  each.
- `rewards`: PGB-CT with either reward on the random GPT-2s.
- `best-known`: the best effects that searches of `--passes` passes find, kept in `best_known.json`.
- `starts`: local search with and without sets for single examples.
- `passes`: fronts of the demo model's heads with default passes, and with 0.4 of greedy's, as a
  share of the best that these and `--passes` passes find.
- `front`: the front of GPT-2 small's heads on WinoBias dev, timed beside plain forwards.
- `many`: 9,216 hidden units of random GPT-2s on `--pairs` pairs, and 2,048 of the demo model on
  half of each demo data set, against eight runs of PGB-CT.
- `wide`: 144 heads, against greedy, and within `--passes` passes against the default.
- `races`: local search, top-k and the strongest pairs with races and without, on random GPT-2s of
  four layers and 512 pairs.

Cost is in passes over the data, forward and backward alike.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Annotated, Any, Literal, NamedTuple

import torch
import transformers
import typer
from tracekit.search.cross_fit import RANKED_ALONE, cross_fit
from tracekit.search.local.plan import log_spaced_sizes

import tracekit as tk
from tests.benchmarks.setting import DATA, SIZES, Padded, tokenizer
from tracekit.components.masks import ranking
from tracekit.data.registry import DATASETS
from tracekit.engine.engine import Engine, EngineConfig
from tracekit.metrics import resolve
from tracekit.results.strongest_pairs import strongest_pairs
from tracekit.search import Goal, LocalSearch, Search, TopK, make
from tracekit.search.base import as_count
from tracekit.search.objectives import LogOdds, ScoringEngine, TrimmedMean
from tracekit.search.shrinkage import shrunken_effects

SHARES = (0.1, 0.2, 0.3, 0.4)
SCALES = {"strong": 1.3, "mild": 0.85}
VOCABULARY = 600


def random_engine(
    seed: int,
    scale: float,
    *,
    layers: int = 8,
    heads: int = 8,
    hidden: int | None = None,
    pairs: int = 64,
) -> Engine:
    """A random GPT-2 with random pairs."""
    model = random_model(seed, scale, layers=layers, heads=heads, hidden=hidden)
    return engine(model, random_rows(model, seed, pairs))


def random_model(seed: int, scale: float, *, layers: int = 8, heads: int = 8, hidden: int | None):
    """A random GPT-2."""
    width = 64 - 64 % heads
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        n_inner=hidden,
        n_positions=64,
        vocab_size=VOCABULARY,
    )
    hf = transformers.AutoModelForCausalLM.from_config(config)
    return tk.load_model(recipe().fill(hf, seed, scale))


def random_rows(model, seed: int, pairs: int) -> list[dict]:
    """Random pairs, oriented so that the full intervention moves each towards y."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(VOCABULARY, (count,), generator=generator).tolist()

    rows = []
    for _ in range(pairs):
        prompt = ids(9)
        other, (at,) = list(prompt), torch.randint(9, (1,), generator=generator).tolist()
        (other[at],) = ids(1)
        rows.append(
            {"prompt_ids": prompt, "counterfactual_ids": other, "x_ids": ids(3), "y_ids": ids(3)}
        )
    for row, effect in zip(rows, engine(model, rows).full_effects.tolist(), strict=True):
        if effect < 0:
            row["x_ids"], row["y_ids"] = row["y_ids"], row["x_ids"]
    return rows


HEADS = "attention-patterns"


def engine(model, rows: list[dict], kind: str = HEADS) -> Engine:
    """All heads, or components of another kind; odds ratio."""
    registry = tk.components.ComponentRegistry.build(model.cfg, kind)
    return Engine(model, tk.PromptPairs.from_ids(rows), registry, resolve("odds-ratio"))


def recipe():
    """The module that fills models with reproducible weights."""
    path = Path(DATA).parent / "oracle" / "recipe.py"
    spec = importlib.util.spec_from_file_location("recipe", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_kind(case: Engine, kind: str) -> Engine:
    """The same data set with other components."""
    registry = tk.components.ComponentRegistry.build(case.model.cfg, kind)
    return Engine(case.model, case.pairs, registry, case.metric, case.config)


def cases(family: str, seeds: range) -> Iterator[tuple[str, Engine]]:
    """Name and engine of every case of a family."""
    if family == "demo":
        demo = tk.load_model("demo")
        registry = tk.components.ComponentRegistry.build(demo.cfg, "attention-patterns")
        for name, entry in DATASETS.items():
            if name.startswith("demo-"):
                pairs = tk.load_dataset(name, demo)
                metric = resolve(entry.metric)
                config = EngineConfig(positions=entry.positions)
                yield name, Engine(demo, pairs, registry, metric, config)
        return
    for seed in seeds:
        yield f"{family} {seed}", random_engine(seed, SCALES[family])


def searched(case: Engine, search: Search, budgets: Iterable[int | float]) -> Answer:
    """Mean effects at budgets, and the passes they took together."""
    before = case.cost
    found = search.search(case, Goal.make(case.n_components, budgets=list(budgets)), 0)
    passes = (case.cost - before).forward_equivalents
    return Answer([one.effects.mean().item() for one in found], passes)


class Answer(NamedTuple):
    """What a search found, and what it took."""

    effects: list[float]
    passes: float


def against(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratios of effects."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def shown(values: Iterable[float]) -> str:
    """Ratios in a row of a table."""
    return " ".join(f"{value:.3f}" for value in values)


BEST_KNOWN = Path(__file__).with_name("best_known.json")
"""Effects at 10, 20, 30 and 40 % of the heads, by case."""
SHORT = 0.15
"""Share of greedy's passes that a short search takes."""


def table_greedy(family: str, seeds: range) -> None:
    """Paths and single budgets against greedy, and against the best known."""
    known = json.loads(BEST_KNOWN.read_text())
    ratios: dict[str, list[float]] = {}
    shares, costs, first = [], [], []
    for name, case in cases(family, seeds):
        greedy = searched(case, make("greedy", {}), SHARES)
        path = searched(case, make("local-search", {}), SHARES)
        short_search = LocalSearch(max_passes=int(SHORT * greedy.passes))
        one = [searched(case, make("pgb-ct", {}), [share]) for share in SHARES]
        best = case.set_effects([[i] for i in range(case.n_components)]).mean(1).max().item()
        top = searched(case, make("local-search", {}), [1, *SHARES]).effects[0] / best
        answers = {
            "local search": path.effects,
            f"local search, {SHORT} of the passes": searched(case, short_search, SHARES).effects,
            "one budget": [answer.effects[0] for answer in one],
        }
        of_case = {label: against(effects, greedy.effects) for label, effects in answers.items()}
        if name in known:
            of_case["local search, of the best known"] = against(path.effects, known[name])
        for label, values in of_case.items():
            ratios.setdefault(label, []).extend(values)
        shares.append(path.passes / greedy.passes)
        costs += [answer.passes for answer in one]
        first.append(top)
        say(
            f"{name}: {'; '.join(f'{label} {shown(row)}' for label, row in of_case.items())}; "
            f"path at {path.passes:.0f} of {greedy.passes:.0f} passes; first head {top:.3f} of the "
            "optimum"
        )
    for label, values in ratios.items():
        say(f"{family}, {label}: {summary(values)}")
    say(
        f"{family}: path at {mean(shares):.2f} of greedy's passes, {max(shares):.2f} at most; one "
        f"budget in {max(costs):.0f} passes at most; first head at least {min(first):.3f} of the "
        "optimum"
    )


def summary(ratios: Sequence[float]) -> str:
    """What is told of ratios."""
    low = (sum(ratio < bound for ratio in ratios) for bound in (0.995, 0.9))
    return (
        f"mean {mean(ratios):.3f}, median {median(ratios):.3f}, least {min(ratios):.3f}, most "
        f"{max(ratios):.3f}, below 0.995 in {next(low)} and below 0.9 in {next(low)} of "
        f"{len(ratios)}"
    )


NEURON_BUDGETS = (1, 2, 5, 0.025, 0.05, 0.1, 0.15, 0.3)


def neuron_cases(seeds: range) -> Iterator[tuple[str, Engine]]:
    """Demo tasks and random GPT-2s, with neurons."""
    for name, case in cases("demo", seeds):
        yield name, with_kind(case, "mlp-outputs")
    for family in SCALES:
        for seed in seeds:
            yield f"{family} {seed}", with_kind(random_engine(seed, SCALES[family]), "mlp-outputs")


def mask_gradients(case: Engine, budgets: Iterable[int | float]) -> Answer:
    """Integrated gradients over masks: the mean gradient at 0, 0.1, ..., 1 ranks."""
    before, n = case.cost, case.n_components
    total = sum(case.gradient(torch.full((n,), j / 10), torch.ones_like)[1] for j in range(11))
    order = ranking(total)
    effects = case.set_effects([order[: as_count(budget, n)] for budget in budgets]).mean(1)
    return Answer(effects.tolist(), (case.cost - before).forward_equivalents)


def large_cases() -> Iterator[tuple[str, Engine]]:
    """Hidden units by the tens of thousands."""
    for family, scale in SCALES.items():
        case = random_engine(0, scale, layers=4, hidden=5120, pairs=16)
        yield f"{family} 0", with_kind(case, "mlp-neurons")


def table_rivals(named: Iterable[tuple[str, Engine]]) -> None:
    """Neurons or hidden units: paths against the cheap methods."""
    every: list[float] = []
    for name, case in named:
        path = searched(case, make("local-search", {}), [*NEURON_BUDGETS, 1.0])
        rivals = {
            "top-k": searched(case, make("top-k", {}), NEURON_BUDGETS),
            "random": searched(case, make("random", {"draws": 20}), NEURON_BUDGETS),
            "mask-IG": mask_gradients(case, NEURON_BUDGETS),
            "pgb-ct": searched(case, make("pgb-ct", {"refine": False}), NEURON_BUDGETS),
        }
        best = [max(column) for column in zip(*(r.effects for r in rivals.values()), strict=True)]
        ratios = against(path.effects[:-1], best)
        every += ratios
        taken = ", ".join(f"{rival} {answer.passes:.0f}" for rival, answer in rivals.items())
        say(
            f"{name}, {case.n_components}: {shown(ratios)} of the best rival's effect; passes: "
            f"path {path.passes:.0f}, {taken}"
        )
    low = sum(ratio < 0.9999 for ratio in every)
    say(
        f"mean {mean(every):.3f}, least {min(every):.3f}, below the best rival in {low} of "
        f"{len(every)}"
    )


SHAPES = ((3, 3, 90), (2, 5, 60), (3, 4, 40), (2, 7, 10))
"""Layers, heads per layer, and how many random models of them."""


def table_optimum() -> None:
    """Every budget against exhaustive search."""
    equal, least, total = 0, 1.0, 0
    for layers, heads, count in SHAPES:
        for seed in range(count):
            scale = (0.85, 1.0, 1.3)[seed % 3]
            case = random_engine(seed, scale, layers=layers, heads=heads, pairs=16)
            n = case.n_components
            budgets = range(1, n + 1)
            path = searched(case, make("local-search", {}), budgets)
            best = searched(case, make("exhaustive", {"max_sets": 2**n}), budgets)
            ratios = against(path.effects, best.effects)
            total += 1
            equal += min(ratios) > 0.9999
            least = min(least, min(ratios))
            if min(ratios) <= 0.9999:
                say(f"{layers} x {heads}, {seed}: {shown(ratios)} at {path.passes:.0f} passes")
        say(f"so far: equal at every budget in {equal} of {total}; least {least:.4f}")


ABLATIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "without refinement": {"refine": False},
    "without soft top-k": {"soft_steps": 0},
    "per-example reward": {"reward": "per-example"},
    "uniform budgets": {"budget_sampling": "uniform"},
    "soft top-k alone, per-example": {"refine": False, "reward": "per-example"},
    "soft top-k alone, uniform": {"refine": False, "budget_sampling": "uniform"},
}


def table_ablations() -> None:
    """Hidden units of the demo tasks, without one part each, as a share of the whole."""
    ratios: dict[str, list[list[float]]] = {name: [] for name in ABLATIONS}
    for name, heads in cases("demo", range(0)):
        case = with_kind(heads, "mlp-neurons")
        answers = {
            part: searched(case, make("local-search", options), [*NEURON_BUDGETS, 1.0]).effects[:-1]
            for part, options in ABLATIONS.items()
        }
        for part, effects in answers.items():
            ratios[part].append(against(effects, answers["as it is"]))
            say(f"{name}, {part}: {shown(ratios[part][-1])}")
    for part, rows in ratios.items():
        say(f"{part}: {shown(map(mean, zip(*rows, strict=True)))}")


FRESH = 4096
"""Fresh pairs."""
DRAWS = 100
"""Random sets of each size."""


Sets = dict[str, list[list[int]]]
"""Sets at 10, 20, 30 and 40 %, by search."""


def table_fresh(
    family: str,
    seeds: range,
    searches: Callable[[Engine], Sets],
    rivals: Sequence[str],
    kind: str = HEADS,
) -> None:
    """Sets on pairs that had no part in the search: other pairs of a generator, or the other half.

    Ratios to greedy's effect on these pairs, and to the largest of the rivals'. The largest of
    several means is partly largest by chance: a set is called behind where the mean difference on
    the same pairs is below zero by two standard errors.
    """
    to_greedy: dict[str, list[float]] = {}
    to_best: dict[str, list[float]] = {}
    is_behind: dict[str, list[bool]] = {}
    for name, parts in fresh_cases(family, seeds, kind):
        on_parts: dict[str, list[torch.Tensor]] = {}
        for case, fresh in parts:
            for label, sets in searches(case).items():
                on_parts.setdefault(label, []).append(fresh.set_effects(sets).double())
        effects = {label: torch.cat(each, 1) for label, each in on_parts.items()}
        of_rivals = torch.stack([effects[rival] for rival in rivals])
        best = of_rivals[of_rivals.mean(-1).argmax(0), range(of_rivals.shape[1])]
        for label, of_label in effects.items():
            mean_effects, behind = of_label.mean(1), best - of_label
            errors = behind.std(1) / behind.shape[1] ** 0.5
            if "greedy" in effects:
                of_greedy = mean_effects / effects["greedy"].mean(1)
                to_greedy.setdefault(label, []).extend(of_greedy.tolist())
            to_best.setdefault(label, []).extend((mean_effects / best.mean(1)).tolist())
            is_behind.setdefault(label, []).extend((behind.mean(1) > 2 * errors).tolist())
        shares = "; ".join(
            f"{label} {shown(each[-len(SHARES) :])}" for label, each in to_best.items()
        )
        error = best.std(1) / best.shape[1] ** 0.5 / best.mean(1)
        say(f"{name}, of the best of {', '.join(rivals)} (± {shown(error.tolist())}): {shares}")
    for label, ratios in to_best.items():
        equal = mean(ratio > 0.9995 for ratio in ratios)
        greedy = to_greedy.get(label)
        say(
            f"{family}, {label}: "
            + (f"against greedy {three(greedy)}; " if greedy else "")
            + f"against the best rival {three(ratios)}, at least as good in {100 * equal:.0f} % of "
            f"{len(ratios)}, behind in {sum(is_behind[label])}"
        )


def three(ratios: Sequence[float]) -> str:
    """Median, mean and least."""
    return f"median {median(ratios):.2f}, mean {mean(ratios):.2f}, least {min(ratios):.2f}"


def fresh_cases(
    family: str, seeds: range, kind: str
) -> Iterator[tuple[str, list[tuple[Engine, Engine]]]]:
    """Name of every case, and engines to search on, each with one on fresh pairs."""
    if family != "demo":
        for seed in seeds:
            model = random_model(seed, SCALES[family], hidden=None)
            own, fresh = random_rows(model, seed, 64), random_rows(model, seed + 50_000, FRESH)
            yield f"{family} {seed}", [(engine(model, own, kind), engine(model, fresh, kind))]
        return
    for name, heads in cases("demo", seeds):
        if heads.metric.linearization is None:
            continue
        case = heads if kind == HEADS else with_kind(heads, kind)
        n = case.n_examples
        order = torch.randperm(n, generator=torch.Generator().manual_seed(7)).tolist()
        parts = (order[: n // 2], order[n // 2 :])
        halves = [case.with_pairs(case.pairs.subset(sorted(part))) for part in parts]
        yield name, [(halves[0], halves[1]), (halves[1], halves[0])]


def rivals_for(kind: str) -> tuple[str, ...]:
    """The rivals of the front; greedy where it takes no tens of thousands of passes."""
    return ("top-k", *(("greedy",) if kind == HEADS else ()), "pgb-ct", "random")


def sets_of_methods(case: Engine) -> Sets:
    """Of the front as it is by default, its joint search alone, and their rivals."""
    (kind,) = case.registry.kinds
    names = (*rivals_for(kind), "shrunken-top-k", "local-search")
    sets = {name: selected(case, name) for name in names}
    front = front_chosen_by_halves(case, max_budget=SHARES[-1])
    answers = [front.at(share) for share in SHARES]
    say(f"  the front answers with {' '.join(answer.method for answer in answers)}")
    return sets | {"front": [answer.binary_mask.nonzero()[:, 0].tolist() for answer in answers]}


def table_ceiling(family: str, seeds: range) -> None:
    """Single effects on other pairs than those at hand, many of them, on fresh ones.

    What a ranking of components one by one can have: of top-k's effect on the same fresh pairs.
    """
    ratios: dict[str, list[float]] = {}
    for seed in seeds:
        model = random_model(seed, SCALES[family], hidden=None)
        own, fresh, others = (
            engine(model, random_rows(model, seed + first, pairs))
            for first, pairs in ((0, 64), (50_000, FRESH), (90_000, FRESH))
        )
        singles = [(i,) for i in range(own.n_components)]
        at_hand = own.set_effects(singles)
        orders = {
            "top-k": ranking(at_hand.mean(1)),
            "shrunken top-k": ranking(shrunken_effects(own, at_hand)),
            f"top-k of {FRESH} other pairs": ranking(others.set_effects(singles).mean(1)),
        }
        sets = [order[:count] for order in orders.values() for count in counts(own.n_components)]
        means = fresh.set_effects(sets).double().mean(1).unflatten(0, (len(orders), -1))
        for label, of_label in zip(orders, (means / means[0]).tolist(), strict=True):
            ratios.setdefault(label, []).extend(of_label)
            say(f"{family} {seed}, {label}: {shown(of_label)}")
    for label, each in ratios.items():
        equal = mean(ratio > 0.9995 for ratio in each)
        say(f"{family}, {label}: {three(each)}, at least as good in {100 * equal:.0f} %")


def front_chosen_by_halves(case: Engine, **limits: Any) -> tk.ParetoFront:
    """The front as it is by default, without its statistics."""
    tracer = tk.Tracer(
        case.model, case.pairs, case.registry, case.metric, positions=case.config.positions
    )
    return tracer.pareto(objective="auto", statistics=False, **limits)


def table_choices(family: str, seeds: range) -> None:
    """Leads of local search over components ranked alone, and which it had been better to take."""
    searches = [LocalSearch(start_from_examples=False), RANKED_ALONE]
    of_choice: list[float] = []
    leads: list[tuple[float, float, float]] = []
    for name, parts in fresh_cases(family, seeds, HEADS):
        for case, fresh in parts:
            n = case.n_components
            sizes = sorted({*log_spaced_sizes(1, as_count(SHARES[-1], n), 12), *counts(n)})
            goal = Goal(budgets=tuple(sizes))
            found = [search.search(case, goal, 0) for search in searches]
            on_all = torch.stack([torch.stack([one.effects for one in each]) for each in found])
            fit = cross_fit(case, searches, sizes, 0, on_all=on_all)
            sets = [one.mask.nonzero()[:, 0].tolist() for each in found for one in each]
            means = fresh.set_effects(sets).mean(1).unflatten(0, (2, -1))
            choice = fit.choice()
            for rank, size in enumerate(sizes):
                joint, alone = means[:, rank].tolist()
                if size in counts(n):
                    of_choice.append(means[choice[rank], rank].item() / max(joint, alone))
                if sets[rank] != sets[len(sizes) + rank]:
                    own, other = (lead(effects[:, rank]) for effects in (on_all, fit.effects))
                    leads.append((own, other, joint / alone))
                    taken = searches[choice[rank]].name
                    say(
                        f"  {name}, {size} heads: ahead by {own:.1f} standard errors, on halves by "
                        f"{other:.1f}; fresh {joint / alone:.2f}; takes {taken}"
                    )
    say(f"{family}: the chosen one has of the better one {three(of_choice)}")
    if len(leads) > 2:
        correlations = torch.tensor(leads).T.corrcoef()[2, :2].tolist()
        say(f"{family}: correlations of these leads with the ratio: {shown(correlations)}")


def counts(n: int) -> list[int]:
    """Sizes at 10, 20, 30 and 40 %."""
    return [as_count(share, n) for share in SHARES]


def lead(effects: torch.Tensor) -> float:
    """Standard errors by which the first of two sets is ahead on average."""
    differences = effects[0] - effects[1]
    return (
        differences.mean() / differences.std().clamp(min=1e-12) * len(differences) ** 0.5
    ).item()


def sets_of_objectives(case: Engine) -> Sets:
    """Of local search by objective, greedy and top-k."""
    return {
        "greedy": selected(case, "greedy"),
        "top-k": selected(case, "top-k"),
        "local search": selected(case, "local-search"),
        "local search, log-odds": selected(ScoringEngine(case, LogOdds()), "local-search"),
        "local search, trimmed mean": selected(ScoringEngine(case, TrimmedMean()), "local-search"),
    }


def selected(case: Engine, name: str) -> list[list[int]]:
    """Sets at 10, 20, 30 and 40 %."""
    goal = Goal.make(case.n_components, budgets=list(SHARES))
    search = make(name, {"draws": DRAWS} if name == "random" else {})
    return [each.mask.nonzero()[:, 0].tolist() for each in search.search(case, goal, 0)]


def table_rewards(family: str, seeds: range) -> None:
    """PGB-CT alone with either reward."""
    for name, case in cases(family, seeds):
        answers = [
            searched(case, make("pgb-ct", {"refine": False, "reward": reward}), SHARES)
            for reward in ("dataset", "per-example")
        ]
        say(f"{name}: " + "; ".join(f"{shown(a.effects)} at {a.passes:.0f}" for a in answers))


def table_best_known(family: str, seeds: range, passes: int) -> None:
    """The best that long searches and their rivals find; kept in a file, where it only grows."""
    for name, case in cases(family, seeds):
        answers = {
            "default": searched(case, LocalSearch(), SHARES),
            "greedy": searched(case, make("greedy", {}), SHARES),
            "long": searched(case, LocalSearch(max_passes=passes), SHARES),
            "long, without": searched(
                case, LocalSearch(max_passes=passes, start_from_examples=False), SHARES
            ),
        }
        known = json.loads(BEST_KNOWN.read_text()) if BEST_KNOWN.exists() else {}
        effects = [answer.effects for answer in answers.values()]
        of_case = [*effects, known.get(name, effects[0])]
        known[name] = [max(column) for column in zip(*of_case, strict=True)]
        BEST_KNOWN.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        shares = "; ".join(
            f"{label} {shown(against(answer.effects, known[name]))} at {answer.passes:.0f}"
            for label, answer in answers.items()
        )
        say(f"{name}, of the best known: {shares}")


def table_starts(family: str, seeds: range) -> None:
    """Effects with sets for single examples, as multiples of those without."""
    ratios: list[float] = []
    for name, case in cases(family, seeds):
        ours = searched(case, LocalSearch(), SHARES)
        without = searched(case, LocalSearch(start_from_examples=False), SHARES)
        of_case = against(ours.effects, without.effects)
        ratios += of_case
        say(f"{name}: {shown(of_case)} at {ours.passes:.0f} and {without.passes:.0f} passes")
    say(f"{family}: {summary(ratios)}")


FRONT = 12
"""Largest size of the fronts of `table_passes`."""
FRONT_EXAMPLES = 48
FRONT_METRICS = ("probability-drop", "odds-ratio")


def table_passes(passes: int) -> None:
    """Least share, over the sizes of a front, of the best known effect."""
    greedy = sum(32 - size for size in range(FRONT))
    searches = {
        f"{int(0.4 * greedy)} passes": LocalSearch(max_passes=int(0.4 * greedy)),
        "default": LocalSearch(),
        f"{passes} passes": LocalSearch(max_passes=passes),
    }
    least: dict[str, list[float]] = {name: [] for name in searches}
    sizes = range(1, FRONT + 1)
    for name, case in cases("demo", range(0)):
        for kind, metric in product(("attention-patterns", "head-outputs"), FRONT_METRICS):
            registry = tk.components.ComponentRegistry.build(case.model.cfg, kind)
            pairs = case.pairs.subset(range(min(FRONT_EXAMPLES, case.n_examples)))
            task = Engine(case.model, pairs, registry, resolve(metric), case.config)
            answers = {label: searched(task, search, sizes) for label, search in searches.items()}
            best = [
                max(column) for column in zip(*(a.effects for a in answers.values()), strict=True)
            ]
            for label, answer in answers.items():
                least[label].append(min(against(answer.effects, best)))
            shares = ", ".join(f"{label} {values[-1]:.3f}" for label, values in least.items())
            say(f"{name}, {kind}, {metric}: least share {shares}")
    for label, values in least.items():
        low = sorted(values)
        say(
            f"{label}: least {low[0]:.3f}, without the worst {low[1]:.3f}, median {median(low):.3f}"
        )


def table_wide(family: str, seeds: range, passes: int) -> None:
    """As many heads as GPT-2 small has, 64 pairs: against greedy, and within few passes."""
    ratios: list[float] = []
    costs: list[float] = []
    for seed in seeds:
        case = random_engine(seed, SCALES[family], layers=12, heads=12)
        default = searched(case, LocalSearch(), SHARES)
        short = searched(case, LocalSearch(max_passes=passes), SHARES)
        of_default = shown(against(short.effects, default.effects))
        say(f"{family} {seed}: {of_default} at {short.passes:.0f} of {default.passes:.0f} passes")
        greedy = searched(case, make("greedy", {}), SHARES)
        ratios += against(default.effects, greedy.effects)
        costs.append(default.passes / greedy.passes)
        say(
            f"{family} {seed}: of greedy {shown(ratios[-len(SHARES) :])} at {default.passes:.0f} "
            f"of {greedy.passes:.0f} passes"
        )
    say(f"{family}, of greedy: {summary(ratios)}; at most {max(costs):.3f} of its passes")


def table_races(family: str, seeds: range) -> None:
    """Effects and passes of searches that race, as shares of those that do not."""
    effects: dict[str, list[float]] = {}
    passes: dict[str, list[float]] = {}
    for seed in seeds:
        case = random_engine(seed, SCALES[family], layers=4, pairs=512)
        for search in (LocalSearch(), TopK()):
            exact, raced = (
                searched(case, replace(search, race=race), SHARES) for race in (False, True)
            )
            ratios = against(raced.effects, exact.effects)
            effects.setdefault(search.name, []).extend(ratios)
            passes.setdefault(search.name, []).append(raced.passes / exact.passes)
            say(f"{family} {seed}, {search.name}: {shown(ratios)} at {passes[search.name][-1]:.2f}")
        pairs, costs = [], []
        for race in (False, True):
            before = case.cost
            found = strongest_pairs(case, range(case.n_components), 20, n_looked_at=16, race=race)
            costs.append((case.cost - before).forward_equivalents)
            pairs.append(set(zip(found.first, found.second, strict=True)))
        say(
            f"{family} {seed}, the 20 strongest pairs: {len(pairs[0] & pairs[1])} with races too, "
            f"at {costs[1] / costs[0]:.2f} of {costs[0]:.0f} passes"
        )
    for name, ratios in effects.items():
        say(
            f"{family}, {name}: effects median {median(ratios):.3f}, mean {mean(ratios):.3f}, "
            f"least {min(ratios):.3f}; passes median {median(passes[name]):.2f}, most "
            f"{max(passes[name]):.2f}"
        )


def table_front(family: str, passes: int | None) -> None:
    """The front of GPT-2 small's heads up to 40 % on WinoBias dev, beside plain forwards."""
    config = transformers.GPT2Config(**dict[str, Any](SIZES["gpt2"]))
    bare = recipe().fill(transformers.AutoModelForCausalLM.from_config(config), 0, SCALES[family])
    traced = tk.load_model(deepcopy(bare), tokenizer=tokenizer())
    pairs = tk.load_dataset("winobias", traced, data_dir=DATA / "winobias")
    tracer = tk.Tracer(traced, pairs, "attention-patterns")
    rows = [range(n, min(n + 64, len(pairs))) for n in range(0, len(pairs), 64)]
    batches = [Padded.of(pairs, examples, torch.device("cpu")) for examples in rows]
    _ = tracer.full_effect
    start = perf_counter()
    for batch in batches:
        batch.plain(bare)
    plain = perf_counter() - start
    start = perf_counter()
    front = tracer.pareto(
        max_budget=SHARES[-1], objective="mean", statistics=False, max_passes=passes
    )
    taken = perf_counter() - start
    say(
        f"{family}, {len(pairs)} examples: {taken / 60:.1f} min, {taken / plain:.0f} plain "
        f"forwards of {plain:.1f} s; {front[0].cost.forward_equivalents:.0f} passes; effects "
        f"{shown(front.at(share).effect for share in SHARES)}"
    )
    start = perf_counter()
    single = tracer.run("top-k", budgets=list(SHARES))
    taken = perf_counter() - start
    say(
        f"{family}, top-k: {taken / 60:.1f} min, {single[0].cost.forward_equivalents:.0f} "
        f"passes; effects {shown(result.effect for result in single)}"
    )


LAMBDAS = tuple(10.0 ** (exponent / 2) for exponent in range(-10, -2))
"""Of the runs of PGB-CT in `table_many`."""


def many_cases(family: str, pairs: int) -> Iterator[tuple[str, Engine, Engine]]:
    """Name of every case, and engines to search on and of fresh pairs; hidden units."""
    kind = "mlp-neurons"
    if family == "demo":
        for name, halves in fresh_cases(family, range(1), kind):
            yield name, *halves[0]
        return
    model = random_model(0, SCALES[family], layers=12, hidden=768)
    yield (
        family,
        engine(model, random_rows(model, 0, pairs), kind),
        engine(model, random_rows(model, 50_000, pairs), kind),
    )


def table_many(
    families: Sequence[str], pairs: int, passes: int | None, chosen_too: bool, epochs: int
) -> None:
    """Fronts of thousands of hidden units, against runs of PGB-CT without refinement.

    Random models have as many units as GPT-2 small has MLP outputs, and by default as many examples
    as Professions. The front with the largest mean and shrunken top-k are held against PGB-CT's
    sets on the examples at hand and on fresh ones, and `chosen_too` the front that halves choose.
    """
    for family, case, fresh in (each for one in families for each in many_cases(one, pairs)):
        say(f"{family}: {case.n_components} units, {case.n_examples} pairs")
        rivals = rivals_of_many(case, passes, chosen_too)
        empty = 0
        ratios: dict[str, list[float]] = {}
        for lambda1 in LAMBDAS:
            before = case.cost
            search = make("pgb-ct", {"lambda1": lambda1, "refine": False, "epochs": epochs})
            (theirs,) = search.search(case, Goal.make(case.n_components), 0)
            taken = (case.cost - before).forward_equivalents
            members = theirs.mask.nonzero()[:, 0].tolist()
            if not members:
                say(f"  lambda {lambda1:.1e}: no units; {taken:.0f} passes")
                empty += 1
                continue
            sets = [members, *(of_size(len(members)) for of_size in rivals.values())]
            on_own, on_fresh = (each.set_effects(sets).mean(1).tolist() for each in (case, fresh))
            for label, own, other in zip(rivals, on_own[1:], on_fresh[1:], strict=True):
                ratios.setdefault(label, []).append(own / on_own[0])
                ratios.setdefault(f"{label}, fresh", []).append(other / on_fresh[0])
            say(
                f"  lambda {lambda1:.1e}, {len(members)} units: effects {shown(on_own)}, on fresh "
                f"pairs {shown(on_fresh)} (pgb-ct, {', '.join(rivals)}); {taken:.0f} passes"
            )
        for label, each in ratios.items():
            say(f"{family}, {label}: {summary(each)}")
        say(f"{family}: {empty} empty")


def rivals_of_many(
    case: Engine, passes: int | None, chosen_too: bool
) -> dict[str, Callable[[int], list[int]]]:
    """By label, what gives a set of a size, or of at most that; says the passes of each."""
    before = case.cost
    state = LocalSearch(max_passes=passes).run(case, Goal(budgets=(case.n_components,)), 0)
    say(f"  front {(case.cost - before).forward_equivalents:.1f} passes")
    before = case.cost
    (alone,) = RANKED_ALONE.search(case, Goal(budgets=(1,)), 0)
    order = ranking(alone.component_scores)
    of_ranking = (case.cost - before).forward_equivalents
    say(f"  shrunken top-k {of_ranking:.1f} passes, and one for each size that is measured")
    rivals: dict[str, Callable[[int], list[int]]] = {
        "front": lambda size: list(state.best_sets.best_within(size)),
        "shrunken top-k": lambda size: order[:size],
    }
    if chosen_too:
        chosen = front_chosen_by_halves(case, max_passes=passes)
        say(f"  chosen by halves {chosen[0].cost.forward_equivalents:.1f} passes")
        rivals["chosen by halves"] = lambda size: (
            chosen.at(size).binary_mask.nonzero()[:, 0].tolist()
        )
    return rivals


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)  # noqa: T201


Table = Literal[
    "greedy",
    "fresh",
    "objectives",
    "choices",
    "ceiling",
    "rivals",
    "large",
    "optimum",
    "ablations",
    "rewards",
    "best-known",
    "starts",
    "passes",
    "many",
    "wide",
    "races",
    "front",
]


def main(
    table: Annotated[Table, typer.Argument(help="What to compare.")],
    family: Annotated[
        str | None, typer.Option(help="demo, strong or mild. Default: all of them.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Random models of each kind.")] = 10,
    first_seed: Annotated[int, typer.Option(help="Seed of the first of them.")] = 0,
    kind: Annotated[str, typer.Option(help="Components of `fresh`.")] = HEADS,
    pairs: Annotated[int, typer.Option(help="Examples of `many`.")] = 2703,
    chosen: Annotated[
        bool, typer.Option(help="Whether `many` measures the front chosen by halves, too.")
    ] = True,
    epochs: Annotated[int, typer.Option(help="Of each run of PGB-CT in `many`.")] = 15,
    passes: Annotated[
        int | None,
        typer.Option(
            help="Of long searches (`best-known`, `passes`); at most (`front`, `many`, `wide`)."
        ),
    ] = None,
) -> None:
    """Compares searches."""
    families = [family] if family else ["demo", *SCALES]
    numbers = range(first_seed, first_seed + seeds)
    of_family: dict[str, Callable[[str], None]] = {
        "greedy": lambda one: table_greedy(one, numbers),
        "fresh": lambda one: table_fresh(one, numbers, sets_of_methods, rivals_for(kind), kind),
        "objectives": lambda one: table_fresh(
            one, numbers, sets_of_objectives, ("greedy", "top-k")
        ),
        "choices": lambda one: table_choices(one, numbers),
        "starts": lambda one: table_starts(one, numbers),
        "best-known": lambda one: table_best_known(one, numbers, passes or 10_000),
    }
    of_random_models: dict[str, Callable[[str], None]] = {
        "ceiling": lambda one: table_ceiling(one, numbers),
        "rewards": lambda one: table_rewards(one, numbers),
        "wide": lambda one: table_wide(one, numbers, passes or 140),
        "races": lambda one: table_races(one, numbers),
        "front": lambda one: table_front(one, passes),
    }
    of_all: dict[str, Callable[[], None]] = {
        "rivals": lambda: table_rivals(neuron_cases(numbers)),
        "large": lambda: table_rivals(large_cases()),
        "optimum": table_optimum,
        "ablations": table_ablations,
        "passes": lambda: table_passes(passes or 1000),
        "many": lambda: table_many(families, pairs, passes, chosen, epochs),
    }
    if table in of_all:
        of_all[table]()
        return
    for one in families:
        if table in of_family:
            of_family[table](one)
        elif one in SCALES:
            of_random_models[table](one)


if __name__ == "__main__":
    typer.run(main)
