r"""Rich's console, for names that come out of files and from other machines.

>>> Terminal(width=40).print("column age\x1b[2J", markup=False, highlight=False)
column age\x1b[2J
"""

from typing import Any

from rich.console import Console
from rich.text import Text

from quoron_privacy.errors import printable


class Terminal(Console):
    """Shows control characters of what it is given by their escapes; those of colours are its own."""

    def render_str(self, text: str, **how: Any) -> Text:
        """A string that is printed, or a cell of a table."""
        return super().render_str(printable(text), **how)
