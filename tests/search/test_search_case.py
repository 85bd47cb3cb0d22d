"""All search methods keep the rules of `tracekit.testing`, and a search that breaks one fails."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import tracekit as tk
from tracekit.engine.cost import Cost
from tracekit.errors import TargetNotReachedError
from tracekit.search import METHODS, Goal, PlannedPasses, Selection, make
from tracekit.search.base import Search
from tracekit.testing import SearchCase, demo_tracer

OPTIONS = {
    "pgb-ct+local": {"epochs": 3},
    "pgb-ct": {"trials": 2, "epochs": 3},
    "dcm": {"trials": 2, "epochs": 3},
    "learned-ranking": {"epochs": 3, "steps": 3},
    "random": {"draws": 20},
    "mask-ig": {"steps": 3},
    "eap-ig": {"steps": 3},
    "empirical-bayes-top-k": {"by_gradients": True, "steps": 3},
}
"""Options under which methods are quick."""
SLOW = (
    *("pgb-ct+local", "pgb-ct", "dcm", "greedy", "exhaustive", "mask-ig"),
    "empirical-bayes-top-k",
)


class TestMethods(SearchCase):
    """The methods that search components of any kind."""

    @pytest.fixture(
        params=[
            pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
            for name in METHODS
            if name != "eap-ig"
        ]
    )
    def search(self, request) -> Search:
        return make(request.param, OPTIONS.get(request.param, {}))


class TestEAPIG(SearchCase):
    """EAP-IG ranks edges."""

    @pytest.fixture
    def search(self) -> Search:
        return make("eap-ig", OPTIONS["eap-ig"])

    @pytest.fixture
    def tracer(self, edge_tracer) -> tk.Tracer:
        return edge_tracer


@pytest.fixture(scope="module")
def edge_tracer() -> tk.Tracer:
    model = tk.load_model("demo")
    pairs = tk.load_dataset("demo-facts", model)[:4]
    return tk.Tracer(model, pairs, "edges", "logit-difference", layers=[1], progress=False)


@pytest.mark.slow
class TestDocs(SearchCase):
    """The searches of `docs/own-search.md`."""

    @pytest.fixture(params=["Backward", "Lottery"])
    def search(self, request) -> Search:
        text = (Path(__file__).parents[2] / "docs" / "own-search.md").read_text(encoding="utf-8")
        module = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
        kinds = (ast.Import, ast.ImportFrom, ast.ClassDef)
        module.body = [node for node in module.body if isinstance(node, kinds)]
        names = {"__name__": __name__}
        exec(compile(module, "own-search.md", "exec"), names)
        return names[request.param]()


@dataclass(frozen=True, kw_only=True)
class Broken:
    """Takes the best single components, and breaks one rule at a time."""

    name: ClassVar[str] = "broken"
    rule: str
    max_passes: int | None = None

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        n_passes = 2 if self.rule == "estimate" else n_components + 10
        return PlannedPasses(cost=Cost(n_passes))

    def search(self, target, goal, seed) -> list[Selection]:
        if self.rule == "no goal" and not goal.budgets and goal.target is None:
            return [Selection.measured(target, [0]), Selection.measured(target, [1])]
        goal.require(self.name)
        if self.rule == "value":
            vars(self)["rule"] = "value, and no more"
        sets = [(i,) for i in range(target.n_components)]
        engine = target.engine if self.rule == "constraint" else target
        scores = engine.set_effects(sets).mean(1)
        if self.rule == "interrupt":
            scores = self._scores(target, sets)
        if self.rule == "sign":
            scores = scores.abs()
        if self.rule == "seed":
            scores = torch.rand(target.n_components)
        order = scores.argsort(descending=True).tolist()
        more = 1 if self.rule == "budget" else 0
        sizes = goal.budgets or range(1, target.n_components + 1)
        selections = []
        for size in sizes:
            budget = size if goal.budgets else None
            members = sorted(order[: size + more])
            selection = Selection.measured(target, members, budget=budget)
            if self.rule in ("effects", "constraint"):
                shift = 1.0 if self.rule == "effects" else 0.0
                effects = target.engine.set_effects([members])[0] + shift
                selection = replace(selection, effects=effects)
            selections.append(selection)
            if goal.target is not None:
                is_enough = self.rule == "target" or selection.effect >= goal.target
                if is_enough:
                    return [selection]
        if goal.target is not None:
            raise TargetNotReachedError("No set reaches it.")
        return selections

    def _scores(self, target, sets) -> torch.Tensor:
        """Scores of sets; after Ctrl-C 0 for those that were not measured."""
        scores = torch.zeros(len(sets))
        for number, members in enumerate(sets):
            with suppress(KeyboardInterrupt):
                scores[number] = target.set_effects([members]).mean()
        return scores


BREAKS = {
    "budget": ("test_budgets", {}),
    "effects": ("test_budgets", {}),
    "target": ("test_target_effect", {}),
    "no goal": ("test_no_goal", {}),
    "seed": ("test_seed", {}),
    "value": ("test_the_search_is_a_value", {"tmp_path": None}),
    "interrupt": ("test_ctrl_c", {"monkeypatch": None, "share": 0.75}),
    "sign": ("test_sign", {}),
    "constraint": ("test_constraint", {}),
    "estimate": ("test_estimate", {"options": {"budget": 3}}),
    "max_passes": ("test_max_passes", {}),
}
"""A check of `SearchCase` for each rule, and its further arguments; None: those of a fixture."""


@pytest.mark.parametrize("rule", BREAKS)
def test_a_search_that_breaks_a_rule_fails(rule, request):
    name, options = BREAKS[rule]
    given = {key: request.getfixturevalue(key) if v is None else v for key, v in options.items()}
    with pytest.raises(AssertionError):
        getattr(SearchCase(), name)(Broken(rule=rule), demo_tracer(), **given)


class TestUnbroken(SearchCase):
    """The same search keeps all rules where it breaks none."""

    @pytest.fixture
    def search(self) -> Search:
        return Broken(rule="none")

    def test_max_passes(self) -> None:
        """The only rule that it always breaks."""
