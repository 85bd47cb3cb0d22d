"""A set folded into weights: a plain Hugging Face checkpoint that behaves as the intervention.

What a component is replaced by must be the same at every token, to be a part of the bias. A head or
neuron is then a few columns of the projection behind it, a coordinate of the MLP output a row.
"""

from __future__ import annotations

import copy
import shutil
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from tracekit._util import progress
from tracekit._util.deferred import transformers
from tracekit._util.files import write_atomically
from tracekit._util.options import as_path
from tracekit._util.table import join_labels
from tracekit._util.versions import versions
from tracekit._util.warn import warn
from tracekit.components import ComponentRegistry
from tracekit.components.masks import Mask, from_indices
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.counterfactuals import Constants
from tracekit.engine.engine import Engine
from tracekit.engine.forward import ForwardPass
from tracekit.engine.patching import mask_shares
from tracekit.engine.setup import Setup
from tracekit.errors import ConfigError, ModelWarning, OutputError, UnsupportedModelError
from tracekit.measure import SideEffects
from tracekit.measure.question import Question, on_examples
from tracekit.metrics import Effects
from tracekit.models import HookedModel, load_model, model_name
from tracekit.models.architectures import PROJECTIONS
from tracekit.models.hooked import device_of, dtype_of, is_exact, plain_name, random_tokens
from tracekit.models.tokenizers import copy_as_given, get_tokenizer, tokenizer_differences
from tracekit.models.verification import Reference, find_changes, get_logits, logit_gap
from tracekit.results.result import TraceResult

_TOLERANCE = 1e-4
"""Difference of an effect by which the written model may differ, where effects are up to 1."""
_CARD = Path(__file__).with_name("export_card.md")


@dataclass(frozen=True, kw_only=True, eq=False)
class Export:
    """A model that was written, and how it compares with the intervention."""

    folder: Path
    tokenizer: str
    """Which tokenizer was written with it."""
    effects: Effects
    """Effect of the intervention on each example."""
    written_effects: Effects
    """Effect of the written model, read from disk, in place of the original one."""
    held_out_effects: Float[Tensor, " held_out_example"] | None
    """The same of the written model on the held-out examples, if there are any."""

    @property
    def largest_difference(self) -> float:
        """Largest difference between the two on an example."""
        return (self.effects - self.written_effects).abs().max().item()

    def __str__(self) -> str:
        return (
            f"{self.folder}: effect {self.written_effects.mean():.6g} read again from disk, "
            f"{self.effects.mean():.6g} with hooks; largest difference on an example "
            f"{self.largest_difference:.2g}; tokenizer: {self.tokenizer}"
        )


