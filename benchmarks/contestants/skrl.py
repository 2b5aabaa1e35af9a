"""skrl: its agents and memories in the loop of its trainer, without a progress bar, logs or checkpoints."""

from itertools import pairwise
from typing import Any

from contestants import Clock, Work, make_env, per_second

PACKAGES = ("skrl",)
WAYS = {"ppo": ("SyncVectorEnv", "AsyncVectorEnv"), "recurrent_ppo": ("SyncVectorEnv",)}
ABSENT = {
    "stepping": "steps Gymnasium's vector environments, which are those of CleanRL-style",
    "prioritized": "has no prioritized replay",
}


def load() -> None:
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory

    _ = PPO, wrap_env, RandomMemory


def make_envs(work: Work, way: str, count: int) -> Any:
    import gymnasium
    from skrl.envs.wrappers.torch import wrap_env

    chosen = getattr(gymnasium.vector, way)
    return wrap_env(chosen([lambda: make_env(work.env) for _ in range(count)]), verbose=False)


def loop(work: Work, agent: Any, env: Any, skip: float, every: int) -> float:
    """As its trainer does it; the clock ticks after every `every` vector steps."""
    import torch

    rows = work.steps // env.num_envs
    agent.init()
    agent.enable_training_mode(True)
    clock = Clock(work, skip)
    observations, _ = env.reset()
    states = env.state()
    for row in range(rows):
        agent.pre_interaction(timestep=row, timesteps=rows)
        with torch.no_grad():
            actions, _ = agent.act(observations, states, timestep=row, timesteps=rows)
            after, rewards, terminated, truncated, infos = env.step(actions)
            agent.record_transition(
                observations=observations,
                states=states,
                actions=actions,
                rewards=rewards,
                next_observations=after,
                next_states=env.state(),
                terminated=terminated,
                truncated=truncated,
                infos=infos,
                timestep=row,
                timesteps=rows,
            )
        agent.post_interaction(timestep=row, timesteps=rows)
        observations = after
        if (row + 1) % every == 0:
            clock.tick((row + 1) * env.num_envs)
            if clock.over:
                break
    env.close()
    return clock.rate()


def silent(cfg: Any) -> Any:
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    return cfg


def mlp(sizes: tuple[int, ...], activation: Any) -> Any:
    from torch import nn

    layers: list[Any] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers, nn.Linear(*sizes[-2:]))


