"""Methods of a tracer that change the model by a set: for a pass, a text, or for good."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tracekit._util.options import as_path
from tracekit.anatomy import SideEffects
from tracekit.components.masks import from_indices
from tracekit.components.members import members_of
from tracekit.data.chat import Chat
from tracekit.engine import checks
from tracekit.engine.patching import constant_hooks
from tracekit.errors import ConfigError
from tracekit.models import HookedModel
from tracekit.results.generations import Generations
from tracekit.results.result import TraceResult
from tracekit.tracer.connections import Connections
from tracekit.tracer.exporting import Export, export_model
from tracekit.tracer.generation import constants_at_every_token, generate, hooked


class ModelEdits(Connections):
    """What a model does with a set replaced, besides what is measured of the set."""

    def export(
        self, members: Any, folder: str | Path, *, side_effects: SideEffects | None = None
    ) -> Export:
        """Writes a plain Hugging Face model in which a set is replaced for good.

        Zeros, means and tensors of one's own are folded into weights and biases, of heads, MLP
        outputs, neurons and blocks. The model is read again from disk and measured on every
        example, held-out ones too; nothing stays if it has another effect. A README says the
        question, the set, both effects and the versions; of a result, the folder `trace` holds it.

        Args:
            members: As in `explain`; one component is enough.
            folder: A new folder.
            side_effects: What `side_effects` measured, for the README.

        Raises:
            ConfigError: No weights do exactly the same; the message says what would be exact.
            UnsupportedModelError: The model has no projection that the set could be folded into, or
                the written model has another effect.
            OutputError: The folder is not empty.
            MaskError, ComponentError: About the set.
        """
        checks.check_unchanged(self.engine)
        return export_model(
            self.engine,
            self.setup,
            from_indices(members_of(members, self.registry), len(self.registry)).float(),
            as_path("folder", folder),
            result=members if isinstance(members, TraceResult) else None,
            side_effects=side_effects,
            held_out=self._held_out,
        )

    def steer(self, members: Any, strength: float = 1.0) -> AbstractContextManager[HookedModel]:
        """A block in which every pass of the model has a set replaced, at every token.

        Args:
            members: As in `explain`; one component is enough.
            strength: 0 is the model as it is, 1 the values of the source; between and beyond, on
                the line through both.

        Raises:
            ConfigError: A source other than zeros, means and tensors, or components split by span.
            MaskError, ComponentError: About the set.
        """
        checks.check_unchanged(self.engine)
        mask = from_indices(members_of(members, self.registry), len(self.registry)).float()
        constants = constants_at_every_token(self.pairs, self.setup.source)
        if self.registry.spans:
            raise ConfigError("Spans act at some tokens only. Steer with a trace without split_by.")
        return hooked(self.model, constant_hooks(self.registry, constants, strength * mask))

    def generate(
        self,
        members: Any,
        prompts: str | Sequence[Any],
        counterfactuals: str | Sequence[Any] | None = None,
        *,
        max_new_tokens: int = 20,
        temperature: float = 0.0,
        strength: float = 1.0,
        chat: Chat = False,
        seed: int = 0,
    ) -> Generations:
        """What the model writes after prompts, by itself and with a set replaced, side by side.

        With `positions="all"` zeros, means and tensors act on the new tokens too. Else the set is
        replaced in the prompt, and the new tokens read its keys and values.

        Args:
            members: As in `explain`; one component is enough.
            prompts: A text or several; with `chat`, what the user says, or messages.
            counterfactuals: With `source="counterfactual"`, one for each prompt, of as many tokens.
            max_new_tokens: Tokens to write at most.
            temperature: 0 takes the likeliest token, more samples.
            strength: As in `steer`.
            chat: As in `PromptPairs.from_text`.
            seed: Draws the sampled tokens: the same for both.

        Raises:
            ConfigError: About the options, or counterfactuals that are lacking or of no use.
            PairsError, SourceError: The prompts do not suit the setup.
            MaskError, ComponentError: About the set.
        """
        checks.check_unchanged(self.engine)
        return generate(
            self._bound,
            members_of(members, self.registry),
            prompts,
            counterfactuals=counterfactuals,
            others=self._given,
            fingerprint=self.pairs.fingerprint,
            strength=strength,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            chat=chat,
            seed=seed,
        )
