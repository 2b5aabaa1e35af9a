"""TorchRL: collector, replay buffers and losses as in its `sota-implementations`, eagerly."""

from typing import Any

from contestants import Clock, Work, drawn, per_second

PACKAGES = ("torchrl", "tensordict")
VECTORS = ("SerialEnv", "ParallelEnv", "GymEnv(num_envs)")
WAYS = {"ppo": VECTORS, "stepping": VECTORS}
ABSENT = {"recurrent_ppo": "has parts for it, no recipe"}


def load() -> None:
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.envs import GymEnv
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    _ = Collector, LazyTensorStorage, ReplayBuffer, GymEnv, ProbabilisticActor, ClipPPOLoss, GAE


def plain_env(id: str, **more: Any) -> Any:
    from torchrl.envs import GymEnv

    return GymEnv(id, categorical_action_encoding=True, device="cpu", **more)


def one_env(id: str) -> Any:
    from torchrl.envs import DoubleToFloat, TransformedEnv

    return TransformedEnv(plain_env(id), DoubleToFloat())


def make_envs(work: Work, way: str) -> Any:
    from functools import partial

    from torchrl import envs

    if way == "GymEnv(num_envs)":  # Gymnasium's AsyncVectorEnv
        many = plain_env(work.env, num_envs=work.num_envs)
    else:
        many = getattr(envs, way)(work.num_envs, partial(plain_env, work.env))
    return envs.TransformedEnv(many, envs.DoubleToFloat())


def mlp(inputs: int, outputs: int, hidden: tuple[int, int], activation: Any) -> Any:
    from torchrl.modules import MLP

    return MLP(inputs, outputs, num_cells=list(hidden), activation_class=activation)


def ppo(work: Work) -> float:
    import torch
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    env = make_envs(work, work.way or "SerialEnv")
    size = env.observation_spec["observation"].shape[-1]
    spec = one_env(work.env).action_spec
    discrete = hasattr(spec.space, "n")
    if discrete:
        net = mlp(size, int(spec.space.n), work.hidden, torch.nn.Tanh)
        module = TensorDictModule(net, ["observation"], ["logits"])
        kind: Any = {"in_keys": ["logits"], "distribution_class": torch.distributions.Categorical}
    else:
        actions = spec.shape[-1]
        net = torch.nn.Sequential(
            mlp(size, actions, work.hidden, torch.nn.Tanh), AddStateIndependentNormalScale(actions)
        )
        module = TensorDictModule(net, ["observation"], ["loc", "scale"])
        kind = {"in_keys": ["loc", "scale"], "distribution_class": independent}
    actor = ProbabilisticActor(module, spec=spec, return_log_prob=True, **kind)
    critic = ValueOperator(mlp(size, 1, work.hidden, torch.nn.Tanh), in_keys=["observation"])
    collector = Collector(
        env, actor, frames_per_batch=work.rollout, total_frames=work.steps, device="cpu", no_cuda_sync=True
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(work.rollout),
        sampler=SamplerWithoutReplacement(),
        batch_size=work.batch_size,
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5, normalize_advantage=True
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=work.learning_rate, eps=1e-5)
    clock, steps = Clock(work), 0
    for data in collector:
        with torch.no_grad():
            data = advantage(data)
        buffer.extend(data.reshape(-1))
        for _ in range(work.n_epochs):
            for batch in buffer:
                found = loss(batch)
                (found["loss_objective"] + found["loss_entropy"] + found["loss_critic"]).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        buffer.empty()
        steps += work.rollout
        clock.tick(steps)
        if clock.over:
            break
    collector.shutdown()
    return clock.rate()


def independent(loc: Any, scale: Any) -> Any:
    import torch

    return torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1)


def soft_or_delayed(name: str, work: Work, size: int, spec: Any) -> tuple[Any, Any, Any]:
    """Actor, loss and a function that learns from a batch."""
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
    from torchrl.modules import ProbabilisticActor, TanhModule, TanhNormal, ValueOperator
    from torchrl.objectives import SACLoss, SoftUpdate, TD3Loss

    actions = spec.shape[-1]
    value = ValueOperator(
        mlp(size + actions, 1, work.hidden, torch.nn.ReLU), in_keys=["action", "observation"]
    )
    if name == "sac":
        net = torch.nn.Sequential(mlp(size, 2 * actions, work.hidden, torch.nn.ReLU), NormalParamExtractor())
        actor: Any = ProbabilisticActor(
            TensorDictModule(net, ["observation"], ["loc", "scale"]),
            spec=spec,
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
        )
        loss: Any = SACLoss(actor, value, num_qvalue_nets=2, delay_qvalue=True, action_spec=spec)
    else:
        inner = TensorDictModule(mlp(size, actions, work.hidden, torch.nn.ReLU), ["observation"], ["param"])
        actor = TensorDictSequential(inner, TanhModule(in_keys=["param"], out_keys=["action"], spec=spec))
        loss = TD3Loss(actor, value, num_qvalue_nets=2, delay_actor=True, delay_qvalue=True, action_spec=spec)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, tau=0.005)
    lr = work.learning_rate
    critic_optimizer = torch.optim.Adam(list(loss.qvalue_network_params.flatten_keys().values()), lr=lr)
    actor_optimizer = torch.optim.Adam(list(loss.actor_network_params.flatten_keys().values()), lr=lr)
    alpha_optimizer = torch.optim.Adam([loss.log_alpha], lr=lr) if name == "sac" else None
    count = [0]

    def descend(optimizer: Any, part: Any) -> None:
        part.backward()
        optimizer.step()
        optimizer.zero_grad()

    def soft(batch: Any) -> None:
        found = loss(batch)
        (found["loss_actor"] + found["loss_qvalue"] + found["loss_alpha"]).backward()
        for optimizer in (actor_optimizer, critic_optimizer, alpha_optimizer):
            assert optimizer is not None
            optimizer.step()
            optimizer.zero_grad()
        target.step()

    def delayed(batch: Any) -> None:
        count[0] += 1
        descend(critic_optimizer, loss.value_loss(batch)[0])
        if count[0] % 2 == 0:
            descend(actor_optimizer, loss.actor_loss(batch)[0])
            target.step()

    return actor, loss, soft if name == "sac" else delayed