def ppo(work: Work, recurrent: bool = False) -> float:
    import torch
    from skrl.agents.torch.ppo import PPO, PPO_CFG, PPO_RNN
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model

    env = make_envs(work, work.way or "SyncVectorEnv", work.num_envs)
    given = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    discrete = hasattr(env.action_space, "n")
    outputs = int(env.action_space.n) if discrete else env.action_space.shape[0]
    size, length = env.observation_space.shape[0], 32

    class Net(Model):
        """Its hidden layers, after an LSTM of 64 where it is recurrent."""

        def build(self, last: int) -> None:
            if recurrent:
                self.lstm = torch.nn.LSTM(size, 64, batch_first=True)
            self.net = mlp((64 if recurrent else size, *work.hidden, last), torch.nn.Tanh)

        def get_specification(self) -> dict[str, Any]:
            sizes = [(1, work.num_envs, 64)] * 2
            return {"rnn": {"sequence_length": length, "sizes": sizes}} if recurrent else {}

        def out(self, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            rows = inputs["observations"]
            if not recurrent:
                return self.net(rows), {}
            hidden, cell = inputs["rnn"]
            if not self.training:
                found, state = self.lstm(rows.view(-1, 1, size), (hidden.contiguous(), cell.contiguous()))
                return self.net(found.flatten(0, 1)), {"rnn": list(state)}
            rows = rows.view(-1, length, size)
            first = [state.view(1, -1, length, 64)[:, :, 0].contiguous() for state in (hidden, cell)]
            ended = (inputs["terminated"] | inputs["truncated"]).view(-1, length)
            cuts = [0, *(ended[:, :-1].any(0).nonzero().flatten() + 1).tolist(), length]
            parts, state = [], tuple(first)
            for a, b in pairwise(cuts):
                found, state = self.lstm(rows[:, a:b], state)
                going = (~ended[:, b - 1]).float()[None, :, None]
                state = tuple(part * going for part in state)
                parts.append(found)
            return self.net(torch.cat(parts, 1).flatten(0, 1)), {"rnn": list(state)}

    class Discrete(CategoricalMixin, Net):
        def __init__(self) -> None:
            Net.__init__(self, **given)
            CategoricalMixin.__init__(self)
            self.build(outputs)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            return self.out(inputs)

    class Continuous(GaussianMixin, Net):
        def __init__(self) -> None:
            Net.__init__(self, **given)
            GaussianMixin.__init__(self)
            self.build(outputs)
            self.log_std = torch.nn.Parameter(torch.zeros(outputs))

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            mean, more = self.out(inputs)
            return mean, {"log_std": self.log_std, **more}

    class Value(DeterministicMixin, Net):
        def __init__(self) -> None:
            Net.__init__(self, **given)
            DeterministicMixin.__init__(self)
            self.build(1)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            return self.out(inputs)

    cfg = PPO_CFG(
        rollouts=work.num_steps,
        learning_epochs=work.n_epochs,
        mini_batches=work.rollout // work.batch_size,
        learning_rate=work.learning_rate,
        grad_norm_clip=0.5,
        ratio_clip=0.2,
        value_clip=0.2,
        value_loss_scale=0.5,
    )
    agent = (PPO_RNN if recurrent else PPO)(
        models={"policy": Discrete() if discrete else Continuous(), "value": Value()},
        memory=RandomMemory(memory_size=work.num_steps, num_envs=work.num_envs, device="cpu"),
        cfg=silent(cfg),
        **given,
    )
    return loop(work, agent, env, 0.25, work.num_steps)


def recurrent_ppo(work: Work) -> float:
    return ppo(work, True)


def soft_or_delayed(name: str, work: Work, given: dict[str, Any], rows: int, starts: int) -> Any:
    """SAC or TD3 with two critics."""
    import torch
    from skrl.agents.torch.sac import SAC, SAC_CFG
    from skrl.agents.torch.td3 import TD3, TD3_CFG
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.resources.noises.torch import GaussianNoise

    size, actions = given["observation_space"].shape[0], given["action_space"].shape[0]

    class Soft(GaussianMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **given)
            GaussianMixin.__init__(self, clip_actions=True)
            self.net = mlp((size, *work.hidden, 2 * actions), torch.nn.ReLU)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            mean, log_std = self.net(inputs["observations"]).chunk(2, -1)
            return mean.tanh(), {"log_std": log_std}

    class Plain(DeterministicMixin, Model):
        def __init__(self, critic: bool) -> None:
            Model.__init__(self, **given)
            DeterministicMixin.__init__(self, clip_actions=not critic)
            self.critic = critic
            inputs = size + actions if critic else size
            self.net = mlp((inputs, *work.hidden, 1 if critic else actions), torch.nn.ReLU)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            if self.critic:
                return self.net(torch.cat((inputs["observations"], inputs["taken_actions"]), -1)), {}
            return self.net(inputs["observations"]).tanh(), {}

    names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    models: dict[str, Any] = {each: Plain(True) for each in names}
    memory = RandomMemory(memory_size=rows, num_envs=1, device="cpu")
    common = {"batch_size": work.batch_size, "learning_rate": work.learning_rate, "learning_starts": starts}
    if name == "sac":
        cfg: Any = SAC_CFG(random_timesteps=starts, **common)
        return SAC(models={"policy": Soft(), **models}, memory=memory, cfg=silent(cfg), **given)
    models |= {"policy": Plain(False), "target_policy": Plain(False)}
    noise = {"exploration_noise": GaussianNoise, "exploration_noise_kwargs": {"mean": 0, "std": 0.1}}
    smooth = {"smooth_regularization_noise": GaussianNoise}
    spread = {"smooth_regularization_noise_kwargs": {"mean": 0, "std": 0.2}}
    cfg = TD3_CFG(random_timesteps=starts, **common, **noise, **smooth, **spread)
    cfg.smooth_regularization_clip = 0.5
    return TD3(models=models, memory=memory, cfg=silent(cfg), **given)


def off_policy(work: Work, name: str) -> float:
    env = make_envs(work, "SyncVectorEnv", 1)
    given = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    agent = soft_or_delayed(name, work, given, 20_000, work.learning_starts)
    return loop(work, agent, env, 0.4, 1)


def sac(work: Work) -> float:
    return off_policy(work, "sac")


def td3(work: Work) -> float:
    return off_policy(work, "td3")


def dqn(work: Work) -> float:
    import torch
    from skrl.agents.torch.dqn import DQN, DQN_CFG
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, Model

    env = make_envs(work, "SyncVectorEnv", 1)
    given = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}

    class Value(DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **given)
            DeterministicMixin.__init__(self)
            sizes = env.observation_space.shape[0], *work.hidden, int(env.action_space.n)
            self.net = mlp(sizes, torch.nn.ReLU)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            return self.net(inputs["observations"]), {}

    cfg = DQN_CFG(
        batch_size=work.batch_size,
        learning_starts=work.learning_starts,
        update_interval=4,
        target_update_interval=500,
        polyak=1.0,
        exploration_scheduler=lambda step, steps: max(0.05, 1 - 2 * step / steps),
    )
    agent = DQN(
        models={"q_network": Value(), "target_q_network": Value()},
        memory=RandomMemory(memory_size=20_000, num_envs=1, device="cpu"),
        cfg=silent(cfg),
        **given,
    )
    return loop(work, agent, env, 0.4, 1)


def noise(rows: int) -> dict[str, Any]:
    import torch

    no = torch.zeros(rows, 1, dtype=torch.bool)
    return {
        "observations": torch.randn(rows, 17),
        "next_observations": torch.randn(rows, 17),
        "actions": torch.rand(rows, 6) * 2 - 1,
        "rewards": torch.randn(rows, 1),
        "terminated": no,
        "truncated": no,
    }


def updates(work: Work) -> float:
    import gymnasium

    box = gymnasium.spaces.Box
    given = {"observation_space": box(-10, 10, (17,)), "action_space": box(-1, 1, (6,)), "device": "cpu"}
    agent = soft_or_delayed(work.algorithm, work, given, work.rows, 0)
    agent.init()
    agent.enable_models_training_mode(True)
    agent.memory.add_samples(**noise(work.rows))
    return per_second(lambda: agent.update(timestep=0, timesteps=1), work.seconds)


def replay(work: Work) -> float:
    from skrl.memories.torch import RandomMemory

    memory, rows = RandomMemory(memory_size=work.rows, num_envs=1, device="cpu"), noise(work.rows)
    for name, part in rows.items():
        memory.create_tensor(name=name, size=part.shape[1], dtype=part.dtype)
    memory.add_samples(**rows)
    return per_second(lambda: memory.sample(names=list(rows), batch_size=work.batch_size), work.seconds)
