"""Checks on a model before its numbers are trusted.

A hook point that fires but whose edits are thrown away would give an effect of 0 with no error. So:

`check_sites`, on random tokens, for every hook point of a registry:
    1. it exists, fires exactly once, and has the expected shape;
    2. an empty mask leaves every logit bit-equal;
    3. a real edit moves the logits, and a gradient reaches the mask, at every site;
    4. what is said to be added to the residual stream does not contain it;
    5. a row that is padded on the right gives the logits of the row alone.
`check_engine`, on the first examples of the data set:
    6. the empty mask has effect 0, and the full mask changes a score.
`check_model_unchanged`, before every run:
    7. the empty mask still has effect 0 on these examples.
"""

from __future__ import annotations

import re
import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.warn import warn
from tracekit.components import KINDS, ComponentRegistry, Site
from tracekit.components.kinds import decode_features, encode_features
from tracekit.data.prompts import PromptPairs
from tracekit.engine.batch import pad_ids
from tracekit.engine.edge_checks import check_edges, find_site_without_gradient
from tracekit.engine.effects import check_metric, empty_mask_effect, masked_log_probs
from tracekit.engine.engine import Engine
from tracekit.engine.patching import MaskedPatch
from tracekit.engine.prepared import PreparedData
from tracekit.errors import (
    HookPointError,
    IdentityCheckError,
    ModelWarning,
    UnreliableResultWarning,
)
from tracekit.models.architectures import post_attention_norm, stream_hook
from tracekit.models.hooked import (
    HookedModel,
    device_of,
    dtype_of,
    foreign_hooks,
    freeze,
    is_close,
    is_exact,
    model_name,
    random_tokens,
    record_pass,
    recording_hooks,
)

_ROWS = 2
_TOKENS = 6
_EXAMPLES = 4
_PROMPTS = 8
_FITS = 0.5
"""Explained variance of features below which they hardly describe the activation."""
_LISTED = 3
_PROVEN: WeakKeyDictionary[Any, list[set[Any]]] = WeakKeyDictionary()
"""Hook points that were proven together, by model."""
_PROBES: WeakKeyDictionary[PreparedData, PreparedData] = WeakKeyDictionary()
"""The first examples of a data set, as they were run when it was checked."""
_WARNED_OF: WeakKeyDictionary[PreparedData, list[str]] = WeakKeyDictionary()
"""Hooks that were left on its model when it was checked last."""


def check_sites(model: HookedModel, registry: ComponentRegistry) -> None:
    """Proves that every hook point of the registry acts on this model.

    Raises:
        HookPointError: Names the model, the hook point, and what to use instead.
        IdentityCheckError: The empty mask changes the logits, or padding does.
    """
    tokens = random_tokens(model, _ROWS, _TOKENS).to(device_of(model))
    # Whole sites: a single unit may well be inactive on a few random tokens. And at all positions,
    # layer by layer: random tokens have no spans, and hooks are looked at one by one.
    registry = registry.whole_sites()
    with freeze(model), torch.no_grad(), warnings.catch_warnings():
        # TransformerLens warns when it discards an edit; here that is found out and raised.
        warnings.filterwarnings("ignore", message=".*discarded.*")
        if registry.edges is not None:
            check_edges(model, registry, tokens)
            return _check_padding(model, tokens)
        activations = _observe(model, registry, tokens)
        others = {name: value.flip(0) for name, value in activations.items()}
        positions = torch.ones_like(tokens, dtype=torch.bool)
        patch = MaskedPatch(registry=registry, counterfactual=others, positions=positions)
        plain = model.run_with_hooks(tokens, fwd_hooks=[])
        empty = torch.zeros(len(registry), device=tokens.device)
        if not torch.equal(plain, model.run_with_hooks(tokens, fwd_hooks=patch.hooks(empty))):
            raise IdentityCheckError(
                f"Hooks that change nothing change the logits of {model_name(model)}. "
                "The model is not deterministic, or a hook is attached to it; reset its hooks."
            )
        site = find_site_without_gradient(model, patch, tokens)
        if site is not None:
            raise _refusal(model, site, "ignores what a hook returns")
        _check_added(model, registry, tokens)
        _check_between(model, patch, tokens)
        _check_padding(model, tokens)


