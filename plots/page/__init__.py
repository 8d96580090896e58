"""A result as one HTML file that fetches nothing, and as the short view of a notebook.

Everything that comes from outside (names, paths, tokens, cells) is text to a page, whatever it holds: templates escape
it, and tables are data that a script of our own shows as text.
"""

from .document import DPI, Drawn, Part, Table, page
from .short import short

__all__ = ["DPI", "Drawn", "Part", "Table", "page", "short"]
