"""The copy of the published code that is timed: what is changed in it, and nothing else."""

from __future__ import annotations

import pytest
import typer

from tools.studies.published import adapted

_LINES = [
    "torch.autograd.set_detect_anomaly(True)",
    "model = model.to(device)",
    "examples = winobias.load_dev_examples()",
    "for step in range(2):",
    '        print(f"Step {step+1}, odds_average: {odds_average}")',
]


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    for part in ("utils", "datasets", "data/winobias"):
        (folder / part).mkdir(parents=True)
    (folder / "utils" / "padding.py").write_text("PADDING = 50256\n")
    (folder / "train_attention_winobias_llama.py").write_text("\n".join(_LINES) + "\n")
    return folder


@pytest.mark.parametrize("with_detection", [True, False])
def test_padding_examples_and_times_are_changed(checkout, tmp_path, with_detection):
    script = adapted(checkout, tmp_path / "copy", with_detection=with_detection)
    text = script.read_text()
    assert (_LINES[0] in text) == with_detection
    assert "load_dev_examples()[:32]" in text
    assert "tokenizer.pad_token" in text
    assert 'print("EPOCH", time.process_time()' in text
    assert (script.parent / "utils" / "padding.py").read_text() == "PADDING = 2\n"
    assert (checkout / "utils" / "padding.py").read_text() == "PADDING = 50256\n"


def test_another_script_is_refused(checkout, tmp_path):
    script = checkout / "train_attention_winobias_llama.py"
    script.write_text(script.read_text().replace("model.to(device)", "model.cuda()"))
    with pytest.raises(typer.BadParameter, match=r"has no line 'model = model\.to\(device\)'"):
        adapted(checkout, tmp_path / "copy", with_detection=True)
