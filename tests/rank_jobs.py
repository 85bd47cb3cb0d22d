"""What each rank of a test does: `torchrun ... -m tests.rank_jobs JOB FILE`."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import weakref
from functools import cache
from itertools import combinations, count
from pathlib import Path

import torch
import torch.distributed as dist

import tracekit as tk
from tests import tiny
from tracekit._util.ranks import Ranks, join_launched
from tracekit.engine import set_effects
from tracekit.engine.engine import Engine

N = 30


@cache
def model():
    """The tests' tiny random model."""
    return tk.load_model(tiny.hf_model("gpt2"))


def tracer(**options) -> tk.Tracer:
    """Twelve heads on prompts of different lengths, some in several tokens."""
    return tk.Tracer(model(), tiny.pairs(N, seed=5), **options)


def searches(**options) -> dict[str, object]:
    """What every search answers, ready for JSON."""
    traced = tracer(metric="odds-ratio", **options)
    answers: dict[str, object] = {"full": traced.full_effect}
    for name, settings in {
        **tiny.METHOD_OPTIONS,
        "dcm": {"epochs": 4},
        "learned-ranking": {"epochs": 3},
    }.items():
        result = traced.run(name, budget=3, **settings)
        answers[name] = {
            "components": list(tiny.members_of(result)),
            "effects": result.per_example.tolist(),
            "forward": result.cost.forward,
            "backward": result.cost.backward,
        }
    front = traced.pareto(max_budget=4)
    answers["front"] = [list(tiny.members_of(result)) for result in front]
    answers["held out"] = [row.cross_fitted for row in front.statistics]
    grid = traced.interactions([traced.registry[i] for i in (0, 3, 5)])
    answers["grid"] = grid.interaction.tolist()
    distance = tracer(metric="kl")
    answers["distance"] = distance.run("top-k", budget=2).per_example.tolist()
    kept = traced.run(
        "top-k", budget=2, constraint=tk.Constraint(metric="logit-difference", at_most=5.0)
    )
    answers["kept"] = list(tiny.members_of(kept))
    return answers


def sets_of_few_examples() -> dict[str, object]:
    """Effects of all pairs of heads on six examples, and how many sets this process measured."""
    engine = tk.Tracer(model(), tiny.pairs(6, seed=5)).engine
    measured: list[int] = []
    build = set_effects.build_prefix_tree

    def counted(sets, *rest):
        measured.append(len(sets))
        return build(sets, *rest)

    set_effects.build_prefix_tree = counted
    pairs = list(combinations(range(12), 2))
    effects = engine.set_effects(pairs).tolist()
    part = engine.set_effects(pairs, examples=torch.tensor([4, 1])).tolist()
    return {"effects": effects, "part": part, "measured": measured}


def checkpointed(file: Path) -> dict[str, object]:
    """A front with a checkpoint beside the answer, slowed down so that it can be killed."""
    traced = tracer(metric="odds-ratio")
    measure = Engine.set_effects
    calls = count(1)

    def slow(self, *args, **rest):
        if next(calls) == 5:
            file.with_suffix(".started").touch()
        time.sleep(0.05)
        return measure(self, *args, **rest)

    # Of every engine: an objective may have one of its own.
    Engine.set_effects = slow
    front = traced.pareto(max_budget=5, statistics=False, checkpoint=file.with_suffix(".ckpt"))
    sets = [[*tiny.members_of(result), result.effect] for result in front]
    return {"front": sets, "stopped": front.stopped}


def joined_again(file: Path, held: list[weakref.ref]) -> dict[str, object]:
    """Sums over the ranks of a process group that the job makes itself, after another one."""
    first = Ranks.current()
    dist.destroy_process_group()
    store = file.with_suffix(".store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=first.rank, world_size=first.count)
    second = Ranks.current()
    held.append(weakref.ref(second._group))
    total = second.sum_ranks(torch.ones(1))[0].item()
    return {"sum": total, "is another": second._group is not first._group}


def noted_at_exit(file: Path) -> list[weakref.ref]:
    """A list of groups; a file says at the end which of them something still holds."""
    held: list[weakref.ref] = []
    # Handlers run in reverse order: this one after those of the groups, which come later.
    atexit.register(lambda: file.write_text(str([group() is not None for group in held])))
    return held


def main() -> None:
    """Does a job; each rank writes what came of it."""
    torch.set_num_threads(1)
    job, file = sys.argv[1], Path(sys.argv[2])
    held = noted_at_exit(file.with_suffix(f".held-{os.environ['RANK']}"))
    if job == "script":
        dist.init_process_group("gloo")
    ranks = join_launched()
    if ranks.count > 1:
        held.append(weakref.ref(ranks._group))
    file.with_suffix(f".joined-{ranks.rank}").touch()
    if job == "searches":
        answers = searches()
    elif job == "bounded":
        answers = searches(max_memory=1)
    elif job == "sets":
        answers = sets_of_few_examples()
    elif job == "front":
        front = tracer(metric="odds-ratio").pareto(max_budget=4, statistics=False)
        answers = {"front": [result.per_example.tolist() for result in front]}
    elif job == "checkpointed":
        answers = checkpointed(file)
    elif job in ("full", "script"):
        answers = {"full": tracer().full_effect}
    elif job == "again":
        answers = joined_again(file, held)
    elif job == "different":
        data = tiny.pairs(N, seed=5 + ranks.rank)
        answers = {"full": tk.Tracer(model(), data).full_effect}
    elif job == "few":
        answers = {"full": tk.Tracer(model(), tiny.pairs(1)).full_effect}
    else:
        raise ValueError(job)
    file.with_suffix(f".{ranks.rank}").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
