"""Options that commands share, each made once, how they are read, and the tracer they make."""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, fields
from functools import partialmethod, wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import PositiveInt
from typer.models import OptionInfo

import tracekit as tk
from tracekit import models
from tracekit._util.deferred import transformers
from tracekit._util.names import (
    KindName,
    MetricName,
    ObjectiveName,
    SignName,
    SourceName,
    choices_text,
)
from tracekit._util.options import field_help, field_hints
from tracekit.cli.app import PANELS
from tracekit.cli.console import check_file, console
from tracekit.cli.tables import print_tracer
from tracekit.engine.setup_fields import SetupFields
from tracekit.errors import ConfigError, DataFormatError, DataNotFoundError, UnknownNameError

REQUIRED = inspect.Parameter.empty
"""Default of an option that must be given."""


class Option(NamedTuple):
    """An option of commands."""

    kind: Any
    default: Any
    option_info: OptionInfo
    """Its names, help text and panel."""

    def with_help(self, text: str, **changes: Any) -> Option:
        """The same option with another help text, and other fields if they are given."""
        shown = copy(self.option_info)
        shown.help = text
        return self._replace(option_info=shown, **changes)


@dataclass(frozen=True)
class HelpPanel:
    """A panel of the help, with methods that make its options."""

    title: str

    def option(
        self, kind: Any, metavar: str, text: str, *names: str, default: Any = None, **more: Any
    ) -> Option:
        """Makes an option. Without a default it is optional; with `REQUIRED` it must be given.

        Pass `names` that differ from the parameter's; a flag has an empty `metavar`.
        """
        more = {"metavar": metavar or None, "help": text, "rich_help_panel": self.title, **more}
        return Option(kind, default, typer.Option(*names, **more))

    flag = partialmethod(option, bool, "", default=False)
    count, number = partialmethod(option, int, "N"), partialmethod(option, float, "X")
    text, path = partialmethod(option, str, "TEXT"), partialmethod(option, Path, "PATH")
    name, names = partialmethod(option, str, "NAME"), partialmethod(option, list[str], "NAME")
    settings = partialmethod(option, list[str], "NAME=VALUE")


WHAT, DATA, MODEL, HOW, LIMITS, WHERE, OUTPUT = map(HelpPanel, PANELS[1:])


