"""Play episodes with an exported policy: onnxruntime, numpy and gymnasium, neither torch nor whorl.

whorl export RUN --output policy.onnx
python examples/run_onnx.py policy.onnx CartPole-v1
"""

import sys

import gymnasium
import numpy as np
import onnxruntime

TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(bool)": "bool"}


def main(path: str, env_id: str, episodes: int = 5) -> list[float]:
    session = onnxruntime.InferenceSession(path)
    inputs = {x.name: (x.shape[1:], TYPES.get(x.type, x.type[7:-1])) for x in session.get_inputs()}
    outputs = [x.name for x in session.get_outputs()]
    env, returns = gymnasium.make(env_id), []
    for episode in range(episodes):
        # What is remembered is passed back at the next step; `reset` clears it at the start of an episode.
        kept = [name[5:] for name in outputs if name.startswith("next_")]
        state = {name: np.zeros((1, *inputs[name][0]), inputs[name][1]) for name in kept}
        obs, info = env.reset(seed=episode)
        reward, total, reset, over = 0.0, 0.0, True, False
        while not over:
            parts = obs if isinstance(obs, dict) else {"obs": obs}
            mask = parts.get("action_mask", info.get("action_mask"))
            given = {"obs": obs, "reward": reward, "reset": reset, "action_mask": mask}
            given |= {f"obs.{key}": part for key, part in parts.items()}
            feed = {n: np.asarray(given[n], t).reshape(1, *s) for n, (s, t) in inputs.items() if n in given}
            found = dict(zip(outputs, session.run(None, feed | state)))
            state = {name: found[f"next_{name}"] for name in kept}
            action = {name[7:]: part[0] for name, part in found.items() if name.startswith("action")}
            parts = tuple(action.values()) if "0" in action else action  # of a Tuple or a Dict
            obs, reward, terminated, truncated, info = env.step(action.get("", parts))
            total, reset, over = total + float(reward), False, terminated or truncated
        returns.append(total)
    return returns


if __name__ == "__main__":
    sys.stdout.write(f"returns: {main(sys.argv[1], sys.argv[2])}\n")
