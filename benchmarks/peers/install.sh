#!/bin/bash
# One environment per peer under $FEDKEEL_PEERS (default: .envs beside this file), or only those named as arguments:
#
#     benchmarks/peers/install.sh [flower pfl blazefl fluke fedlab flgo fedjax fedjax_old]
#
# Needs python3.11. Torch comes first, so that no peer pulls another build of it. Peers whose declared requirements
# exclude this torch or Python, or bring packages that a simulation does not use, are installed without their
# requirements and get what they import by name. An environment that is complete is left alone.
set -u
here=$(cd "$(dirname "$0")" && pwd)
envs=${FEDKEEL_PEERS:-$here/.envs}
torch=torch==2.13.0
mkdir -p "$envs"

pip() { "$envs/$peer/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

flower() { pip $torch numpy && pip $torch 'flwr[simulation]==1.41.0'; }
pfl() { pip $torch numpy && pip $torch 'pfl[pytorch]==0.6.0'; }
blazefl() { pip $torch numpy tqdm && pip --no-deps --ignore-requires-python blazefl==2.0.3; }
fluke() {
    pip $torch numpy && pip --no-deps fluke-fl==0.8.1 opacus==1.5.4 torchvision==0.28.0 &&
        pip $torch pandas scikit-learn torchmetrics rich typer wandb datasets tensorboard clearml matplotlib seaborn \
            diskcache cerberus hydra-core requests pyyaml omegaconf scipy opt-einsum pillow
}
fedlab() {
    pip $torch numpy tqdm pandas scikit-learn pynvml munch pillow setuptools wheel &&
        pip --no-deps torchvision==0.28.0 && pip --no-deps --no-build-isolation fedlab==1.3.0
}
flgo() {
    pip $torch numpy tqdm scipy matplotlib prettytable ujson pynvml pyyaml networkx requests toolz pillow &&
        pip --no-deps torchvision==0.28.0 flgo==0.4.4
}
fedjax() { pip numpy fedjax==0.0.17; }
# FedJAX's pmap backend (one client per core) does not run on today's JAX.
fedjax_old() {
    pip jax==0.4.30 jaxlib==0.4.30 'numpy<2' 'dm-haiku<0.0.14' 'optax<0.2.4' msgpack requests absl-py &&
        pip --no-deps fedjax==0.0.17
}

failed=()
for peer in "${@:-flower pfl blazefl fluke fedlab flgo fedjax fedjax_old}"; do
    for peer in $peer; do
        [ -e "$envs/$peer/.complete" ] && continue
        echo "$peer"
        { python3.11 -m venv --clear "$envs/$peer" && "$peer" && touch "$envs/$peer/.complete"; } || failed+=("$peer")
    done
done
[ ${#failed[@]} -eq 0 ] || { echo "not installed: ${failed[*]}" >&2; exit 1; }