def with_options(
    *names: str, **command_options: Option
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds options to a command, whose first parameter gets their values.

    `names` are keys of `OPTIONS`; `command_options` are added, or replace shared ones.
    """
    shared = {name: command_options.get(name, OPTIONS[name]) for name in names}
    options = {**command_options, **shared}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        arguments = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=keyword) for each in arguments]
        for name, (kind, default, shown) in options.items():
            annotation = Annotated[kind | None if default is None else kind, shown]
            parameter = inspect.Parameter(name, keyword, default=default, annotation=annotation)
            parameters.append(parameter)

        @wraps(command)
        def run(**entries: Any) -> None:
            command({name: entries.pop(name) for name in options}, **entries)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _read_config(context: Any, path: Path | None) -> Path | None:
    """Makes the options of a file the defaults of a command."""
    if path is not None:
        options = {parameter.name: parameter for parameter in context.command.params}
        keys = {name for name in options if name and name not in _CONFIG_KEYS}
        context.default_map = {
            name: cli_values(value, is_list=bool(getattr(options[name], "multiple", False)))
            for name, value in read_options(path, keys).items()
        }
    return path


_CONFIG_KEYS = ("config", "save_config_to", "dry_run")
SEVERAL = "; may be given several times."
_BY_DATA = "Default: what is usual for the data set."
_MORE_HELP = {
    "components": f"Kinds: {choices_text(KindName)}. {_BY_DATA}",
    "metric": f"Metrics: {choices_text(MetricName)}. {_BY_DATA}",
    "layers": "Example: 0-5,8.",
    "positions": f"Example: 0,3,-1. {_BY_DATA}",
    "source": f"Sources: {choices_text(SourceName)}.",
}
"""What the help of a field does not say: names to choose from, and how a list is typed."""
_CHOSEN_BY_DATA = ("components", "metric", "positions")
"""Fields of a `Setup` whose default on the command line is what is usual for the data set."""
_WITHOUT_OPTION = ("indices", "source_seed")
"""Fields of a `Setup` that are given in Python only; and the seed, which `--seed` gives."""


def make_setup_options(kind: type[SetupFields]) -> dict[str, Option]:
    """An option for each field of a `Setup`, by name; its help is that of the field."""
    helps, hints, options = field_help(kind), field_hints(kind), {}
    for each in fields(kind):
        if each.name in _WITHOUT_OPTION:
            continue
        text = f"{helps[each.name]} {_MORE_HELP.get(each.name, '')}".strip()
        default = None if each.name in _CHOSEN_BY_DATA else each.default
        if isinstance(default, int):
            least = 1 if hints[each.name] == PositiveInt else None
            options[each.name] = WHAT.count(text, default=default, min=least)
        else:
            options[each.name] = WHAT.text(text, default=default)
    return options


SETUP_OPTIONS = make_setup_options(SetupFields)

OPTIONS: Mapping[str, Option] = {
    # ---- data and model
    "model": WHAT.name(
        "`demo`, a directory in Hugging Face layout, or a hub name.", default="demo"
    ),
    "model_option": MODEL.settings(
        "Option of loading the model as name=value, e.g. device_map=auto, n_devices=2 or "
        f"revision=main{SEVERAL}"
    ),
    "device": MODEL.name("E.g. cpu or cuda:0."),
    "dtype": MODEL.name(
        "auto (float32 where it fits, else the checkpoint's), float32, bfloat16 or float16.",
        default="auto",
    ),
    "dataset": WHAT.name(
        "A data set (`tracekit datasets` lists them), or a .csv, .json or .jsonl file of pairs.",
        default="demo-bias",
    ),
    "data_dir": DATA.path("Folder with the data set's files. Default: downloaded once."),
    "data_option": DATA.settings(f"Option of the data set as name=value, e.g. seed=1{SEVERAL}"),
    "split": DATA.name("Split of the data set, e.g. test."),
    "chat": DATA.flag("Write the prompts of a file by the chat template.", "--chat"),
    "chat_option": DATA.settings(
        "Argument of the chat template as name=value, e.g. enable_thinking=false, or "
        f"strftime_now=2026-01-31 for the day that it reads; implies --chat{SEVERAL}"
    ),
    "skip_mismatched": DATA.flag(
        "Drop examples whose counterfactual has another length.", "--skip-mismatched"
    ),
    "limit": DATA.count("Use only the first N examples.", min=1),
    "held_out": DATA.number("Share of the examples that no method sees, e.g. 0.2.", min=0, max=1),
    # ---- what is traced
    **SETUP_OPTIONS,
    "extra_metric": WHAT.names(f"A further metric that every result is measured by{SEVERAL}"),
    # ---- how it is searched
    "objective": HOW.option(
        ObjectiveName | None,
        "NAME",
        "What is maximised over the examples: mean, log-odds, trimmed-mean, lower-bound, median, "
        "faithful (the set does what all components do, and the others do nothing) or auto (the "
        "mean, by the search or by single effects, whichever holds on the other half). Mean "
        "effects are reported all the same. Default: mean; of edges faithful, without a sign.",
    ),
    "sign": HOW.option(
        SignName,
        "NAME",
        "Sign of the effects that are sought: positive, negative, or full: that of all components. "
        "Default: that of the target effect, else positive.",
    ),
    "constraint_at_most": HOW.number(
        "Search only sets whose effect by the constraint's metric is at most this."
    ),
    "constraint_metric": HOW.name("The metric of the constraint. Default: kl."),
    "constraint_dataset": HOW.name(
        "Data of the constraint, e.g. a .jsonl file of neutral text. Default: the traced data."
    ),
    "seed": HOW.count("Seed of every search.", default=0),
    # ---- limits, workers, output
    "max_batch_size": LIMITS.count(
        "Examples per pass; bounds memory, changes no result. Default: 64, or what fits a card.",
        min=1,
    ),
    "max_memory": LIMITS.count(
        "MiB that counterfactual activations may take on the device.", min=0
    ),
    "dry_run": LIMITS.flag(
        "Print how long it will take, from one timed probe; run and write nothing.", "--dry-run"
    ),
    "jobs": WHERE.count(
        "Number of runs at a time, each on a CUDA device of its own if there are several. "
        "Default: 1.",
        min=1,
    ),
    "part": WHERE.text(
        "Such as 3/16: only every sixteenth run, beginning with the third, and no report. "
        "For arrays of jobs and several shells."
    ),
    "output": OUTPUT.path(
        "Folder for figures and results; made if missing.", "--output", "-o", default=Path("run")
    ),
    "config": OUTPUT.path(
        "TOML file of these options, e.g. limit = 32. What is given here counts more.",
        callback=_read_config,
        is_eager=True,
    ),
    "save_config_to": OUTPUT.path("File to write all of these options to.", "--save-config"),
    "quiet": OUTPUT.flag("No progress bars.", "--quiet"),
}
"""All shared options, by parameter."""
OPTIONAL_OUTPUT = OPTIONS["output"]._replace(default=None)

_MODEL_KEYS = ("model_option", "device", "dtype", "max_batch_size")
_DATA_KEYS = ("data_dir", "data_option", "split", "chat", "chat_option", "skip_mismatched")
EXAMPLE_KEYS = (*_DATA_KEYS, "limit", "held_out")
"""Options that choose the examples of a data set."""
TRACE_KEYS = ("model", "dataset", *SETUP_OPTIONS, "extra_metric", *EXAMPLE_KEYS, *_MODEL_KEYS)
"""Options of every command that traces: data, model and setup."""
_CONSTRAINT = ("constraint_at_most", "constraint_dataset", "constraint_metric")
SEARCH_KEYS = ("max_memory", "objective", "sign", *_CONSTRAINT)
"""Further options of a command that searches."""
SAVED_RUN_KEYS = (*EXAMPLE_KEYS, "split_by", *_MODEL_KEYS)
"""Options of a command on a saved run, beside its model and data set."""
WORKER_KEYS = ("jobs", "part")
"""Options of a command that runs jobs."""


def check_data_files(*datasets: str | None, data_dir: Path | None = None, **options: Any) -> None:
    """Checks data sets or files of pairs, and the folder with data, before a model is loaded."""
    from tracekit.data.from_file import SUFFIXES, read_rows

    for dataset in datasets:
        if dataset is not None and dataset.endswith(SUFFIXES):
            of_files = {name: options[name] for name in ("columns", "format") if name in options}
            with warnings.catch_warnings(record=True):  # Loading the data shows them.
                read_rows(Path(dataset), **of_files, typed=True)
    if data_dir is not None and not data_dir.is_dir():
        raise DataNotFoundError(f"There is no folder {data_dir} with data files. Give another.")


def build_search(values: Mapping[str, Any]) -> tuple[tk.Tracer, dict[str, Any]]:
    """Builds and prints the tracer of `TRACE_KEYS`; returns it and the request's options."""
    check_data_files(values["constraint_dataset"])
    saved = values.get("save_config_to")
    if saved is not None and not values["dry_run"]:
        check_file(saved)
        write_options(saved, {n: v for n, v in values.items() if n not in _CONFIG_KEYS})
    tracer = build_tracer(values)
    request = {name: values[name] for name in ("objective", "sign")}
    most, dataset, metric = (values[name] for name in _CONSTRAINT)
    for flag, value in (("--constraint-dataset", dataset), ("--constraint-metric", metric)):
        if value is not None and most is None:
            raise ConfigError(f"{flag} needs a bound. Give --constraint-at-most, e.g. 0.05.")
    if most is not None:
        pairs = None if dataset is None else tk.load_dataset(dataset, tracer.model)
        request["constraint"] = tk.Constraint(pairs=pairs, metric=metric or "kl", at_most=most)
    print_tracer(tracer)
    return tracer, request


def load_quietly(source: str, **options: Any) -> Any:
    """Loads a model without the progress bar of transformers, which also shows in pipes."""
    transformers.utils.logging.disable_progress_bar()
    return models.load_model(source, **options)


def load_data(values: Mapping[str, Any]) -> tuple[Any, tk.PromptPairs]:
    """Loads the model and the pairs that options name; prints the skipped examples.

    An `origin` in `values` gives the pairs of a saved run, and `run_chat` the arguments of its chat
    template. Checks that need no model come first.
    """
    from tracekit._util.ranks import launched_device
    from tracekit.data.registry import describe, load_origin

    dataset, data_dir = values["dataset"], values["data_dir"]
    by_dataset = parse_options(values["data_option"] or [], [dataset])
    data_options = by_dataset[dataset]
    describe(dataset)  # Refuses an unknown name before the model is loaded.
    check_data_files(dataset, data_dir=data_dir, **data_options)
    data_options |= {} if data_dir is None else {"data_dir": data_dir}
    data_options |= {} if values.get("split") is None else {"split": values["split"]}
    run_chat, chat = values.get("run_chat"), parse_chat(values.get("chat_option"))
    if values.get("chat") or chat or run_chat is not None:
        data_options |= {"chat": {**(run_chat or {}), **chat} or True}
    data_options |= {"on_mismatch": "skip"} if values.get("skip_mismatched") else {}
    device = values["device"]
    if device in (None, "cuda"):
        device = launched_device() or device
    loading = parse_loading_options(values["model_option"])
    model = load_quietly(values["model"], device=device, dtype=values["dtype"], **loading)
    if values.get("origin") is None:
        pairs = tk.load_dataset(dataset, model, **data_options)
    else:
        pairs = load_origin(values["origin"], model)
    for line in pairs.skipped:
        console.print(f"Skipped {line}.")
    return model, pairs[: values["limit"]]


def build_tracer(
    values: Mapping[str, Any], setup: tk.Setup | None = None, *, loaded: Any = None
) -> tk.Tracer:
    """Loads model and data, if not `loaded`, and builds the tracer of `TRACE_KEYS`.

    A `setup` replaces the one of the options; `held_out_origin` says where held-out pairs are from.
    """
    from tracekit._util.ranks import join_launched
    from tracekit.data.registry import load_origin

    # Of the processes that a launcher has started, only the first one prints.
    console.quiet = not join_launched().is_first
    seed = values.get("seed", 0)
    if setup is None:
        setup = _build_setup(values, seed)
    model, pairs = loaded or load_data(values)
    held_out = None
    if values.get("held_out") is not None:
        by_prompt = setup.source != "counterfactual"
        pairs, held_out = pairs.split(1 - values["held_out"], seed=seed, by_prompt=by_prompt)
    elif values.get("held_out_origin") is not None:
        held_out = load_origin(values["held_out_origin"], model)
    memory = values.get("max_memory")
    return tk.Tracer(
        model,
        pairs,
        setup,
        max_batch_size=values["max_batch_size"],
        max_memory=None if memory is None else memory * 2**20,
        progress=False if values.get("quiet") else None,
        held_out=held_out,
        extra_metrics=values.get("extra_metric") or (),
    )


def _build_setup(values: Mapping[str, Any], seed: int) -> tk.Setup:
    """Builds the setup of the options, with the usual values of the data set for the rest."""
    from tracekit.data.registry import describe

    usual = describe(values["dataset"])
    entries = {name: values[name] for name in SETUP_OPTIONS if values.get(name) is not None}
    entries["layers"] = parse_layers(entries.get("layers"))
    if "positions" in entries:
        with suppress(ValueError):  # `Setup` checks other texts.
            entries["positions"] = [int(part) for part in entries["positions"].split(",")]
    elif "split_by" not in entries:
        entries["positions"] = usual.positions
    usual_names = {"components": usual.components, "metric": usual.metric}
    return tk.Setup(**{**usual_names, **entries, "source_seed": seed})


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]


