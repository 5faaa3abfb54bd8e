"""``python -m fedkeel.network.superlink``: Flower's SuperLink, which ends when the process that started it ends."""

from __future__ import annotations

from fedkeel.network.children import end_with_parent, limit_memory

if __name__ == "__main__":
    end_with_parent()
    limit_memory()
    from flwr.superlink.cli import flower_superlink

    flower_superlink()
