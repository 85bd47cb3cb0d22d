"""Text is UTF-8 whatever the locale, with or without a byte-order mark."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, sys
from pathlib import Path
from tracekit.cli.options import read_masks
from tracekit.data.download import read_lines
from tracekit.data.from_file import read_rows
from tools.validate import read_single_heads
folder = Path(sys.argv[1])
print(json.dumps([
    read_masks(folder / "mask.json")[0][1],
    read_single_heads(folder / "heads.json").model,
    read_lines("caf\\u00e9", folder, "lines.txt"),
    *(read_rows(folder / f"rows.{end}")[0][0]["prompt"] for end in ("csv", "jsonl", "json")),
]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_files_are_read_alike_under_another_locale(tmp_path, encoding):
    heads = {"dataset": "d", "model": "é→", "n_examples": 1, "all_heads_effect": 1.0}
    row = json.dumps({"prompt": "é→", "x": "a"}, ensure_ascii=False)
    texts = {
        "mask.json": "[0.0, 1.0]",
        "heads.json": json.dumps({**heads, "single_head_effect": [[1.0]]}, ensure_ascii=False),
        "lines.txt": "é→\n",
        "rows.csv": "prompt,x\né→,a\n",
        "rows.jsonl": row,
        "rows.json": f"[{row}]",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding=encoding)
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    made = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env={**os.environ, **locale},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == [[0.0, 1.0], "é→", ["é→"], "é→", "é→", "é→"]