_CODE = "trust_remote_code"


def read_options(path: str | Path, keys: Iterable[str]) -> dict[str, Any]:
    """Reads a TOML file of options, named as in `keys`; `max-passes` is `max_passes`.

    A file that asks to run the code of a model is refused.
    """
    path = Path(path)
    if not path.is_file():
        raise DataNotFoundError(f"There is no file {path}. Give a TOML file of options.")
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as TOML: {error}. Write lines such as limit = 32 and "
            'methods = ["pgb-ct", "top-k"].'
        ) from error
    if _CODE in str(entries):
        raise ConfigError(
            f"{path} sets {_CODE}, which a file of options must not. Take it out. If you trust the "
            f"model, pass --model-option {_CODE}=true on the command line, or the same in Python."
        )
    allowed = sorted(keys)
    options: dict[str, Any] = {}
    for key, value in entries.items():
        name = key.replace("-", "_")
        if name not in allowed:
            raise UnknownNameError("key", name, allowed)
        if name in options:
            raise ConfigError(f"{path} has the key {name} twice. Keep one of them.")
        options[name] = value
    return options


def write_options(path: str | Path, options: Mapping[str, Any]) -> None:
    """Writes options as TOML, without None, empty lists and permission to run a model's code."""
    import tomli_w

    from tracekit._util.files import write_atomically

    plain = {name: _toml_value(value) for name, value in options.items()}
    content = {name: value for name, value in plain.items() if value not in (None, [])}
    write_atomically(Path(path), tomli_w.dumps(content))


