"""Methods of a tracer that say how the members of a given set connect."""

from __future__ import annotations

from typing import Any

from tracekit.anatomy.paths import Paths, measure_paths
from tracekit.components.members import members_of
from tracekit.engine import checks
from tracekit.models import model_name
from tracekit.tracer.set_methods import SetMethods


class Connections(SetMethods):
    """Paths among the members of a set, besides what `SetMethods` measures of it."""

    def paths(self, members: Any, *, by_input: bool = True) -> Paths:
        """How members connect: the effect of each on the metric through each other one alone.

        ```python
        paths = tracer.paths(tracer.run(budget=6))
        print(paths)
        paths.table, paths.network()
        ```

        This is path patching with everything else clean (`tracekit.engine.path_effects` defines
        it), also from the embedding, where the source is a run of the model, and to the logits. It
        is measured on the held-out examples, if the tracer has some. On the examples that the set
        was selected on there are no p values.

        Args:
            members: As in `explain`, of parts of attention or MLP layers; one is enough.
            by_input: Whether to tell the query, key and value of receiving heads apart, which
                takes four times as many passes.

        Raises:
            ComponentError: Components at no place of a path, such as the residual stream, or more
                than 64.
            HookPointError: Paths cannot be followed in this model.
            MaskError: About the mask.
            ConfigError: About the option.
            NonFiniteMetricError: The metric is not finite on a path; names the examples.
        """
        checks.check_unchanged(self.engine)
        return measure_paths(
            self._fresh,
            members_of(members, self.registry, or_none=True),
            by_input=by_input,
            selected_on=self._selected_on(members),
            model=model_name(self.model),
            source=self.source,
        )
