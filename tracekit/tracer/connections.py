"""Methods of a tracer that say how the members of a given set connect, and what heads look at."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tracekit.anatomy.attention import Attention, read_attention
from tracekit.anatomy.paths import Paths, measure_paths
from tracekit.components.members import members_of
from tracekit.engine import checks
from tracekit.errors import PairsError
from tracekit.models import model_name
from tracekit.tracer.set_methods import SetMethods


class Connections(SetMethods):
    """Paths and attention of the members of a set, besides what `SetMethods` measures of it."""

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
        was selected on there are no p values. In low precision, effects below `noise_floor` are
        rounding.

        Args:
            members: As in `explain`, of parts of attention or MLP layers; one is enough.
            by_input: Whether to tell the query, key and value of receiving heads apart, which
                takes four times as many passes.

        Raises:
            ComponentError: Components at no place of a path, such as the residual stream, or more
                than 64.
            HookPointError: Paths cannot be followed in this model.
            MaskError, ConfigError: About the mask or the option.
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

    def attention(self, members: Any, *, at: str = "last") -> Attention:
        """What heads attend to from a token of each prompt, and what they write to the logits.

        ```python
        attention = tracer.attention(tracer.run(budget=6))
        print(attention)
        attention.table, attention.contributions, attention.figure()
        ```

        Attention is by span where all pairs have spans, else by position, in the clean and the
        counterfactual run. The direct contribution is the logit of x less that of y that the
        output of a head alone gives through the final norm, its scale frozen at that of the clean
        run, and the unembedding. On the held-out examples, if the tracer has some.

        Args:
            members: As in `explain`; members that are no heads are left out.
            at: Span, or name of a position, whose last token attends. Contributions are of the
                last token of the prompt in any case.

        Raises:
            ComponentError: No member is a head.
            PairsError: The prompts differ in length and have no spans, or no such place.
            MaskError: About the mask.
        """
        checks.check_unchanged(self.engine)
        engines = {self.direction: self._fresh}
        # Else the source is no run of the model.
        with suppress(PairsError):
            engines[self._other_direction] = self._opposite(self._fresh)
        decode = getattr(getattr(self.model, "tokenizer", None), "decode", None)
        return read_attention(
            self._fresh,
            engines["noising"],
            engines.get("denoising"),
            members_of(members, self.registry, or_none=True),
            at=at,
            token_text=None if decode is None else lambda token: str(decode([token])),
            selected_on=self._selected_on(members),
            model=model_name(self.model),
            source=self.source,
        )