def _toml_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_toml_value(each) for each in value if _CODE not in str(each)]
    return str(value) if isinstance(value, Path) else value


_MOST_LAYERS = 10_000


def goal_arguments(values: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The goal of a run, as keyword arguments of `Tracer.run`; a fixed lambda1 needs no budget."""
    goals: dict[str, Any] = {"budgets": [parse_budget(text) for text in values["budget"] or []]}
    goals |= {name: values[name] for name in ("target_effect", "faithfulness")}
    goals = {name: value for name, value in goals.items() if value not in (None, [])}
    if len(goals) > 1:
        raise ConfigError(
            "More than one goal was given. Give one of --budget, --target-effect and "
            "--faithfulness."
        )
    return goals or ({} if "lambda1" in options else {"budgets": [0.1]})


def parse_budget(text: str) -> int | float:
    """A count (int) or a share (float)."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    raise ConfigError(
        f"The budget {text!r} is not a number. Give a count such as 6 or a share such as 0.2."
    )


def parse_layers(text: str | None) -> list[int] | None:
    """Layers from text such as `0-5,8`; None stays None."""
    if text is None:
        return None
    ranges = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            ranges.append(range(int(first), int(last if dash else first) + 1))
        n_layers = sum(len(layers) for layers in ranges)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"The layers {text!r} are not of the form 0-5,8. Write them so."
        ) from None
    if n_layers > _MOST_LAYERS:
        raise ConfigError(f"The layers {text!r} are more than any model has. Name fewer.")
    return [layer for layers in ranges for layer in layers]


