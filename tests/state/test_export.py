"""Exported policies act as `policy.act` does, in onnxruntime, as TorchScript, and built again from safetensors."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from whorl.api import restore
from whorl.conformance.subjects import OBSERVATIONS, Subject, subject
from whorl.core import tree
from whorl.core.errors import ConfigError, WhorlError
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, Spec
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.spaces import make_layout
from whorl.nets.normalize import Scale
from whorl.state.formats import METADATA, read_safetensors
from whorl.state.policy import SavedPolicy
from whorl.state.traced import NEXT, Port, TracedPolicy, _Draws

onnxruntime = pytest.importorskip("onnxruntime")
BATCH, STEPS = 20, 50
full = pytest.mark.full
Runtime = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def trained(given: Subject) -> SavedPolicy:
    """A policy whose weights and statistics are not the initial ones, which many mistakes would leave as they are."""
    agent = given.agent()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in agent.parameters():
            # Rows of layers that leave the size of their inputs as it is: much larger ones would multiply roundings.
            size = value[0].numel() ** -0.5 if value.dim() > 1 else 0.2
            value.add_(size * torch.randn(value.shape, generator=generator))
        for module in agent.modules():
            if isinstance(module, Scale):
                rows = 1 + 3 * torch.randn(64, *module.mean.shape, generator=generator)
                module.merge_(rows, torch.ones(64))
    return SavedPolicy(agent, given.configured())


def observed(policy: SavedPolicy, rng: np.random.Generator) -> Any:
    """Observations [BATCH, ...] as an environment gives them."""

    def one(leaf: Array) -> np.ndarray:
        if leaf.start is not None:
            return rng.integers(leaf.start, leaf.start + leaf.frame.shape[0], BATCH)
        shape = (BATCH, *(leaf.frame.shape[1:] if leaf.plane else leaf.frame.shape))
        if leaf.dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        return rng.normal(1, 3, shape).astype(leaf.dtype)

    found = tree.map(one, policy.reads.observation)
    if policy.reads.masked:
        mask = rng.random(found[MASK_KEY].shape) < 0.6
        mask[:, 0] = True
        found[MASK_KEY] = np.where(mask.all(-1, keepdims=True), mask, True).astype(np.int8) & mask
        size = found[MASK_KEY].shape[-1]
        found[MASK_KEY][:, -min(size, 3) :: 2] = 1  # each choice of the trees here keeps an option
        found[MASK_KEY] = found[MASK_KEY].astype(policy.reads.observation[MASK_KEY].dtype)
    return found


def compare(policy: SavedPolicy, ports: list[dict[str, Any]], run: Runtime, stochastic: bool = False) -> int:
    """Play BATCH x STEPS random observations with `policy` and a runtime; the discrete actions that differ are none,
    the continuous ones differ by 1e-5 at most. Returns how many observations were compared."""
    rng = np.random.default_rng(0)
    names = [port["name"] for port in ports]
    state = {
        port["name"]: np.zeros((BATCH, *port["shape"]), port["dtype"])
        for port in ports
        if port["kind"] == "state"
    }
    fresh = np.ones(BATCH, bool)
    policy.reset()
    policy.seed(1)
    for _ in range(STEPS):
        obs, reward = observed(policy, rng), rng.normal(size=BATCH).astype(np.float32)
        with _Draws() as draws:
            expected = policy.act(obs, deterministic=not stochastic, reward=reward)
        inputs = {"reset": fresh, "reward": reward, **state}
        inputs |= {
            (path if path == MASK_KEY else f"obs.{path}" if path else "obs"): leaf
            for path, leaf in tree.items(obs)
        }
        inputs |= {f"noise.{number}": drawn.numpy() for number, (_, drawn) in enumerate(draws.found)}
        outputs = run({name: inputs[name] for name in names})
        numbered = _as_tree(expected)
        for path, want in tree.items({"action": numbered}):
            got = outputs[path]
            assert got.dtype == want.dtype and got.shape == want.shape
            if np.issubdtype(want.dtype, np.integer):
                np.testing.assert_array_equal(got, want, path)
            else:
                np.testing.assert_allclose(got, want, atol=1e-5, rtol=0, err_msg=path)
        state = {name: outputs[NEXT + name] for name in state}
        fresh = rng.random(BATCH) < 0.1
        policy.reset(fresh)
    return BATCH * STEPS


def _as_tree(action: Any) -> Any:
    if isinstance(action, tuple):
        return {str(number): _as_tree(part) for number, part in enumerate(action)}
    return (
        {k: _as_tree(part) for k, part in action.items()} if isinstance(action, dict) else np.asarray(action)
    )


def in_onnxruntime(path: Path) -> tuple[Runtime, dict[str, Any]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    outputs = [output.name for output in session.get_outputs()]
    about = json.loads(session.get_modelmeta().custom_metadata_map[METADATA])
    return lambda inputs: dict(zip(outputs, session.run(None, inputs))), about


def in_torchscript(path: Path) -> tuple[Runtime, dict[str, Any]]:
    extra = {METADATA: ""}
    script = torch.jit.load(str(path), _extra_files=extra)
    about = json.loads(extra[METADATA])
    outputs = [port["name"] for port in about["outputs"]]

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            found = script(*(torch.from_numpy(np.asarray(value)) for value in inputs.values()))
        return dict(zip(outputs, (part.numpy() for part in found)))

    return run, about


EPISODIC = {"components": ["episodic"]}
STACKED = {
    "image": Array((12, 12, 8), "uint8", 0.0, 255.0, stack=4, axis=2),
    "speed": Array((6,), stack=2),
    "cell": Array((10,), low=0.0, high=1.0, stack=2, start=-1, binary=True),
}
CONTINUOUS = Continuous((2,), (-1.0, 0.0), (1.0, 5.0))
VALUES = (
    "dqn",
    "c51",
    "iqn",
    "qr_dqn",
    "pqn",
    "ppo",
    "a2c",
    "impala",
    "reinforce",
    "ppg",
    "trpo",
    "option_critic",
)
CASES: dict[str, Callable[[], Subject]] = {
    **{f"{name}-discrete": lambda name=name: subject(name, "vector", "none", "discrete") for name in VALUES},
    **{
        f"{name}-continuous": lambda name=name: subject(
            name, "vector", "none", "continuous", normalize_obs=True
        )
        for name in ("sac", "td3", "ddpg", "tqc", "crossq", "ppo", "trpo", "option_critic")
    },
    **{
        f"{name}-{memory}": lambda name=name, memory=memory, action=action: subject(
            name, "vector", memory, action
        )
        for name, action in (("ppo", "continuous"), ("sac", "continuous"), ("dqn", "discrete"))
        for memory in ("lstm", "gru", "rnn", "attention")
    },
    **{
        f"ppo-attention-{positions}-{gate}": lambda positions=positions, gate=gate: subject(
            "ppo", "vector", "attention", "discrete", memory_positions=positions, memory_gate=gate
        )
        for positions, gate in (("rotary", "output"), ("absolute", "residual"), ("none", "gru"))
    },
    **{
        f"{name}-{memory}": lambda name=name, memory=memory: subject(
            name, "vector", memory, "discrete", **EPISODIC
        )
        for name in ("ngu", "agent57")
        for memory in ("lstm", "gru")
    },
    **{
        f"{name}-gru": lambda name=name, action=action: subject(name, "dict", "gru", action)
        for name, action in (
            ("td3", "continuous"),
            ("ddpg", "continuous"),
            ("tqc", "continuous"),
            ("iqn", "discrete"),
        )
    },
    **{
        f"{name}-{action}": lambda name=name, action=action: subject(name, "dict", "none", action)
        for name in ("ppo", "sac")
        for action in ("multi-discrete", "multi-binary", "masked", "mixed", "masked-mixed")
    },
    "ppo-masked-tree-lstm": lambda: subject("ppo", "dict", "lstm", "masked-tree"),
    "dqn-image": lambda: subject("dqn", "image", "none", "discrete"),
    "dqn-noisy-dueling": lambda: subject("dqn", "image", "none", "masked", noisy=True, dueling=True),
    "dqn-eval-epsilon": lambda: subject("dqn", "vector", "none", "masked", eval_epsilon=0.3),
    "dqn-boltzmann": lambda: subject("dqn", "vector", "none", "discrete", exploration="boltzmann"),
    "td3-ou": lambda: subject("td3", "vector", "none", "continuous", noise="ou", epsilon=0.2),
    "sac-discrete-dqn-like": lambda: subject("sac", "vector", "none", "mixed", discrete_dqn_like=True),
    "ppo-squashed": lambda: subject("ppo", "vector", "none", "continuous", normalize_obs=True),
    "sac-stack": lambda: Subject("sac", Spec(STACKED, CONTINUOUS, 4)),
    "dqn-stack": lambda: Subject("dqn", Spec(STACKED, Discrete(4, start=-2), 4)),
    "ppo-stack-gru": lambda: Subject(
        "ppo", Spec(STACKED, CONTINUOUS, 4), {"memory": "gru", "last_action": True}
    ),
    "ppo-integers": lambda: Subject(
        "ppo", Spec(OBSERVATIONS["vector"], Continuous((2, 1), (-3.0, 0.0), (9.0, 255.0), "int32"), 4)
    ),
}
QUICK = ("ppo-stack-gru",)
MARKED = [pytest.param(name, marks=() if name in QUICK else full) for name in CASES]


@pytest.mark.parametrize("name", MARKED)
def test_onnx_acts_as_the_policy(name: str, tmp_path: Path) -> None:
    policy = trained(CASES[name]())
    policy.export(tmp_path / "policy.onnx")
    run, about = in_onnxruntime(tmp_path / "policy.onnx")
    assert compare(policy, about["inputs"], run) == 1000


SAMPLED = (
    *("ppo-discrete", "ppo-continuous", "sac-continuous", "dqn-noisy-dueling", "dqn-boltzmann", "td3-ou"),
    *("option_critic-discrete", "option_critic-continuous", "ngu-gru", "agent57-gru", "sac-mixed"),
    *("sac-discrete-dqn-like", "ppo-masked-tree-lstm"),
)
"""one of each way to draw; TorchScript, which is faster, samples all cases"""


@full
@pytest.mark.parametrize("name", SAMPLED)
def test_onnx_samples_as_the_policy_from_the_same_random_numbers(name: str, tmp_path: Path) -> None:
    policy = trained(CASES[name]())
    policy.export(tmp_path / "policy.onnx", stochastic=True)
    run, about = in_onnxruntime(tmp_path / "policy.onnx")
    assert compare(policy, about["inputs"], run, stochastic=True) == 1000


TRACED = [
    pytest.param(name, stochastic, marks=() if (name, stochastic) == ("ppo-stack-gru", True) else full)
    for name in CASES
    for stochastic in (False, True)
]


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize(("name", "stochastic"), TRACED)
def test_torchscript_acts_as_the_policy(name: str, stochastic: bool, tmp_path: Path) -> None:
    policy = trained(CASES[name]())
    policy.export(tmp_path / "policy.ts", stochastic=stochastic)
    run, about = in_torchscript(tmp_path / "policy.ts")
    assert compare(policy, about["inputs"], run, stochastic) == 1000


def exported(algorithm: str = "ppo", memory: str = "gru", **settings: Any) -> SavedPolicy:
    return trained(subject(algorithm, "vector", memory, "continuous", **settings))


def test_safetensors_builds_the_same_policy_again(tmp_path: Path) -> None:
    policy = exported("sac", normalize_obs=True)
    policy.steps, policy.origin = 1234, {"seed": 7}
    policy.export(tmp_path / "policy.safetensors")
    again = restore(tmp_path / "policy.safetensors")
    assert (again.steps, again.origin, again.settings.algorithm) == (1234, {"seed": 7}, "sac")
    rng = np.random.default_rng(0)
    for step in range(5):
        obs, reward = observed(policy, rng), np.full(BATCH, step, np.float32)
        np.testing.assert_array_equal(policy.act(obs, reward=reward), again.act(obs, reward=reward))


def test_what_no_action_depends_on_is_no_input() -> None:
    """PPO's critic has a memory of its own, and its state would be carried along for nothing."""
    traced = TracedPolicy(exported())
    assert [port.name for port in traced.inputs] == [
        "obs",
        "reward",
        "reset",
        "memory.actor.h",
        "last_action",
    ]
    assert [port.name for port in traced.outputs] == ["action", "next_memory.actor.h", "next_last_action"]
    feed_forward = TracedPolicy(trained(subject("ppo", "vector", "none", "continuous")), stochastic=True)
    assert feed_forward.inputs == [
        Port("obs", "obs", (3,), "float32"),
        Port("noise.0", "noise", (2,), "float32", 0, "normal"),
    ]


