"""Lets ``python -m covcal_cli`` stand for ``covcal``."""

from covcal_cli.cli.app import main

if __name__ == "__main__":
    main()