def check_sites_once(model: HookedModel, registry: ComponentRegistry) -> None:
    """`check_sites`, unless it proved these hook points of the model before, as it is now."""
    state = (dtype_of(model), device_of(model), *foreign_hooks(model))
    asked = {(state, site.kind, site.hook_name) for site in registry.sites}
    proven = _PROVEN.setdefault(model, [])
    # Features of a kind are somebody's own, and may be others under the same name.
    has_features = any(site.kind.features_in(site.layer) is not None for site in registry.sites)
    if has_features or not any(asked <= together for together in proven):
        check_sites(model, registry)
        proven.append(asked)


def check_engine(engine: Engine) -> None:
    """Proves the empty and the full mask on a few examples; warns of hooks left on the model.

    Raises:
        IdentityCheckError: The empty mask has an effect, or the full mask has none.
    """
    _warn_of_hooks(engine)
    differing = [number for number, pair in enumerate(engine.pairs) if pair.differs]
    if not differing:
        raise IdentityCheckError(
            "Every counterfactual equals its prompt, so no intervention can have an effect. "
            "Give counterfactuals that differ."
        )
    probe = engine.with_pairs(engine.pairs.subset(differing[:_EXAMPLES]))
    _PROBES[engine] = probe
    empty = probe.effects(torch.zeros(probe.n_components)).abs().max().item()
    if empty != 0:
        raise IdentityCheckError(
            f"The empty mask has an effect of {empty:g} on {model_name(engine.model)}; it must "
            "be 0. The model or the metric is not deterministic, or a hook is attached to it; "
            "reset its hooks and check the metric."
        )
    clean, moved = probe.clean, masked_log_probs(probe, torch.ones(probe.n_components))
    same = clean.y is None or moved.y is None or torch.equal(moved.y, clean.y)
    if same and torch.equal(moved.x, clean.x):
        raise IdentityCheckError(
            f"The full mask over {engine.registry.describe()} changes no score of "
            f"{model_name(engine.model)} on the first {len(probe.pairs)} examples with "
            f"positions={engine.config.positions!r}. Choose components and positions that reach "
            "the scored tokens."
        )
    check_metric(probe)
    _warn_of_zeroed_streams(engine)


def _warn_of_zeroed_streams(engine: Engine) -> None:
    constants = engine.counterfactual_cache.constants
    is_zero = constants is not None and not any(v.any() for v in constants.values.values())
    if engine.registry.edges is not None and is_zero and post_attention_norm(engine.model, 0):
        warn(
            f"{model_name(engine.model)} norms what its parts add to the stream. Where a set "
            "zeroes every edge into a part, only rounding is left of the stream that it reads, and "
            "the norms make it as large as a usual input. Ablate edges by means, or by "
            "counterfactuals.",
            UnreliableResultWarning,
        )


def check_model_unchanged(engine: Engine) -> None:
    """Raises an `IdentityCheckError` for a model that no longer gives the scores computed once."""
    _warn_of_hooks(engine)
    effect = empty_mask_effect(_PROBES.get(engine, engine))
    if effect != 0:
        raise IdentityCheckError(
            f"The empty mask now has an effect of {effect:g} on {model_name(engine.model)}: its "
            "weights or hooks changed since the Tracer was built. Reset its hooks, or build "
            "another Tracer."
        )


def _warn_of_hooks(engine: Engine) -> None:
    left = foreign_hooks(engine.model)
    if left and left != _WARNED_OF.get(engine):
        more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        warn(
            f"Hooks were left on {model_name(engine.model)} at {', '.join(left[:_LISTED])}{more}. "
            "They act in every pass or on every gradient, so the model is traced with them. Call "
            "its reset_hooks(), or remove the handles, to trace it without.",
            ModelWarning,
        )
    _WARNED_OF[engine] = left


