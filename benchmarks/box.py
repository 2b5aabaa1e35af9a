"""Put the policy of a run into the box of agents that come with Whorl (whorl/box/agents): weights and a card.

    python benchmarks/box.py RUN NAME [--best] [--stochastic] [--about TEXT] [--episodes 100]
    python benchmarks/box.py --commands      the commands that train those that belong into it
    python benchmarks/box.py --check         play all again and compare with their cards

The training commands print their run folder; add it with the name that the command has here.
"""

import argparse
import sys

from whorl import api
from whorl.box.add import add
from whorl.box.cards import FOLDER, agents, load

MOST_BYTES = 20 * 2**20
"""of all agents together"""
COMMANDS = {
    "cartpole": "whorl train ppo CartPole-v1 --seed 1",
    "quadrotor": "whorl train ppo Quadrotor-v0 --seed 1",
    "quadinvpendulum": "whorl train bc QuadInvPendulum-v0 --dataset swing_ups --seed 1",  # swing_up.py record
    "lunarlander": "whorl train ppo LunarLander-v3 --seed 1",
    "halfcheetah": "whorl train sac HalfCheetah-v5 --seed 1",
    "hopper": "whorl train sac Hopper-v5 --seed 1",
    "ant": "whorl train sac Ant-v5 --seed 1",
    "humanoid": "whorl train ppo Humanoid-v5 --seed 1",
    "pong": "whorl train ppo PongNoFrameskip-v4 --seed 1",
    "breakout": "whorl train dqn MinAtar/Breakout-v1 --seed 1",
    "tmaze": "whorl train ppo TMaze-v0 --seed 1",
    "discomaze": "whorl train ppo DiscoMaze-v0 --components episodic --env_options.size 7 --env_options.max_steps 60 "
    "--seed 1 --total-timesteps 400000",
}
"""what trains each agent, with the tuned preset of its environment"""


def show_commands() -> None:
    known = agents()
    for name, command in COMMANDS.items():
        mark = "in the box" if name in known else "missing"
        print(f"# {name} ({mark})\n{command} --name box_{name}")
        print(f"python benchmarks/box.py runs/box_{name} {name} --best\n")


def check() -> int:
    """Play each agent as its card says; 1 if a mean return differs by more than rounding."""
    wrong = 0
    for name, card in agents().items():
        policy, _ = load(name)
        found = api.evaluate(policy, card.episodes, seed=card.eval_seed, deterministic=not card.stochastic)
        same = abs(found.mean_return - card.mean_return) <= 1e-2 * max(1.0, abs(card.mean_return))
        wrong += not same
        print(
            f"{name:<16} card {card.mean_return:10.2f}  now {found.mean_return:10.2f}  {'' if same else 'DIFFERS'}"
        )
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--stochastic", action="store_true")
    parser.add_argument("--about", default="")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.commands:
        show_commands()
        return 0
    if given.check:
        return check()
    if not given.run or not given.name:
        parser.error("name a run folder and the agent's name, or --commands or --check")
    card = add(
        *(given.run, given.name),
        about=given.about,
        best=given.best,
        episodes=given.episodes,
        stochastic=given.stochastic,
    )
    size = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{card.name}: {card.mean_return} ± {card.std} over {card.episodes} episodes; {card.command}")
    print(f"the box has {size / 2**20:.2f} of {MOST_BYTES / 2**20:.0f} MiB")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
