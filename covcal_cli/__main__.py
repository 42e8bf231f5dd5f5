"""The program ``covcal``, also as ``python -m covcal_cli``.

Ctrl-C must end the program in one line, also while its modules are still being loaded. So the
handler of Ctrl-C is installed before anything else is imported.
"""

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process and exit."""
    try:
        from covcal_cli.cli import heed_interrupts

        heed_interrupts()
        from covcal_cli.cli.app import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        print("interrupted: no partial output was left", file=sys.stderr)
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
