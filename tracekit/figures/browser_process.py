"""Draws figures as images, in a process of its own; imports nothing of this package.

A browser may hang when it starts. The threads that wait for it then outlive everything, the end of
the program included, so that a time limit helps only from outside: another process can be ended.
Run as `python browser_process.py`, with the figures as JSON in the standard input. What is wrong
goes to the standard error, in a line, with the exit status 3.
"""

import json
import os
import sys

FAILED = 3
"""Exit status where an image could not be drawn."""


def main() -> None:
    """Writes the images."""
    # A script's folder comes first among those that are searched for libraries.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    from plotly.io import write_images

    document = json.load(sys.stdin)
    try:
        # Left to itself, plotly gives several figures one size, whatever their layouts say.
        layouts = [figure["layout"] for figure in document["figures"]]
        write_images(
            document["figures"],
            document["paths"],
            width=[layout.get("width") for layout in layouts],
            height=[layout.get("height") for layout in layouts],
            scale=document["scales"],
            validate=False,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        print(str(error).strip().splitlines()[0], file=sys.stderr)  # noqa: T201
        raise SystemExit(FAILED) from None


if __name__ == "__main__":
    main()
