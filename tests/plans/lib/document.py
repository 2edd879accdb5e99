# SPDX-License-Identifier: Apache-2.0
"""Tables that scripts write into documents."""

import pathlib


def write_between(path, what, lines):
    """Replaces the text between a document's two comments of this name.

    Throws ValueError without them.
    """
    path = pathlib.Path(path)
    begin, end = f"<!-- {what} -->\n", f"<!-- end of {what} -->\n"
    text = path.read_text()
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path} has no place for {what}")
    path.write_text(before + begin + "\n".join(lines) + "\n" + end + after)
