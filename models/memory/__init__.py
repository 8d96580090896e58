"""A model's history: who holds which page, what a token leaves there, and how it is attended to."""

from .cache import Cache, Requests
from .form import Dense, Form
from .ledger import Ledger, OutOfPages

__all__ = ["Cache", "Dense", "Form", "Ledger", "OutOfPages", "Requests"]