def _observe(
    model: HookedModel, registry: ComponentRegistry, tokens: Tensor
) -> dict[str, Float[Tensor, ...]]:
    """Activations at every site, after checking that each fired once in the expected shape."""
    for site in registry.sites:
        if site.hook_name not in model.hook_dict:
            raise _refusal(model, site, "does not exist")
    hooks, recorded = recording_hooks(registry.hook_names)
    try:
        model.run_with_hooks(tokens, fwd_hooks=hooks)
    except (ValueError, AssertionError) as error:
        # TransformerLens has some hook points only on request.
        flag = re.search(r"use_\w+", str(error))
        site = next((s for s in registry.sites if s.hook_name in str(error)), registry.sites[0])
        if flag is None:
            raise
        problem = f"is off until model.set_{flag[0]}(True) is called; call it first"
        raise _refusal(model, site, problem) from error
    for site in registry.sites:
        fired = recorded[site.hook_name]
        if len(fired) != 1:
            raise _refusal(model, site, f"fired {len(fired)} times in one pass instead of once")
        _check_shape(model, site, fired[0])
        if site.kind.features_in(site.layer) is not None:
            _reconstruction(model, site, fired[0])
    return {name: fired[0] for name, fired in recorded.items()}


def _check_shape(model: HookedModel, site: Site, activation: Tensor) -> None:
    expected = site.kind.expected_shape(
        rows=_ROWS, length=_TOKENS, n_components=site.width, d_model=int(model.cfg.d_model)
    )
    # Features lie along one axis, and may be of an activation by head.
    is_by_head = bool(site.kind.feature_layers) and activation.ndim == len(expected) + 1
    shape = tuple(activation.flatten(-2).shape if is_by_head else activation.shape)
    fits = len(shape) == len(expected) and all(
        wanted in (None, size) for wanted, size in zip(expected, shape, strict=True)
    )
    if not fits:
        shown = ", ".join("any" if size is None else str(size) for size in expected)
        problem = f"has shape {shape} instead of ({shown}), so its parts are not {site.kind.name}"
        raise _refusal(model, site, problem)
    for other in KINDS.values():
        # Of two names of one hook point, that of what is added to the residual stream is true.
        name = f"blocks.{site.layer}.{other.hook}"
        is_same = model.hook_dict.get(name) is model.hook_dict[site.hook_name]
        if is_same and other.hook != site.kind.hook and not site.kind.is_added:
            raise _refusal(model, site, f"is the same as {name}, which belongs to {other.name}")


def explained_variance(
    model: HookedModel, pairs: PromptPairs, registry: ComponentRegistry
) -> dict[str, float]:
    """Share of the variance over tokens that features reconstruct, by kind and layer; at most 1.

    First tokens of prompts are left out: their activations are often extreme. Warns of low values.
    """
    sites = [site for site in registry.sites if site.kind.feature_layers]
    if not sites:
        return {}
    tokens = pad_ids([pair.prompt_ids for pair in pairs[:_PROMPTS]])
    is_token = pad_ids([[1] * len(pair.prompt_ids) for pair in pairs[:_PROMPTS]]).bool()
    is_token[:, 0] &= not is_token[:, 1:].any()
    _, recorded = record_pass(model, tokens, [site.hook_name for site in sites])
    shares = {}
    for site in sites:
        activation = recorded[site.hook_name].movedim(site.kind.position_dim, 1)
        values = activation[is_token.to(activation.device)][None].float()
        variance = (values - values.mean(1, keepdim=True)).square().sum().item()
        missed = (values - _reconstruction(model, site, values)).square().sum().item()
        name = f"{site.kind.name}, layer {site.layer}"
        shares[name] = share = 1 - missed / max(variance, 1e-12)
        if share < _FITS:
            warn(
                f"The features {name}, explain {share:.2g} of the variance of the activations of "
                f"{model_name(model)}, where 1 is all of it. They may be of another layer, hook "
                "point or scale, or lack a bias: compare with the value that they were published "
                "with.",
                ModelWarning,
            )
    return shares


