"""`antiphon` and `python -m antiphon`: can be told to stop before anything else is loaded."""

from antiphon.cli.early_stop import end_when_told


def main() -> None:
    """The console script."""
    end_when_told()
    from antiphon.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