def test_the_suffix_chooses_the_format_and_others_are_refused(tmp_path: Path) -> None:
    policy = exported()
    with pytest.raises(ConfigError, match=r"no suffix of a known format; use .onnx, .ts, .safetensors, .pt"):
        policy.export(tmp_path / "policy.bin")
    with pytest.raises(ConfigError, match="there is no format 'onx'; did you mean 'onnx'"):
        policy.export(tmp_path / "policy.bin", "onx")
    with pytest.raises(
        ConfigError, match="ends like a file of safetensors, but the format is onnx; leave one out"
    ):
        policy.export(tmp_path / "policy.safetensors", "onnx")
    with pytest.raises(ConfigError, match="holds the whole policy; stochastic is chosen when it acts"):
        policy.export(tmp_path / "policy.safetensors", stochastic=True)
    with pytest.raises(WhorlError, match="cannot be written: the folder does not exist"):
        policy.export(tmp_path / "nowhere" / "policy.safetensors")


def test_a_file_that_is_no_policy_is_one_sentence(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(WhorlError, match="is not the safetensors file of a policy"):
        read_safetensors(tmp_path / "text.safetensors")
    save_file({"weight": torch.zeros(2)}, str(tmp_path / "other.safetensors"))
    with pytest.raises(WhorlError, match="not of a policy that this version of Whorl wrote"):
        restore(tmp_path / "other.safetensors")
    with pytest.raises(WhorlError, match="there is no file"):
        restore(tmp_path / "missing.safetensors")


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    def shuffled(
        q: torch.Tensor, allowed: Any, generator: torch.Generator, progress: torch.Tensor
    ) -> torch.Tensor:
        return torch.randint(q.shape[1], (q.shape[0],), generator=generator)

    policy = trained(subject("dqn", "vector", "none", "discrete"))
    agent: Any = policy.agent
    agent.explore.kind, agent.explore.select = "own", shuffled
    with pytest.raises(WhorlError, match=r"draws with torch.randint, which cannot be exported"):
        policy.export(tmp_path / "policy.ts", stochastic=True)

    def decides(q: torch.Tensor, noise: Any) -> torch.Tensor:
        return q if float(q.sum()) > 0 else -q

    agent.q_values = decides
    with pytest.raises(WhorlError, match="dqn with these networks cannot be exported as onnx: "):
        policy.export(tmp_path / "policy.onnx")


PLAYER = """
import sys
sys.path.insert(0, {examples!r})
import run_onnx
print(len(run_onnx.main({path!r}, "CartPole-v1", 2)))
print([name for name in ("torch", "whorl") if name in sys.modules])
"""


def test_the_example_needs_neither_torch_nor_whorl(tmp_path: Path) -> None:
    """It plays a policy with memory and previous rewards, too."""
    spec = Spec(Array((4,)), Discrete(2), 4)
    policy = trained(Subject("ppo", spec, {"memory": "gru", "last_action": True, "last_reward": True}))
    policy.export(tmp_path / "policy.onnx")
    examples = str(Path(__file__).parents[2] / "examples")
    code = PLAYER.format(examples=examples, path=str(tmp_path / "policy.onnx"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.split("\n")[:2] == ["2", "[]"], done.stderr


class Picky(gymnasium.Env):
    """Every kind of input and output that the example has to put together."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, action_space: gymnasium.Space, mask: bool) -> None:
        self.action_space, self.mask, self.left = action_space, mask, 3

    def _infos(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, 0, 0], np.int8)} if self.mask else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 3
        return np.zeros(2, np.float32), self._infos()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action) and not (self.mask and action)
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, False, self.left == 0, self._infos()


@pytest.mark.parametrize(
    "action, mask",
    [
        (
            gymnasium.spaces.Dict(
                {"a": gymnasium.spaces.Discrete(3), "b": gymnasium.spaces.Box(-2, 2, (1,))}
            ),
            False,
        ),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-2, 2, (1,))]), False),
        (gymnasium.spaces.Discrete(3), True),
    ],
    ids=["Dict", "Tuple", "mask in the infos"],
)
def test_the_example_plays_actions_with_parts_and_masks(
    action: gymnasium.Space, mask: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import run_onnx

    layout = make_layout(Picky.observation_space, action, "info" if mask else "none")
    policy = trained(Subject("ppo", to_spec(layout, 4), {}))
    policy.export(tmp_path / "policy.onnx")
    monkeypatch.setattr(gymnasium, "make", lambda name: Picky(action, mask))
    assert run_onnx.main(str(tmp_path / "policy.onnx"), "Picky-v0", 2) == [3.0, 3.0]
