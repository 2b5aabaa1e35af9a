"""Microseconds per action of an exported policy in onnxruntime, as TorchScript, and of `policy.act`, on one core.

    python benchmarks/export_latency.py [RUN]

Without a run, of PPO with two hidden layers of 64 units on CartPole's spaces.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from whorl.api import restore
from whorl.core.spec import Array, Discrete, Spec
from whorl.settings.merge import configure
from whorl.state.formats import METADATA
from whorl.state.policy import SavedPolicy, build_agent

CALLS, ROUNDS = 2_000, 7


def small() -> SavedPolicy:
    sizes = {"actor_hidden_sizes": (64, 64), "critic_hidden_sizes": (64, 64)}
    settings = configure("ppo", "CartPole-v1", sizes)
    return SavedPolicy(build_agent(settings, Spec(Array((4,)), Discrete(2), 1)), settings)


def microseconds(call: Callable[[], object]) -> float:
    """The fastest of several rounds, which other programs disturbed least."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS)
    return 1e6 * min(times)


def main(run: str) -> None:
    torch.set_num_threads(1)
    policy = restore(run) if run else small()
    with tempfile.TemporaryDirectory() as folder:
        about = policy.export(Path(folder) / "policy.onnx")
        policy.export(Path(folder) / "policy.ts")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(Path(folder) / "policy.onnx"), options)
        script = torch.jit.load(str(Path(folder) / "policy.ts"))
    feed = {port["name"]: np.zeros((1, *port["shape"]), port["dtype"]) for port in about["inputs"]}
    tensors = [torch.from_numpy(value) for value in feed.values()]
    obs = {name: value[0] for name, value in feed.items() if name.startswith("obs")}
    one = (
        obs.pop("obs") if "obs" in obs else {name.removeprefix("obs."): value for name, value in obs.items()}
    )
    mask = feed.get("action_mask")
    allowed = None if mask is None else np.ones_like(mask[0])
    with torch.inference_mode():
        found = {
            "onnxruntime": microseconds(lambda: session.run(None, feed)),
            "torchscript": microseconds(lambda: script(*tensors)),
            "policy.act": microseconds(lambda: policy.act(one, action_mask=allowed, reward=0.0)),
        }
    for name, value in found.items():
        print(f"{name:<12} {value:8.1f} us per action")
    print(json.dumps({METADATA: about["algorithm"], "env": about["env"], **found}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="")
    main(parser.parse_args().run)