def parse_options(texts: list[str], methods: list[str]) -> dict[str, dict[str, Any]]:
    """Options by method: `name=value` for all methods, `method:name=value` for one."""
    by_method: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"The option {text!r} is not of the form name=value. Write it so.")
        method, colon, option = name.rpartition(":")
        if colon and method not in by_method:
            raise ConfigError(f"The option {text!r} is for {method}, which is not run.")
        targets = [method] if colon else methods
        for target in targets:
            by_method[target][option] = value
    return by_method


def parse_named_values(texts: list[str] | None, *kinds: type) -> dict[str, Any]:
    """Values by their names, from `name=value`: texts, or where JSON has it one of the `kinds`."""
    values = parse_options(texts or [], [""])[""]
    for name, text in values.items() if kinds else ():
        with suppress(ValueError):
            value = json.loads(text)
            values[name] = value if type(value) in kinds else text
    return values


def parse_loading_options(texts: list[str] | None) -> dict[str, Any]:
    """Options of `load_model`; whole numbers become int."""
    return parse_named_values(texts, int)


def cli_values(value: Any, *, is_list: bool) -> Any:
    """Converts a value of a TOML file to the texts that a command line would have.

    A table stands for `name=value`, a table in it for options of one method.
    """
    if isinstance(value, dict):
        value = [text for name, entry in value.items() for text in _setting_texts(name, entry)]
    if not is_list:
        return _argument_text(value)
    entries = value if isinstance(value, list) else [value]
    return [_argument_text(entry) for entry in entries]


def _setting_texts(name: str, entry: Any) -> list[str]:
    if isinstance(entry, dict):
        return [f"{name}:{option}={_argument_text(value)}" for option, value in entry.items()]
    return [f"{name}={_argument_text(entry)}"]


def _argument_text(value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(map(str, value))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value


def parse_chat(texts: list[str] | None) -> dict[str, Any]:
    """Arguments of a chat template: JSON or, as in Python, True, False and None; else texts."""
    words = {"true": True, "false": False, "none": None, "null": None}
    options = parse_named_values(texts)
    for name, text in options.items():
        with suppress(ValueError):
            # NaN stays a text.
            options[name] = json.loads(text, parse_constant=str)
        options[name] = words.get(text.lower(), options[name])
    return options


def read_masks(path: Path) -> list[tuple[str, list[float] | tk.TraceResult | str]]:
    """Masks from a JSON file, the result in a run folder, or labels, each with a name."""
    if path.is_dir():
        return [(path.name, tk.TraceResult.load(path))]
    if not path.is_file():
        if not path.suffix and len(path.parts) == 1:
            return [(str(path), str(path))]
        raise DataNotFoundError(
            f"There is no file {path}. Give a JSON file, a run's folder, or labels."
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(document, list):
            raise TypeError
        stack = document if document and isinstance(document[0], list) else [document]
        masks = [[float(entry) for entry in mask] for mask in stack]
    except (ValueError, TypeError) as error:
        raise DataFormatError(
            f"{path} holds no mask. Write a JSON list with one number per component, or a list of "
            "such lists."
        ) from error
    return [
        (f"{path.name}[{number}]" if len(masks) > 1 else path.name, mask)
        for number, mask in enumerate(masks)
    ]
