"""``python -m headscope``."""

from .cli import main

main()
