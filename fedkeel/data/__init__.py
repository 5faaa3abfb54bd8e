"""Data for federated learning: sets by name or your own, dealt to clients by the rules of the papers.

fed = fedkeel.data.load("mnist5k").partition("dirichlet", clients=100, alpha=0.3, seed=0)
"""

from fedkeel.data.dataset import Dataset, Federation, Split
from fedkeel.data.own import from_arrays, from_clients, from_flwr, from_hf, from_npz_folder, from_torch
from fedkeel.data.partitions import rules
from fedkeel.data.preview import preview_chart
from fedkeel.data.sources import load, sources
from fedkeel.data.transform import Transform
from fedkeel.theme import save_chart

__all__ = [
    "Dataset",
    "Federation",
    "Split",
    "Transform",
    "from_arrays",
    "from_clients",
    "from_flwr",
    "from_hf",
    "from_npz_folder",
    "from_torch",
    "load",
    "preview_chart",
    "rules",
    "save_chart",
    "sources",
]