def export(
    question: Question,
    members: ComponentsLike,
    folder: str | Path,
    *,
    side_effects: SideEffects | None = None,
) -> Export:
    """Writes a plain Hugging Face model in which a set is replaced for good.

    Zeros, means and tensors of one's own are folded into weights and biases, of heads, MLP
    outputs, neurons and blocks. The model is read again from disk and measured on all examples. A
    README says the question, the set, both effects and the versions; `trace` holds a result.

    Args:
        question: The question.
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
    engine, setup, held_out = question.search_engine, question.setup, question.held_out_engine
    folder = as_path("folder", folder)
    indices = members_of(members, question.registry)
    mask = from_indices(indices, len(question.registry)).float()
    result = members if isinstance(members, TraceResult) else None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is not empty. Give a new folder.")
    written = _fold_into_weights(engine, _exact_constants(engine, setup), mask)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".export-") as draft:
        written.save_pretrained(draft)
        tokenizer = _save_tokenizer(engine.model, Path(draft))
        again = load_model(draft, device=device_of(engine.model), dtype=dtype_of(engine.model))
        n, n_fresh = engine.n_examples, 0 if held_out is None else held_out.n_examples
        with progress.open_bar("export", 2 + n_fresh / n, n, shown=engine.config.progress):
            export = Export(
                folder=folder,
                tokenizer=tokenizer,
                effects=engine.effects(mask),
                written_effects=_effects_of(again, engine),
                held_out_effects=None if held_out is None else _effects_of(again, held_out),
            )
        allowed = _TOLERANCE * max(1.0, export.effects.abs().max().item())
        precision = torch.finfo(dtype_of(engine.model)).eps / torch.finfo(torch.float32).eps
        if not export.largest_difference <= allowed * precision:
            raise UnsupportedModelError(
                f"The written model has another effect than the intervention: they differ by "
                f"{export.largest_difference:.3g} on an example. This architecture puts something "
                "between the component and its projection. Nothing was written."
            )
        measured, effects = engine, export.effects
        if held_out is not None and export.held_out_effects is not None:
            measured, effects = held_out, export.held_out_effects
        choices = question.choices([indices], is_held_out=measured is held_out)
        text = on_examples(measured, effects, choices=choices).choices_text
        labels = [engine.registry.label(index) for index in indices]
        card = _readme(engine, setup, labels, export, result, side_effects, text)
        write_atomically(Path(draft) / "README.md", card)
        if result is not None:
            result.save(Path(draft) / "trace")
        shutil.copytree(draft, folder, dirs_exist_ok=True)
    return export


def _exact_constants(engine: Engine, setup: Setup) -> Constants:
    """The constants that replace components; refuses setups that weights cannot reproduce."""
    constants = engine.counterfactual_cache.constants
    registry, positions = engine.registry, setup.positions
    one_token = all(len(p.x_ids) == 1 == len(p.y_ids or p.x_ids) for p in engine.pairs)
    is_foldable = all(s.kind.hook in PROJECTIONS and not s.kind.features for s in registry.sites)
    for is_so, reason, instead in (
        (setup.direction != "noising", "Denoising starts from another run", "direction='noising'"),
        (
            constants is None or constants.positional,
            f"The source {setup.source!r} has other values for every prompt or position",
            "source='zero' or 'mean'",
        ),
        (
            not is_foldable,
            f"{registry.describe()} are no inputs or outputs of a projection",
            "head-outputs, mlp-outputs, mlp-neurons, mlp-blocks or attention-blocks",
        ),
        (bool(registry.spans), "Spans act at some tokens only", "a trace without split_by"),
        (
            positions != "all" and not (positions == "prompt" and one_token),
            f"positions={positions!r} leaves some tokens as they are, and weights act at all",
            "positions='all', or 'prompt' with x and y of one token",
        ),
        (
            not hasattr(engine.model, "original_model"),
            "The model is none of Hugging Face",
            "tk.load_model(folder)",
        ),
    ):
        if is_so:
            raise ConfigError(
                f"{reason}, so that no weights do exactly the same. Exact would be {instead}."
            )
    assert constants is not None
    return constants


def _fold_into_weights(engine: Engine, constants: Constants, mask: Mask) -> Any:
    """The Hugging Face model with the set folded into its weights, apart from the original."""
    original: Any = engine.model.original_model  # type: ignore[attr-defined]
    # Of several modules with one name, the one inside of what a bridge puts around it.
    modules = {
        plain_name(name): module for name, module in original.named_modules(remove_duplicate=False)
    }
    expected = _without_weights(original, ()).state_dict()
    state = _weights_of(modules, expected)
    is_whole = len(state) == len(expected)
    _check_logits_equal(
        engine.model, _rebuild(original, modules, state, {}, ()) if is_whole else None
    )
    names = {id(module): name for name, module in modules.items() if f"{name}.weight" in state}
    changed: dict[str, Any] = {}
    weights: ChainMap[str, Any] = ChainMap(changed, state)
    settings: set[str] = set()
    for hook_name, replaced in _replaced_entries(engine.registry, constants, mask).items():
        layer, hook = hook_name.split(".", 2)[1:]
        part, is_input, setting = PROJECTIONS[hook]
        module: Any = engine.model.blocks[int(layer)]  # type: ignore[attr-defined]
        for each in (*part.split("."), "original_component"):
            module = getattr(module, each, None)
        name = names.get(id(module))
        kind = type(module).__mro__[1] if is_parametrized(module) else type(module)
        if name is None or kind.__name__ not in ("Linear", "Conv1D"):
            raise UnsupportedModelError(
                f"Block {layer} has no single projection behind {hook}, so its components cannot "
                "be folded into weights. Trace other components."
            )
        is_transposed = kind.__name__ == "Conv1D"
        weight = weights[f"{name}.weight"]
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        weight = (weight.T if is_transposed else weight).clone()
        bias = weights.get(f"{name}.bias", torch.zeros(1)).to(weight).expand(len(weight)).clone()
        values = constants.values[hook_name].flatten().to(weight)
        if is_input:
            # In double precision, as the model adds them up in another order.
            bias += (weight[:, replaced].double() @ values[replaced].double()).to(bias)
            weight[:, replaced] = 0
        else:
            weight[replaced] = 0
            bias[replaced] = values[replaced]
        changed[f"{name}.weight"] = weight.T if is_transposed else weight
        if bias.any() or f"{name}.bias" in state:
            changed[f"{name}.bias"] = bias
        if f"{name}.bias" in changed and f"{name}.bias" not in state:
            settings.add(setting)
    return _rebuild(original, modules, state, changed, settings)


def _weights_of(
    modules: Mapping[str, torch.nn.Module], expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    weights = {}
    for name, plain in expected.items():
        owner, _, attribute = name.rpartition(".")
        value = getattr(modules.get(owner), attribute, None)
        if isinstance(value, Tensor) and value.shape == plain.shape:
            weights[name] = value.detach()
    return weights


def _check_logits_equal(model: HookedModel, plain: Any) -> None:
    """Refuses a model whose logits differ from those of a plain one; None: there is no such."""
    tokens = random_tokens(model, 1, min(8, int(model.cfg.n_ctx or 8)))
    with torch.no_grad():
        logits = model.run_with_hooks(tokens.to(device_of(model)), fwd_hooks=[])[0]
    reference = Reference(tokens, logits.float().cpu())
    difference, largest = inf, 0.0
    if plain is not None:
        difference, largest = logit_gap(reference, get_logits(plain, tokens))
    if not difference <= (1e-4 if is_exact(model) else 0.05) * largest:
        original: Any = model.original_model  # type: ignore[attr-defined]
        reason = join_labels(find_changes(original), 5) or "weights that it ties are not the same"
        raise UnsupportedModelError(
            f"A plain {type(original).__name__} with the weights of {model_name(model)} computes "
            f"other logits, as {reason}. A checkpoint holds weights alone. Put the change into the "
            "weights first (adapters: by merge_and_unload), and load the model again."
        )


def _rebuild(
    original: Any,
    modules: Mapping[str, torch.nn.Module],
    state: Mapping[str, Tensor],
    changed: Mapping[str, Tensor],
    settings: Iterable[str],
) -> Any:
    rebuilt = _without_weights(original, settings)
    expected = rebuilt.state_dict()
    new = [name for name in expected if name not in state]
    missing = [name for name in changed if name not in expected]
    if missing or not all(name.endswith(".bias") for name in new):
        raise ConfigError(
            f"The values need a bias at {(missing or new)[0]}, and {type(original).__name__} has "
            "none there and no setting for one. Exact would be source='zero', or mlp-outputs and "
            "heads of a model with output biases."
        )
    dtype = next(original.parameters()).dtype
    whole = {
        name: changed.get(name, state.get(name, torch.zeros(meta.shape))).to(dtype).cpu()
        if name in changed or name in new
        else state[name]
        for name, meta in expected.items()
    }
    rebuilt.load_state_dict(whole, assign=True)
    for name, value in _weights_of(modules, dict(rebuilt.named_buffers())).items():
        owner, _, attribute = name.rpartition(".")
        setattr(rebuilt.get_submodule(owner), attribute, value)
    rebuilt.tie_weights()
    rebuilt.generation_config = copy.deepcopy(original.generation_config)
    return rebuilt


def _without_weights(original: Any, settings: Iterable[str]) -> Any:
    """A model of the same class without weights; settings that it knows are switched on."""
    config = copy.deepcopy(original.config)
    # TransformerLens asks for the patterns in every pass.
    config.output_attentions = False
    # It is of weights that were widened when they were read, as those of GGUF files are.
    vars(config).pop("quantization_config", None)
    for setting in settings:
        if hasattr(config, setting):
            setattr(config, setting, True)
    with torch.device("meta"):
        return type(original)(config)


def _replaced_entries(
    registry: ComponentRegistry, constants: Constants, mask: Mask
) -> Mapping[str, Tensor]:
    """By hook point, which entries of its activation the set replaces; flat, inputs first."""
    by_name: dict[str, Tensor] = {}
    for site in registry.sites:
        for name in site.hook_names:
            values = constants.values.get(name)
            if values is None:
                continue
            # An activation with the axes of row and position, of which there is one each.
            share = mask_shares(site, mask, values.ndim + 2, None).expand(1, 1, 1, *values.shape)
            entries = share.flatten() > 0
            by_name[name] = by_name[name] | entries if name in by_name else entries
    chosen = {name: entries for name, entries in by_name.items() if entries.any()}
    return dict(sorted(chosen.items(), key=lambda item: "_out" in item[0]))


def _save_tokenizer(model: HookedModel, folder: Path) -> str:
    """Writes the model's tokenizer, reads it again, and returns a phrase that describes it."""
    tokenizer = get_tokenizer(model)
    if tokenizer is None:
        return "none"
    tokenizer = copy_as_given(tokenizer)
    tokenizer.save_pretrained(folder)
    written = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    differs = tokenizer_differences(tokenizer, written)
    if differs:
        warn(
            f"The tokenizer in {folder.name} is read with {' and '.join(differs)} other than those "
            "of the model's. Give whoever uses the folder the tokenizer itself.",
            ModelWarning,
        )
    template = "with" if getattr(tokenizer, "chat_template", None) else "without"
    n_tokens = f"{len(tokenizer):,} tokens"
    return f"{type(tokenizer).__name__} of the model, {n_tokens}, {template} a chat template"


