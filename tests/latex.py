"""What every LaTeX table is held to, without a LaTeX."""

from __future__ import annotations

import re


def check_latex(text):
    """Environments and braces are balanced, rows are alike, and special characters are escaped."""
    opened = []
    for which, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if which == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    bare = re.sub(r"\\[&%$#_{}]", "", text)
    assert bare.count("{") == bare.count("}")
    words = re.sub(r"\$-\$|\\label\{[^}]*\}", "", bare)
    assert not re.findall(r"[$#%_~^]", words)
    (layout,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    rows = [line for line in bare.splitlines() if line.endswith(r"\\")]
    assert len(rows) > 1
    assert {line.count("&") for line in rows} == {len(layout) - 1}
    assert "&" not in "".join(line for line in bare.splitlines() if line not in rows)


def caption_of(text):
    """The caption of a table."""
    (caption,) = re.findall(r"^\\caption\{(.*)\}$", text, re.MULTILINE)
    return caption


def titles_of(text):
    """The titles of its columns."""
    return text.split("\\toprule\n")[1].splitlines()[0].removesuffix(r" \\").split(" & ")
