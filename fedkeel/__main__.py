"""``python -m fedkeel``: the same command."""

from fedkeel.cli.main import run

if __name__ == "__main__":
    run()