def _effects_of(written: HookedModel, engine: Engine) -> Effects:
    """Effect on each example of another model in place of the engine's."""
    forward = ForwardPass(written, engine.capabilities, engine.config.continuation_mean)
    effects = torch.zeros(engine.n_examples)
    with engine.measuring():
        for batch in engine.batches_of(None, of_all_ranks=True):
            log_probs = forward.log_probs(batch, [], reads=engine.metric.reads)
            effects[batch.examples.cpu()] = engine.effects_from(batch, log_probs).flatten().cpu()
            progress.current_run().advance(len(batch.examples))
    return effects


def _readme(
    engine: Engine,
    setup: Setup,
    labels: Sequence[str],
    export: Export,
    result: TraceResult | None,
    side_effects: SideEffects | None,
    choices: str,
) -> str:
    fresh = export.held_out_effects
    of_fresh = fresh is not None and f"- On {len(fresh)} held-out examples: {fresh.mean():.6g}\n"
    search = result and f"- Found by {result.title}, seed {result.seed}; `trace/`\n"
    side = side_effects and f"\n## Side effects\n\n```\n{side_effects}\n```\n"
    return _CARD.read_text(encoding="utf-8").format(
        model=model_name(engine.model),
        engine=engine,
        setup=setup,
        export=export,
        n=len(labels),
        n_components=len(engine.registry),
        components=", ".join(labels),
        written=export.written_effects.mean(),
        effect=export.effects.mean(),
        where="searched" if fresh is None else "held out",
        choices=choices,
        held_out=of_fresh or "",
        search=search or "",
        versions=", ".join(f"{package} {each}" for package, each in versions().items()),
        side_effects=side or "",
    )
