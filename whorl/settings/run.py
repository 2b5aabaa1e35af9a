"""Settings of the training loop, the same for every algorithm."""

from dataclasses import dataclass
from typing import Annotated, Literal

from whorl.settings.schema import LARGE, Count, Device, NonNegative, PositiveCount, Range, Renamed, Template

Threads = Annotated[int, Range(1, 1000)]


@dataclass(frozen=True)
class RunConfig:
    """Settings of the training loop, the same for every algorithm."""

    seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    """seed of all random number generators"""
    hardware: Literal["auto", "cpu", "gpu"] = "auto"
    """hardware that presets are chosen for; auto: a GPU if there is one and device allows it"""
    num_envs: Annotated[int, Range(1, 10**6)] = 8
    """number of parallel environments"""
    num_steps: Annotated[int, Range(1, 10**7)] = 256
    """steps per environment in each rollout; a rollout and its updates are one iteration"""
    total_timesteps: Count = 1_000_000
    """stop after this many environment steps; 0: no limit (automatic if max_iterations or total_episodes is set)"""
    max_iterations: Count = 0
    """stop after this many iterations; 0: no limit"""
    total_episodes: Count = 0
    """stop after this many finished episodes; 0: no limit"""
    max_seconds: NonNegative = 0.0
    """save and stop this many seconds after the start of this call, for batch jobs with a time limit; 0: no limit"""
    dataset: str = ""
    """dataset that fills the replay buffer before training, a Minari id or a folder; training then starts offline: one
    update for each step, without the environment"""
    offline_steps: Annotated[int, Range(-1, LARGE)] = -1
    """with dataset: steps before the environment is stepped for the first time; -1: the whole run"""
    device: Device = "auto"
    """device that the networks are trained on: auto (a GPU if there is one), cpu, cuda or cuda:N"""
    env_device: Device = "cpu"
    """device on which the policy acts; native environments are stepped there too"""
    workers: Annotated[int, Range(-1, 1000)] = -1
    """processes that step the environments, with actors those of each actor; 0: none; -1: one per core if the
    environments are slow enough to gain, with actors none"""
    acting: Literal["auto", "central", "workers"] = "auto"
    """where actions are computed without actors: in this process (central) or in every worker; auto: in the workers,
    if there are any"""
    actors: Annotated[int, Range(0, 10_000)] = 0
    """processes that collect asynchronously, each with its share of the environments; 0: collect synchronously"""
    ray: str = ""
    """with actors or learners: run them on a Ray cluster: local starts one, auto joins this machine's, or an address;
    empty: use processes on this machine"""
    actors_on_gpu: bool = False
    """with actors: compute their actions on the GPUs, over which they are spread evenly"""
    max_lag: Annotated[int, Range(-1, 10**6)] = -1
    """with actors: maximum age of a rollout's policy in weight versions, older rollouts are dropped; 0: actors wait for
    each update; -1: automatic (unlimited for off-policy and V-trace agents, else 0)"""
    trajectories_per_batch: Annotated[int, Range(0, 10_000)] = 0
    """with actors, without replay: actor rollouts per batch, first come first served; 0: one per actor"""
    actor_gradients: Annotated[Literal["none", "async", "averaged"], Renamed({"apart": "async"})] = "none"
    """with actors: they compute gradients of their own rollouts, which the learner applies as they arrive (async, A3C)
    or averages over all actors; none: actors send rollouts"""
    actor_restarts: Annotated[int, Range(0, 10**6)] = 3
    """with actors, shards or learners: how often one is restarted in a row; its next failure ends the run"""
    restarts_per_hour: Annotated[int, Range(0, 10**6)] = 30
    """with actors, shards or learners: how often one is restarted within an hour; its next failure ends the run, even
    if it worked in between; 0: any number"""
    env_timeout: Annotated[float, Range(0, 10**6)] = 600.0
    """time limit of one environment step in seconds; an actor that exceeds it is replaced, otherwise the run ends
    with a checkpoint; 0: no limit"""
    learners: Annotated[int, Range(1, 1000)] = 1
    """data-parallel learners, which share each batch and average gradients: this process and replicas of it"""
    disable_sample: bool = False
    """collect with greedy actions, as in evaluation, except for random_steps"""
    hold_policy: bool = False
    """keep the acting weights fixed until all environments reset together (with workers: all of a worker's), so that
    recurrent states match the weights"""
    threads: Threads = 1
    """torch threads of this process"""
    learner_threads: Threads = 2
    """threads for actor and critic updates that run in parallel on a CPU, for minibatches of 1024 steps or more"""
    compile: bool = False
    """compile losses and native environments with torch.compile (needs a C++ compiler)"""
    tf32: bool = True
    """allow TF32 matrix multiplications on CUDA"""
    eval: bool = True
    """evaluate during training"""
    eval_freq: PositiveCount = 50_000
    """environment steps between evaluations"""
    n_eval_episodes: Annotated[int, Range(1, 10**6)] = 5
    """episodes per evaluation, with deterministic actions"""
    eval_max_steps: Annotated[int, Range(1, 10**12)] = 30_000
    """truncate evaluation episodes after this many steps, counting the return so far"""
    render: bool = False
    """show evaluations while they are played, in a window or on a page of this machine"""
    save_model: bool = True
    """write checkpoints"""
    save_code: bool = True
    """save the source files of networks and other parts of your own with each checkpoint"""
    checkpoint_freq: PositiveCount = 100_000
    """environment steps between checkpoints; the end of training is saved as well"""
    keep_checkpoints: Count = 5
    """newest checkpoints kept on disk, besides the best one; 0: all"""
    reset_every: Count = 0
    """environments whose state can't be saved are reset after this many steps, and checkpoints are written only
    then; 0: every checkpoint_freq"""
    load_model: bool = False
    """start a new run from load_checkpoint_dir: load weights, optimizer states, normalisers and replay buffer where
    they fit, do not repeat random_steps, and count the steps of both runs in schedules"""
    load_checkpoint_dir: str = ""
    """checkpoint, run or `best` folder to start from: a path, or a name in the folder `runs`; naming one sets
    load_model"""
    load_strict: bool = False
    """with load_model: all weights and the replay buffer have to fit"""
    runs: str = "runs"
    """folder in which run folders are created"""
    tag: str = ""
    """suffix of the run folder's name"""
    name: Annotated[str, Template("time", "env", "algo", "seed", "host", "tag")] = ""
    """name of the run folder, in which {time}, {env}, {algo}, {seed}, {host} and {tag} are filled in; empty: algorithm,
    environment, time and tag"""
    log_freq: PositiveCount = 1_000
    """environment steps between rows of metrics"""
    tensorboard: bool = True
    """write TensorBoard events"""
    screenshot_freq: Count = 0
    """log the final frame of every N-th episode to TensorBoard, if observations are images; 0: off"""
    use_wandb: bool = False
    """log to Weights & Biases"""
    wandb_project: str = "whorl"
    """Weights & Biases project"""
    wandb_entity: str = ""
    """Weights & Biases entity; empty: your default"""
    wandb_mode: Literal["online", "offline", "disabled"] = "online"
    """Weights & Biases mode"""
    wandb_group: str = ""
    """Weights & Biases group; empty: none, or one for all seeds of a command"""
    wandb_tags: tuple[str, ...] = ()
    """Weights & Biases tags"""
    wandb_job_type: str = "train"
    """Weights & Biases job type"""
    loggers: tuple[str, ...] = ()
    """loggers to write metrics to as well: mlflow, http or registered ones"""
    mlflow_uri: str = ""
    """with the logger mlflow: address of the tracking server, or its database; empty: MLFLOW_TRACKING_URI or MLflow's
    default"""
    mlflow_experiment: str = "whorl"
    """with the logger mlflow: experiment, created where it does not exist"""
    http_url: str = ""
    """with the logger http: address to which rows of metrics are posted as JSON"""
    log_file: bool = False
    """write console messages to log.txt as well"""
    quiet: bool = False
    """no progress display"""


MAY_CHANGE = (
    *(
        "max_iterations",
        "total_timesteps",
        "total_episodes",
        "max_seconds",
        "offline_steps",
        "device",
        "env_device",
    ),
    *("threads", "learner_threads", "eval", "eval_freq", "n_eval_episodes", "eval_max_steps", "render"),
    *("save_model", "save_code"),
    *("checkpoint_freq", "keep_checkpoints", "log_freq", "tensorboard", "log_file", "quiet"),
    *("screenshot_freq", "ray", "actors_on_gpu", "actor_restarts", "learners", "loggers"),
    *("restarts_per_hour", "env_timeout", "demonstrations"),
    *(
        "use_wandb",
        "wandb_project",
        "wandb_entity",
        "wandb_mode",
        "wandb_group",
        "wandb_tags",
        "wandb_job_type",
    ),
    *("mlflow_uri", "mlflow_experiment", "http_url"),
)
"""Settings that a resumed run may change: duration, devices and reporting, but nothing its saved state depends on."""
