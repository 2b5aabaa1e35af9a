"""Settings of the training loop, the same for every algorithm."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RunConfig:
    """Settings of the loop, the same for every algorithm."""

    seed: int = 1
    """seed of all random streams"""
    num_envs: int = 32
    """copies of the environment that are stepped together"""
    num_steps: int = 512
    """steps per environment and rollout; one rollout and its updates are one iteration"""
    max_iterations: int = 60_000
    """stop after so many iterations"""
    total_timesteps: int = 0
    """stop after so many environment steps; 0: no such limit"""
    total_episodes: int = 0
    """stop after so many finished episodes; 0: no such limit"""
    device: str = "auto"
    """where updates run: auto, cpu, cuda or cuda:N; auto takes a GPU where there is one"""
    env_device: str = "cpu"
    """where the policy acts; worlds of our own are stepped there too"""
    workers: int = -1
    """processes that step the environments; 0: none, step them here; -1: one per core for environments worth it"""
    acting: Literal["auto", "central", "workers"] = "auto"
    """who evaluates the policy: this process, or every worker on its own environments; auto: the workers, if there are any"""
    actors: int = 0
    """processes that collect by themselves, each with its share of the environments; 0: the loop waits for all environments"""
    ray: str = ""
    """with actors or learners: run them on a Ray cluster: local starts one, auto is the one this machine belongs to,
    or an address; empty: as processes of this machine"""
    actors_on_gpu: bool = False
    """with actors: they act on GPUs, spread evenly over those there are"""
    max_lag: int = -1
    """with actors: how many versions old the weights of a rollout may be, older ones are dropped; 0: actors wait for
    each update; -1: as the algorithm bears it, any age or 0"""
    trajectories_per_batch: int = 0
    """with actors, without replay: rollouts of single actors that make up a batch, by whoever is first; 0: one for each
    actor"""
    actor_gradients: Literal["none", "apart", "averaged"] = "none"
    """with actors: each learns from its own rollout, and gradients travel in place of rows, to be applied as they come
    or averaged over all actors"""
    actor_restarts: int = 3
    """with actors or learners: failures in a row after which one is given up, and the run ends"""
    learners: int = 1
    """how many share each batch and average their gradients: this process, and replicas in others"""
    hold_policy: bool = False
    """act with the same weights until all environments begin an episode (with workers: all of a worker's), so that a memory
    fits the weights that made it (offpcc); for a environment each, or episodes of one length"""
    threads: int = 1
    """threads of torch's own operations in this process"""
    learner_threads: int = 2
    """threads for learners that run at the same time on a CPU (actor and critic), from 1024 rows a minibatch on"""
    compile: bool = False
    """compile losses and the hot tensor code of native worlds (takes a C++ compiler and some seconds at the start)"""
    tf32: bool = True
    """on a GPU: matrix products on tensor cores, which read their factors with ten bits after the point"""
    eval: bool = True
    """evaluate during training"""
    eval_freq: int = 50
    """iterations between evaluations"""
    n_eval_episodes: int = 3
    """episodes per evaluation, with the mean action"""
    save_model: bool = True
    """write checkpoints"""
    checkpoint_freq: int = 500
    """iterations between checkpoints; one is written at the end too"""
    keep_checkpoints: int = 5
    """how many of the newest checkpoints stay on disk (the best one always does); 0: all"""
    reset_every: int = 100_000
    """environments that can't be snapshotted start anew every so many steps, and are checkpointed only there"""
    load_model: bool = False
    """start from the weights, optimizers and normalisers of `load_checkpoint_dir`"""
    load_checkpoint_dir: str = ""
    """a checkpoint or run folder to start from"""
    runs: str = "runs"
    """folder in which run folders are made"""
    tag: str = ""
    """a word that is appended to the run folder's name"""
    log_freq: int = 1
    """iterations between rows of metrics"""
    tensorboard: bool = True
    """write TensorBoard events"""
    screenshot_freq: int = 0
    """episodes between pictures in TensorBoard of what one ended with, where observations are pictures; 0: none"""
    use_wandb: bool = False
    """log to Weights & Biases"""
    wandb_project: str = "whorl"
    """its project"""
    wandb_entity: str = ""
    """its entity; empty: your default one"""
    wandb_mode: Literal["online", "offline", "disabled"] = "online"
    """its mode"""
    log_file: bool = False
    """also write what the console says to log.txt"""
    quiet: bool = False
    """no progress display"""


MAY_CHANGE = (
    *("max_iterations", "total_timesteps", "total_episodes", "device", "env_device"),
    *("threads", "learner_threads", "eval", "eval_freq", "n_eval_episodes", "save_model"),
    *("checkpoint_freq", "keep_checkpoints", "log_freq", "tensorboard", "log_file", "quiet"),
    *("screenshot_freq", "ray", "actors_on_gpu", "actor_restarts", "learners"),
    *("use_wandb", "wandb_project", "wandb_entity", "wandb_mode"),
)
"""What a resumed run may change: how long, where and what is told, but nothing that its saved state depends on."""