def replay_of(work: Work, rows: int) -> Any:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    return TensorDictReplayBuffer(storage=LazyTensorStorage(rows), batch_size=work.batch_size)


def off_policy(work: Work, env: Any, policy: Any, update: Any, between: int, count: int) -> float:
    """One environment; `count` updates after every `between` steps, as its recipes collect several at a time."""
    from torchrl.collectors import Collector

    collector = Collector(
        env,
        policy,
        init_random_frames=work.learning_starts,
        frames_per_batch=between,
        total_frames=work.steps,
        device="cpu",
        no_cuda_sync=True,
    )
    buffer = replay_of(work, 20_000)
    clock, steps = Clock(work, 0.4), 0
    for data in collector:
        buffer.extend(data.reshape(-1))
        steps += between
        if steps > work.learning_starts:
            for _ in range(count):
                update(buffer.sample())
        clock.tick(steps)
        if clock.over:
            break
    collector.shutdown()
    return clock.rate()


def sac(work: Work) -> float:
    env = one_env(work.env)
    size = env.observation_spec["observation"].shape[-1]
    actor, _, update = soft_or_delayed("sac", work, size, env.action_spec)
    return off_policy(work, env, actor, update, 50, 50)


def td3(work: Work) -> float:
    from tensordict.nn import TensorDictSequential
    from torchrl.modules import AdditiveGaussianModule

    env = one_env(work.env)
    size = env.observation_spec["observation"].shape[-1]
    actor, _, update = soft_or_delayed("td3", work, size, env.action_spec)
    noise = AdditiveGaussianModule(spec=env.action_spec, sigma_init=0.1, sigma_end=0.1, annealing_num_steps=1)
    return off_policy(work, env, TensorDictSequential(actor, noise), update, 50, 50)


def dqn(work: Work) -> float:
    import torch
    from tensordict.nn import TensorDictSequential
    from torchrl.modules import EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate

    env = one_env(work.env)
    size, spec = env.observation_spec["observation"].shape[-1], env.action_spec
    net = mlp(size, int(spec.space.n), work.hidden, torch.nn.ReLU)
    actor = QValueActor(net, in_keys=["observation"], spec=spec)
    explore = EGreedyModule(eps_init=1.0, eps_end=0.05, annealing_num_steps=work.steps // 2, spec=spec)
    loss = DQNLoss(actor, loss_function="l2", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = HardUpdate(loss, value_network_update_interval=125)
    optimizer = torch.optim.Adam(loss.parameters(), lr=work.learning_rate)

    def update(batch: Any) -> None:
        loss(batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        target.step()

    return off_policy(work, env, TensorDictSequential(actor, explore), update, 40, 10)


def noise(rows: int) -> Any:
    import torch
    from tensordict import TensorDict

    no = torch.zeros(rows, 1, dtype=torch.bool)
    ends = {"done": no, "terminated": no}
    after = {"observation": torch.randn(rows, 17), "reward": torch.randn(rows, 1), **ends}
    parts = {"observation": torch.randn(rows, 17), "action": torch.rand(rows, 6) * 2 - 1, "next": after}
    return TensorDict(parts, [rows])


def updates(work: Work) -> float:
    import torch
    from torchrl.data import Bounded

    spec = Bounded(-torch.ones(6), torch.ones(6), (6,))
    _, _, update = soft_or_delayed(work.algorithm, work, 17, spec)
    buffer = replay_of(work, work.rows)
    buffer.extend(noise(work.rows))
    return per_second(lambda: update(buffer.sample()), work.seconds)


def replay(work: Work) -> float:
    buffer = replay_of(work, work.rows)
    buffer.extend(noise(work.rows))
    return per_second(buffer.sample, work.seconds)


def prioritized(work: Work) -> float:
    import torch
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    try:
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(work.rows), batch_size=work.batch_size
        )
    except RuntimeError:
        raise RuntimeError(f"its C++ extension was not built for torch {torch.__version__}") from None
    buffer.extend(noise(work.rows))
    error = torch.rand(work.batch_size)

    def call() -> None:
        batch = buffer.sample()
        batch["td_error"] = error
        buffer.update_tensordict_priority(batch)

    return per_second(call, work.seconds)


def stepping(work: Work) -> float:
    import torch

    env = make_envs(work, work.way)
    now = [env.reset()]
    actions = (torch.from_numpy(row) for row in drawn(work))

    def step() -> None:
        _, now[0] = env.step_and_maybe_reset(now[0].set("action", next(actions)))

    try:
        return per_second(step, work.seconds, work.num_envs)
    finally:
        env.close()
