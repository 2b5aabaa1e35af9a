"""Settings as keywords of `whorl.load` and `whorl.train`, for editors; written by docs/generate.py."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict


class Keywords(TypedDict, total=False):
    """Settings of the training loop and of all algorithms; an algorithm has some of them."""

    seed: int
    """seed of all random number generators"""
    hardware: Literal["auto", "cpu", "gpu"]
    """hardware that presets are chosen for; auto: a GPU if there is one and device allows it"""
    num_envs: int
    """number of parallel environments"""
    num_steps: int
    """steps per environment in each rollout; a rollout and its updates are one iteration"""
    total_timesteps: int
    """stop after this many environment steps; 0: no limit (automatic if max_iterations or total_episodes is
    set)"""
    max_iterations: int
    """stop after this many iterations; 0: no limit"""
    total_episodes: int
    """stop after this many finished episodes; 0: no limit"""
    max_seconds: float
    """save and stop this many seconds after the start of this call, for batch jobs with a time limit; 0: no
    limit"""
    dataset: str
    """dataset that fills the replay buffer before training, a Minari id or a folder; training then starts
    offline: one update for each step, without the environment"""
    offline_steps: int
    """with dataset: steps before the environment is stepped for the first time; -1: the whole run"""
    device: str
    """device that the networks are trained on: auto (a GPU if there is one), cpu, cuda or cuda:N"""
    env_device: str
    """device on which the policy acts; native environments are stepped there too"""
    workers: int
    """processes that step the environments, with actors those of each actor; 0: none; -1: one per core if the
    environments are slow enough to gain, with actors none"""
    acting: Literal["auto", "central", "workers"]
    """where actions are computed without actors: in this process (central) or in every worker; auto: in the
    workers, if there are any"""
    actors: int
    """processes that collect asynchronously, each with its share of the environments; 0: collect
    synchronously"""
    ray: str
    """with actors or learners: run them on a Ray cluster: local starts one, auto joins this machine's, or an
    address; empty: use processes on this machine"""
    actors_on_gpu: bool
    """with actors: compute their actions on the GPUs, over which they are spread evenly"""
    max_lag: int
    """with actors: maximum age of a rollout's policy in weight versions, older rollouts are dropped; 0: actors
    wait for each update; -1: automatic (unlimited for off-policy and V-trace agents, else 0)"""
    trajectories_per_batch: int
    """with actors, without replay: actor rollouts per batch, first come first served; 0: one per actor"""
    actor_gradients: Literal["none", "async", "averaged"]
    """with actors: they compute gradients of their own rollouts, which the learner applies as they arrive
    (async, A3C) or averages over all actors; none: actors send rollouts"""
    actor_restarts: int
    """with actors, shards or learners: how often one is restarted in a row; its next failure ends the run"""
    restarts_per_hour: int
    """with actors, shards or learners: how often one is restarted within an hour; its next failure ends the
    run, even if it worked in between; 0: any number"""
    env_timeout: float
    """time limit of one environment step in seconds; an actor that exceeds it is replaced, otherwise the run
    ends with a checkpoint; 0: no limit"""
    learners: int
    """data-parallel learners, which share each batch and average gradients: this process and replicas of it"""
    disable_sample: bool
    """collect with greedy actions, as in evaluation, except for random_steps"""
    hold_policy: bool
    """keep the acting weights fixed until all environments reset together (with workers: all of a worker's), so
    that recurrent states match the weights"""
    threads: int
    """torch threads of this process"""
    learner_threads: int
    """threads for actor and critic updates that run in parallel on a CPU, for minibatches of 1024 steps or
    more"""
    compile: bool
    """compile losses and native environments with torch.compile (needs a C++ compiler)"""
    tf32: bool
    """allow TF32 matrix multiplications on CUDA"""
    eval: bool
    """evaluate during training"""
    eval_freq: int
    """environment steps between evaluations"""
    n_eval_episodes: int
    """episodes per evaluation, with deterministic actions"""
    eval_max_steps: int
    """truncate evaluation episodes after this many steps, counting the return so far"""
    render: bool
    """show evaluations while they are played, in a window or on a page of this machine"""
    save_model: bool
    """write checkpoints"""
    save_code: bool
    """save the source files of networks and other parts of your own with each checkpoint"""
    checkpoint_freq: int
    """environment steps between checkpoints; the end of training is saved as well"""
    keep_checkpoints: int
    """newest checkpoints kept on disk, besides the best one; 0: all"""
    reset_every: int
    """environments whose state can't be saved are reset after this many steps, and checkpoints are written only
    then; 0: every checkpoint_freq"""
    load_model: bool
    """start a new run from load_checkpoint_dir: load weights, optimizer states, normalisers and replay buffer
    where they fit, do not repeat random_steps, and count the steps of both runs in schedules"""
    load_checkpoint_dir: str
    """checkpoint, run or `best` folder to start from: a path, or a name in the folder `runs`; naming one sets
    load_model"""
    load_strict: bool
    """with load_model: all weights and the replay buffer have to fit"""
    runs: str
    """folder in which run folders are created"""
    tag: str
    """suffix of the run folder's name"""
    name: str
    """name of the run folder, in which {time}, {env}, {algo}, {seed}, {host} and {tag} are filled in; empty:
    algorithm, environment, time and tag"""
    log_freq: int
    """environment steps between rows of metrics"""
    tensorboard: bool
    """write TensorBoard events"""
    screenshot_freq: int
    """log the final frame of every N-th episode to TensorBoard, if observations are images; 0: off"""
    use_wandb: bool
    """log to Weights & Biases"""
    wandb_project: str
    """Weights & Biases project"""
    wandb_entity: str
    """Weights & Biases entity; empty: your default"""
    wandb_mode: Literal["online", "offline", "disabled"]
    """Weights & Biases mode"""
    wandb_group: str
    """Weights & Biases group; empty: none, or one for all seeds of a command"""
    wandb_tags: Sequence[str]
    """Weights & Biases tags"""
    wandb_job_type: str
    """Weights & Biases job type"""
    mlflow_uri: str
    """with the logger mlflow: address of the tracking server, or its database; empty: MLFLOW_TRACKING_URI or
    MLflow's default"""
    mlflow_experiment: str
    """with the logger mlflow: experiment, created where it does not exist"""
    http_url: str
    """with the logger http: address to which rows of metrics are posted as JSON"""
    log_file: bool
    """write console messages to log.txt as well"""
    quiet: bool
    """no progress display"""
    memory: str
    """memory before the hidden layers of each network: lstm, gru, rnn (plain, without gates), attention (gated,
    over the episode) or a registered one"""
    memory_size: int
    """units of the memory"""
    memory_layers: int
    """layers of the memory"""
    memory_heads: int
    """attention: number of heads, which share memory_size"""
    memory_window: int
    """attention: steps that are attended to, the current one included"""
    memory_positions: Literal["distance", "rotary", "absolute", "none"]
    """attention: how it knows positions: distance (a learned bias per head and distance), rotary (queries and
    keys rotated by their position), absolute (a sinusoidal code of the step in the episode, added to the input)
    or none"""
    memory_gate: Literal["gru", "output", "residual"]
    """attention: how a layer joins its input: gru (as in GTrXL), output (the input plus the gated output) or
    residual (their sum)"""
    last_action: bool
    """the memory also reads the previous action"""
    last_reward: bool
    """the memory also reads the previous reward (with replay: clipped if clip_reward is set)"""
    actor_hidden_sizes: Sequence[int]
    """hidden layer sizes of the policy; in other algorithms: hidden layer sizes of the actor"""
    critic_hidden_sizes: Sequence[int]
    """hidden layer sizes of the critic; in other algorithms: hidden layer sizes of each critic; in other
    algorithms: hidden layer sizes of V and of each critic"""
    activation: Literal["elu", "relu", "tanh", "sigmoid", "silu", "gelu", "leaky_relu"]
    """activation after each hidden layer"""
    mean_init: float
    """initial mean of the policy, for actions scaled to [-1, 1] (continuous actions)"""
    log_std_init: float
    """initial log standard deviation of the policy (continuous actions)"""
    log_std_range: Sequence[float]
    """bounds of the log standard deviation; in other algorithms: bounds of the policy's log standard deviation;
    in other algorithms: bounds of the policy's log standard deviation, reached by a tanh"""
    encoder: Any
    """network that encodes observations: auto (CNN for images, other inputs flattened), flat, magnified (for
    small deviations), images, rays, a registered name or an import path, with options"""
    actor_network: Any
    """hidden layers of the policy: mlp, a registered name, an import path, or a list of layers; in other
    algorithms: hidden layers of the actor: mlp, residual (SimBa), a registered name, an import path, or a list
    of layers"""
    critic_network: Any
    """hidden layers of the critic, in the same form; in other algorithms: hidden layers of each critic: mlp
    (options layer_norm, dropout), residual, or as above"""
    actor_head: Any
    """last layers of the policy, for each part of the action: linear, a registered name, an import path, or a
    list of hidden layers; in other algorithms: last layers of the actor: linear, a registered name, an import
    path, or a list of hidden layers"""
    critic_head: Any
    """last layers of the critic, in the same form; in other algorithms: last layers of each critic, in the same
    form"""
    privileged_obs: Sequence[str]
    """keys of a Dict observation that exist in training only: the critic reads them, the policy never does; in
    other algorithms: keys of a Dict observation that exist in training only: critics read them, the policy
    never does"""
    optimizer: Any
    """optimizer of all networks: a class of torch.optim or an import path, with options; in other algorithms:
    optimizer of actor and critic: a class of torch.optim or an import path, with options; in other algorithms:
    optimizer: a class of torch.optim or an import path, with options"""
    adam_eps: float
    """epsilon of the optimizer"""
    actor_lr: float
    """learning rate of the actor; in other algorithms: learning rate"""
    critic_lr: float
    """learning rate of the critics; in other algorithms: learning rate of the critic"""
    lr_schedule: Any
    """learning rates over the run: constant, linear (to zero), cosine, warmup, or a registered function of
    progress; in other algorithms: learning rates over the run: constant, linear (to zero), cosine, warmup, a
    registered function of progress, or kl (the actor's rate adapts to the KL divergence of each epoch); in
    other algorithms: learning rate over the run: constant, linear (to zero), cosine, warmup, or a registered
    function of progress"""
    max_grad_norm: float
    """maximum norm of the gradients of each network; 0: no clipping; in other algorithms: maximum norm of the
    gradients; 0: no clipping"""
    normalize_obs: bool
    """normalise float observations by running statistics; one-hot and binary ones stay as they are; in other
    algorithms: normalise float observations by running statistics"""
    normalize_reward: bool
    """divide rewards by the standard deviation of the discounted return; in other algorithms: divide rewards by
    the standard deviation of the discounted return, or by its largest size / v_max, if larger"""
    clip_obs: bool
    """clip normalised observations to obs_clip_range"""
    obs_clip_range: float
    """bound of clipped observations"""
    clip_reward: bool
    """clip rewards to reward_clip_range before they are stored; reported returns are not clipped; in other
    algorithms: clip scaled rewards to reward_clip_range"""
    reward_clip_range: float
    """bound of clipped rewards"""
    shared_trunk: bool
    """actor and critic share encoder, memory and hidden layers (those of the actor), and one optimizer at
    actor_lr minimises the sum of their losses; false: a network and an optimizer each"""
    value_coef: float
    """with shared_trunk: weight of the critic's loss in the sum"""
    gamma: float
    """discount factor"""
    gae_lambda: float
    """lambda of generalised advantage estimation; in other algorithms: lambda of generalised advantage
    estimation; 1: n-step return of the rollout, 0: one-step TD error; in other algorithms: lambda of V-trace, a
    factor of its coefficients c"""
    ent_coef: float
    """entropy coefficient"""
    normalize_advantage: Any
    """normalise advantages over the rollout; in other algorithms: normalise advantages over each minibatch; in
    other algorithms: normalise advantages over the rollout, over each minibatch, or not at all"""
    critic_loss: Any
    """loss of the critic per element: squared, huber, or the import path of a function of (value, target)"""
    batch_size: int
    """transitions per update; with memory: sequences; in other algorithms: steps per minibatch; must divide
    num_envs * num_steps; in other algorithms: transitions per update; in other algorithms: steps per minibatch
    of the critic; must divide num_envs * num_steps"""
    buffer_size: int
    """transitions in the replay buffer, over all environments"""
    buffer_size_per_env: int
    """transitions in the replay buffer for each environment, which then sets buffer_size; 0: buffer_size as
    given"""
    replay_device: Literal["auto", "cpu", "cuda"]
    """device of the replay buffer; auto: the learner's; cpu: host memory, batches are copied through pinned
    memory"""
    compress: bool
    """keep images in the replay buffer compressed (zlib, lossless) in host memory: about a tenth of the bytes
    on Atari, at the cost of compressing each frame once and decompressing those of each batch"""
    shards: int
    """processes that hold the replay buffer, each for its share of the environments, and sample while the
    learner updates; 0: it is kept in the learner's process"""
    learning_starts: int
    """environment steps before the first update"""
    updates_per_step: float
    """updates per environment step (0.25: one update every four steps; 20: twenty updates per step); in other
    algorithms: updates per environment step (0.25: one update every four steps)"""
    updates_per_iteration: float
    """updates per iteration, that is per num_steps steps of all environments, whatever their number, which then
    sets updates_per_step; 0: updates_per_step as given"""
    prioritized: bool
    """sample in proportion to the last TD error instead of uniformly (Schaul et al. 2016)"""
    priority_alpha: float
    """exponent of the priorities: 0 is uniform sampling, 1 proportional"""
    priority_beta: float
    """exponent of the importance weights at the start; grows linearly to 1"""
    priority_beta_steps: int
    """environment steps until priority_beta is 1; -1: the whole run; 0: it stays constant"""
    priority_clip: Sequence[float]
    """bounds of the TD errors that become priorities (Advanced-SAC: 0.01 and 1)"""
    priority_on_add: bool
    """compute the TD errors of new transitions when they are added, instead of using the largest priority so
    far"""
    priority_eta: float
    """priority of a sequence: eta * max + (1 - eta) * mean of its TD errors (Kapturowski et al. 2019)"""
    her: Literal["none", "future", "final", "episode"]
    """hindsight experience replay in environments with goals (Andrychowicz et al. 2017): learn also as if a
    goal had been desired that was achieved later in the episode (future), at its end (final) or anywhere in it
    (episode)"""
    her_goals: int
    """with her: samples with a goal in hindsight for each sample with its own goal (4: 80 % of a batch)"""
    sequence_length: int
    """with memory: steps of a sequence that are learned from"""
    burn_in: int
    """with memory: steps before the sequence that only update the memory, without gradient"""
    sequence_stride: int
    """with memory: steps between the starts of sequences, and between stored states; divides num_steps"""
    stored_memory: bool
    """with memory: sequences start from the state stored while acting; false: from a zero state"""
    refresh_memory: bool
    """with memory: learning replaces stored states by those of the current networks (Advanced-SAC)"""
    whole_episodes: bool
    """with memory: sequences start and end with episodes, after sequence_length steps at most"""
    demonstrations: str
    """dataset, a Minari id or a folder, from which a share of every batch is drawn (RLPD, Ball et al. 2023);
    the rest comes from the replay buffer"""
    demonstration_ratio: float
    """with demonstrations: their share of each batch"""
    augment: int
    """random shift of images in learning, in pixels (DrQ: 4); 0: none"""
    reward_scale: float
    """factor of rewards in learning"""
    random_steps: int
    """environment steps at the start with uniformly random actions"""
    tau: float
    """coefficient of the soft update of the target network; 1: copy; in other algorithms: coefficient of the
    soft update of the target networks; 1: copy; in other algorithms: coefficient of the soft update of the
    target critics; 1: copy"""
    target_update_interval: int
    """updates between updates of the target networks; in other algorithms: updates between updates of the
    target network (Stable-Baselines3's DQN counts environment steps)"""
    target_memory: bool
    """with memory: target networks have a memory of their own; false: they use the online networks' memory"""
    weight_decay: float
    """weight decay of critics and actor"""
    hidden_sizes: Sequence[int]
    """hidden layer sizes after the encoder; with dueling, of each stream"""
    layer_norm: bool
    """layer normalisation of the features and of each hidden layer before its activation"""
    trunk_network: Any
    """layers between encoder and streams: mlp (none), a registered name, an import path, or a list of layers"""
    advantage_network: Any
    """layers of the Q values, with dueling of the advantages: mlp (hidden_sizes, noisy), a registered name or
    import path of hidden layers, or a list of layers, each plain or noisy (NoisyLinear,
    IndependentNoisyLinear); the last is the output, without its size"""
    value_network: Any
    """with dueling: layers of the state value, in the same form"""
    dueling: bool
    """separate streams for state value and advantages (Wang et al. 2016)"""
    learning_rate: float
    """learning rate"""
    rescale_values: bool
    """learn h(return) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000 instead of the return (Pohlen et al. 2018)"""
    exploration: Any
    """epsilon-greedy, boltzmann (softmax over Q values), none (noisy layers explore by themselves), or the
    import path of a function of (q, allowed, generator, progress)"""
    exploration_initial_eps: float
    """probability of a random action at the start"""
    exploration_final_eps: float
    """probability of a random action after exploration_fraction of the run"""
    exploration_fraction: float
    """fraction of the run over which the probability changes linearly"""
    epsilon_alpha: float
    """environment i of N explores with epsilon^(1 + alpha * i / (N - 1)) (Ape-X and R2D2: 7, NGU: 8); 0: all
    alike"""
    eval_epsilon: float
    """probability of a random action in evaluation"""
    temperature: float
    """boltzmann: temperature of the softmax at the start"""
    temperature_final: float
    """boltzmann: temperature after exploration_fraction of the run"""
    num_policies: int
    """policies, each with its weight beta of the intrinsic reward and its discount; number 0 has beta 0, unless
    it is the only one"""
    max_beta: float
    """beta of the policy that explores most"""
    max_gamma: float
    """discount of policy 0"""
    min_gamma: float
    """discount of the policy that explores most"""
    relabel: float
    """share of the sampled sequences from which policy 0 learns in place of the policy that acted; 0: as
    published"""
    bandit_window: int
    """episodes of an environment that its bandit remembers; at least num_policies"""
    bandit_beta: float
    """weight of the bonus sqrt(1 / visits)"""
    bandit_epsilon: float
    """probability of a random policy"""
    retrace_lambda: float
    """lambda of Retrace"""
    extrinsic_priority: float
    """weight of the error of the environment's values in the priorities"""
    trust_region: float
    """MEME: learn from targets of the online network, and ignore errors that lead further than this many
    deviations away from the target network; 0: targets of the target network"""
    normalize_td: bool
    """MEME: divide errors by their running deviation for each policy"""
    soft_lambda: float
    """MEME: tolerance of soft Q(lambda), as a fraction of the value; 0: Retrace with the greedy policy"""
    policy_head: bool
    """MEME: act by a policy that imitates the greedy one, and so changes less from update to update"""
    policy_max_kl: float
    """with policy_head: no update where its KL divergence from the target network's policy is above this"""
    n_step: int
    """steps of the n-step return; it never crosses the end of an episode"""
    noisy: bool
    """explore by noisy layers in the actor (Fortunato et al. 2018): factorised, without noise in evaluation; in
    other algorithms: noisy linear layers after the encoder (Fortunato et al. 2018): factorised, without noise
    in evaluation"""
    noisy_sigma: float
    """initial noise of noisy layers"""
    double: bool
    """double Q-learning: the online network selects the action that the target network evaluates (van Hasselt
    et al. 2016)"""
    munchausen: float
    """weight of the policy's log-probability in the reward (Vieillard et al. 2020: 0.9); 0: off"""
    munchausen_temperature: float
    """temperature of that policy, a softmax over Q values"""
    munchausen_low: float
    """lower bound of temperature * log-probability"""
    loss: Any
    """loss of a pair of quantiles: huber (threshold kappa), squared, both halved, or the import path of a
    function of (quantile, target), one value per element; in other algorithms: loss per element: huber (option
    delta, 1), squared, both halved, or the import path of a function of (q, target); in other algorithms: loss
    between distributions: cross_entropy, or the import path of a function of log-probabilities and target
    probabilities [..., atoms], one value per row"""
    n_fractions: int
    """quantile fractions sampled for the prediction"""
    n_target_fractions: int
    """quantile fractions sampled for the target"""
    n_policy_fractions: int
    """quantile fractions averaged to select an action"""
    n_cosines: int
    """cosine features of a quantile fraction"""
    kappa: float
    """threshold of the Huber loss"""
    n_atoms: int
    """atoms of the distribution of the return that critics predict (FastTD3: 101); 0: critics predict its mean;
    in other algorithms: atoms of the return distribution; in other algorithms: atoms of the distribution of the
    return that critics predict"""
    v_min: float
    """lowest atom; in other algorithms: with n_atoms: lowest atom"""
    v_max: float
    """highest atom; in other algorithms: with n_atoms: highest atom"""
    share_memory: bool
    """with memory: one memory for actor and critics, trained by the critics' loss; false: one per network"""
    q_regularization: float
    """weight of the mean squared Q value in the critics' loss"""
    use_n_step_is: bool
    """n-step returns: correct them by V-trace, with importance weights from stored log-probabilities, and
    include the entropy of the steps between; no effect if n_step is 1"""
    v_lambda: float
    """lambda of V-trace, a factor of its coefficients c"""
    v_rho: float
    """upper bound of the importance weights rho of the TD errors"""
    v_c: float
    """upper bound of the importance weights c of later TD errors"""
    refresh_probabilities: bool
    """with use_n_step_is: learning replaces the stored log-probabilities of a sample by the current policy's
    (Advanced-SAC), so that importance weights measure the change since the sample was last used"""
    use_replay_buffer: bool
    """false: learn from each rollout once, with one update, and correct n-step returns by V-trace; settings of
    the buffer have no effect"""
    clip_epsilon: float
    """clip the critics' values to this distance from the target critics'; the larger of the clipped and the
    unclipped error counts; 0: no clipping"""
    action_noise: float | Sequence[float]
    """standard deviation of Gaussian noise that is added to sampled continuous actions, scaled to [-1, 1]; two
    numbers are spread evenly over the environments"""
    action_noise_theta: float
    """rate at which this noise returns to zero; 1: independent in every step, 0.15: an Ornstein-Uhlenbeck
    process"""
    alpha: float
    """entropy coefficient: its initial value, or its value if it is not tuned"""
    tune_alpha: bool
    """tune the entropy coefficient towards the target entropy"""
    alpha_lr: float
    """learning rate of the entropy coefficient"""
    target_entropy: Literal["auto"] | float
    """auto: entropy_per_dimension times the number of dimensions (SAC and TQC, discrete actions: entropy_ratio
    * log(n)); with mixed actions that of the continuous part"""
    entropy_per_dimension: float
    """target entropy per dimension of the action, scaled to [-1, 1]; in other algorithms: target entropy per
    dimension of the action, scaled to [-1, 1] (-0.478: of a Gaussian with deviation 0.15)"""
    entropy_ratio: float
    """discrete actions: target entropy as a fraction of the uniform policy's entropy"""
    alpha_discrete: Literal["same"] | Any
    """mixed actions: entropy coefficient of the discrete choices, initial or fixed as alpha; same: that of
    alpha"""
    action_coupling: Literal["independent", "conditioned"]
    """mixed actions: whether the continuous part is independent of the discrete choices, pi(d) pi(c), or
    conditioned on them, pi(d) pi(c|d)"""
    joint_choices: int
    """several discrete choices: critics have one value for each combination up to this number of combinations;
    beyond it, a value is the sum of one for each choice"""
    discrete_dqn_like: bool
    """mixed actions: the discrete choices are epsilon-greedy on the critics' values and have no entropy"""
    discrete_dqn_epsilon: float
    """with discrete_dqn_like: probability of random choices"""
    ensemble_q_num: int
    """number of critics"""
    ensemble_q_sample: int
    """critics whose minimum is the target, a random subset in each update"""
    actor_q: Any
    """Q estimate that the actor maximises: minimum or mean over all critics, or minimum over a random subset;
    in other algorithms: Q estimate that the actor maximises: that of the first critic, or minimum or mean of
    both (FastTD3: min)"""
    policy_delay: int
    """critic updates per actor update; in other algorithms: critic updates per update of options and
    terminations"""
    backup_entropy: bool
    """include the entropy bonus in the critics' targets; false: the actor alone is rewarded for entropy (CQL,
    RLPD)"""
    cql_weight: float
    """weight of the conservative term in the critics' loss, for learning from a dataset (CQL: 5); 0: off"""
    cql_actions: int
    """with cql_weight, for continuous actions: random actions, and as many of the policy, that estimate the
    term"""
    cql_target_gap: float
    """with cql_weight: the weight starts there and is tuned so that the conservative term of a critic is at
    most this, as in CQL with a Lagrange multiplier (5 or 10 in the paper); 0: the weight is fixed"""
    renorm_momentum: float
    """factor of the old running statistics at each update of a network"""
    renorm_warmup: int
    """updates of a network with plain batch normalisation, before batch renormalisation"""
    noise: Literal["gaussian", "ou", "none"]
    """action noise: independent Gaussian, Ornstein-Uhlenbeck, or none"""
    noise_scale: float | Sequence[float]
    """its standard deviation, for actions scaled to [-1, 1]; two numbers are spread evenly over the
    environments"""
    noise_redraw: bool
    """with two numbers: draw the standard deviation of each environment between them at the start of each
    episode, uniformly, instead of spreading them evenly (FastTD3)"""
    noise_theta: float
    """rate at which Ornstein-Uhlenbeck noise returns to zero"""
    noise_final: float
    """factor of the noise at the end of the run, reached linearly"""
    epsilon: float
    """probability of a uniformly random action instead of the noisy one"""
    action_joins: Literal["first", "second"]
    """layer of the critic that reads the action: first (Fujimoto et al. 2018) or second (Lillicrap et al.
    2015)"""
    critic_weight_decay: float
    """weight decay of the critic, added to weight_decay (Lillicrap et al. 2015: 0.01)"""
    target_noise: float
    """standard deviation of the noise on target actions"""
    target_noise_clip: float
    """bound of the noise on target actions"""
    target_actor: bool
    """target actions come from a target network of the actor; false: from the actor itself (FastTD3)"""
    bc_alpha: float
    """TD3+BC's alpha (2.5): the actor maximises alpha Q / mean |Q| minus the squared distance to the data's
    actions; 0: Q alone"""
    actor_width: int
    """features of the actor"""
    critic_width: int
    """features of each critic"""
    blocks: int
    """inverted residual blocks of actor and critics, each four times as wide inside"""
    noise_steps: int
    """maximum number of steps for which the policy's noise is kept while acting; 1: new noise in each step"""
    rho_clip: float
    """upper bound of the importance weights rho of the TD errors"""
    c_clip: float
    """upper bound of the importance weights c, which carry TD errors back in time"""
    expectile: float
    """expectile of Q over the actions of the data that V estimates (the paper's tau): 0.5: mean, near 1:
    maximum"""
    advantage_beta: float
    """inverse temperature of the advantages by which actions are imitated (the paper's beta); 0: behaviour
    cloning"""
    advantage_clip: float
    """upper bound of the weights of actions"""
    num_options: int
    """number of options"""
    option_epsilon: float
    """probability of a random option where one is chosen"""
    deliberation_cost: float
    """advantage that another option must have before the current one is ended (Harb et al. 2018)"""
    option_dilation: int
    """with memory: dilation k of the recurrent option-value network, which has k hidden states, each updated at
    every k-th step (dilated LSTM, FeUdal networks); 1: none"""
    termination_lr: float
    """learning rate of the terminations"""
    chunk_length: int
    """PPO and PPG with memory: rollouts are split into chunks of this many steps for learning"""
    n_epochs: int
    """passes over each rollout"""
    clip_range: float
    """clipping of the probability ratio"""
    clip_value: bool
    """clip the critic's prediction around its value before the update (policy phase); in other algorithms: clip
    the critic's prediction around its value before the update"""
    clip_range_vf: float
    """clipping of the critic's prediction, with clip_value"""
    aux_every: int
    """policy phases before each auxiliary phase; 0: no auxiliary phase"""
    aux_epochs: int
    """passes of the auxiliary phase over all rollouts since the last one"""
    aux_batch_factor: float
    """minibatch size of the auxiliary phase in units of batch_size, rounded to a divisor of the rows"""
    aux_lr: float
    """learning rate of the actor in the auxiliary phase"""
    bc_coef: float
    """weight of the KL divergence from the old policy in the auxiliary phase"""
    value_target: Literal["gae", "return"]
    """target of the critic: advantage + value, or the bootstrapped return of the rollout (as in CO-GYM)"""
    target_kl: float
    """with lr_schedule kl: the actor's rate is divided by 1.2 above twice this KL divergence, and multiplied by
    1.2 below half of it"""
    final_kl: float
    """with lr_schedule kl: factor of target_kl at the end of the run, reached linearly"""
    kl_cut: float
    """stop the actor's updates (with shared_trunk all updates) for the rest of the rollout once the KL
    divergence exceeds this; 0: never"""
    overlap_rollouts: bool
    """where workers act: collect the next rollout while learning from this one, with the policy before this
    update"""
    q_lambda: float
    """lambda of the Q(lambda) return"""
    n_quantiles: int
    """quantiles per action; in other algorithms: quantiles per critic"""
    baseline: bool
    """subtract a learned state value from the return"""
    baseline_steps: int
    """gradient steps of the baseline per rollout"""
    lookahead: int
    """learn only from steps that are followed by at least this many in the rollout"""
    normalize_returns: bool
    """normalise returns, with a baseline advantages, over the rollout"""
    n_critics: int
    """number of critics"""
    top_quantiles_to_drop: int
    """largest quantiles dropped from the target, per critic"""
    max_kl: float
    """bound of the mean KL divergence between the policies before and after an update"""
    cg_iterations: int
    """iterations of conjugate gradients"""
    cg_damping: float
    """multiple of the identity that is added to the Fisher matrix"""
    backtracks: int
    """step lengths that the line search tries"""
    backtrack_coef: float
    """factor between one length and the next"""
    critic_epochs: int
    """passes of the critic over each rollout"""