def _reconstruction(model: HookedModel, site: Site, activation: Tensor) -> Tensor:
    """What features make of an activation; refuses those that do not fit, forth and back."""
    features, name = site.kind.features_in(site.layer), site.kind.name
    assert features is not None
    values = activation.float()
    start = f"The features of {name!r} do not fit layer {site.layer} of {model_name(model)}: "
    try:
        with torch.no_grad():
            made = encode_features(features, values, len(site.kind.axes))
            again = decode_features(features, made, values)
        for each in (made, again):
            if not (each.is_floating_point() and each.isfinite().all()):
                raise ValueError(f"{each.dtype} or numbers that are not finite")
    except Exception as error:
        raise HookPointError(
            f"{start}on activations of shape {tuple(values.shape)} and {values.dtype} they fail "
            f"with: {error}. Give an autoencoder of this hook point that reads float32 on the "
            "layer's device; .float() makes one of half precision."
        ) from error
    if made.shape != (*values.shape[: len(site.kind.axes) - 1], site.width):
        raise HookPointError(
            f"{start}encode returns the shape {tuple(made.shape)} for activations of shape "
            f"{tuple(values.shape)} and a width of {site.width}. Give the number of features as "
            "the width."
        )
    if again.shape != values.shape:
        raise HookPointError(
            f"{start}decode returns the shape {tuple(again.shape)}, and the activations have "
            f"{tuple(values.shape)}. Give an autoencoder of this hook point."
        )
    return again.float()


def _check_between(model: HookedModel, patch: MaskedPatch, tokens: Tensor) -> None:
    """The MLP must add to the stream that a mask makes between attention and MLP."""
    registry = patch.registry
    sites = [site for site in registry.sites if site.kind.hook == "hook_resid_mid"]
    if not sites:
        return
    names = [f"blocks.{sites[-1].layer}.{hook}" for hook in ("hook_mlp_out", "hook_resid_post")]
    if not set(names) <= set(model.hook_dict):
        return
    full = torch.ones(len(registry), device=tokens.device)
    seen = []
    for changes in ([], patch.hooks(full)):
        _, recorded = record_pass(model, tokens, [sites[-1].hook_names[0], *names], changes)
        seen.append([each.float() for each in recorded.values()])
    (between, added, after), (mixed, added_then, after_then) = seen
    # Some models (Granite) multiply what a layer adds.
    factor = ((after - between) * added).sum() / added.square().sum().clamp(min=1e-12)
    scale = 0.01 * after_then.abs().max()
    if not (after_then - factor * added_then - mixed).abs().max() <= scale:
        raise _refusal(model, sites[-1], "is a copy of the residual stream, which goes past it")


def _check_added(model: HookedModel, registry: ComponentRegistry, tokens: Tensor) -> None:
    """Without what a layer adds, its residual stream must still tell tokens apart."""
    sites = [site for site in registry.sites if site.kind.is_added]
    if not sites:
        return
    last = max(sites, key=lambda site: site.layer)
    after = stream_hook(last.layer + 1)
    # All at once: what one of them wipes out does not come back.
    names = [site.hook_name for site in sites]
    removed = dict.fromkeys(names, lambda activation, hook=None: torch.zeros_like(activation))
    _, recorded = record_pass(model, tokens, [after], list(removed.items()))
    stream = recorded[after].float() if after in recorded else None
    if stream is not None and not (stream - stream[:, :1]).abs().max() > 1e-6 * stream.abs().max():
        raise _refusal(model, last, "holds the residual stream besides what is added to it")


def _check_padding(model: HookedModel, tokens: Tensor) -> None:
    short = model.run_with_hooks(tokens[:1, :-2], fwd_hooks=[])[0]
    padded = tokens.clone()
    padded[0, -2:] = 0
    long = model.run_with_hooks(padded, fwd_hooks=[])[0, :-2]
    if not is_close(long, short, 1e-4 if is_exact(model) else 0.05):
        raise IdentityCheckError(
            f"Padding on the right changes the logits of {model_name(model)}. "
            "tracekit needs a causal model."
        )


def _refusal(model: HookedModel, site: Site, problem: str) -> HookPointError:
    return HookPointError(
        f"{model_name(model)} cannot be traced by {site.kind.name}: its hook point "
        f"{site.hook_name} {problem}. Use {site.kind.instead} instead."
    )
