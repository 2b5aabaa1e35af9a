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
        state = {name[5:]: np.zeros((1, *inputs[name[5:]][0]), inputs[name[5:]][1]) for name in outputs[1:]}
        obs, info = env.reset(seed=episode)
        reward, total, reset, over = 0.0, 0.0, True, False
        while not over:
            given = {"obs": obs, "reward": reward, "reset": reset, "action_mask": info.get("action_mask")}
            given |= {f"obs.{key}": part for key, part in obs.items()} if isinstance(obs, dict) else {}
            feed = {n: np.asarray(given[n], t).reshape(1, *s) for n, (s, t) in inputs.items() if n in given}
            action, *after = session.run(None, {**feed, **state})
            state = {name[5:]: value for name, value in zip(outputs[1:], after)}  # next_NAME
            obs, reward, terminated, truncated, info = env.step(action[0])
            total, reset, over = total + float(reward), False, terminated or truncated
        returns.append(total)
    return returns


if __name__ == "__main__":
    sys.stdout.write(f"returns: {main(sys.argv[1], sys.argv[2])}\n")
