"""From settings to those who collect: what actors are told, where they run, and how much lag is borne."""

from whorl.agents.agent import Agent
from whorl.distributed.actor import Kind, Role
from whorl.distributed.fleet import Fleet, ProcessFleet
from whorl.distributed.fleet_collector import FleetCollector, GradientCollector
from whorl.envs.make import Source
from whorl.settings.families import ReplayConfig
from whorl.settings.run import RunConfig
from whorl.state.streams import Streams


def make_fleet(source: Source, agent: Agent, run: RunConfig, streams: Streams) -> FleetCollector:
    """The collector over `run.actors` actors; `agent` is the copy whose weights they are sent."""
    gradients = run.actor_gradients != "none"
    num_envs = run.num_envs // run.actors
    role = Role(agent, source, num_envs, run.num_steps, _carried(agent, run), run.actors_on_gpu)
    lag = None if run.max_lag < 0 and agent.tolerates_stale_data else max(run.max_lag, 0)
    # Who waits for the learner need not have a second rollout under way.
    fleet = _fleet(role, run, 1 if gradients or lag == 0 else 2, streams)
    if gradients:
        return GradientCollector(fleet, role, agent, run.actors, run.actor_gradients == "averaged")
    return FleetCollector(fleet, role, agent, run.actors, lag, run.trajectories_per_batch)


def _carried(agent: Agent, run: RunConfig) -> Kind:
    if run.actor_gradients != "none":
        return "gradients"
    cfg = agent.cfg
    first = isinstance(cfg, ReplayConfig) and cfg.prioritized and cfg.priority_on_add
    return "priorities" if first else "rows"


def _fleet(role: Role, run: RunConfig, ahead: int, streams: Streams) -> Fleet:
    def seeds(actor: int, life: int) -> tuple[int, int]:
        """The first actor begins as the loop would without any."""
        if (actor, life) == (0, 0):
            return streams.generator("act", "cpu").initial_seed(), streams.seed("env", "0")
        part = f"actor {actor} life {life}"
        return streams.seed("act", part), streams.seed("env", part)

    if not run.ray:
        return ProcessFleet(role, run.actors, seeds, ahead, run.actor_restarts)
    from whorl.distributed.fleet_ray import RayFleet  # an extra

    return RayFleet(role, run.actors, seeds, ahead, run.actor_restarts, run.ray)
