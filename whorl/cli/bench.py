"""`whorl bench`: compare algorithms over environments and seeds."""

import shlex
from dataclasses import dataclass
from typing import Annotated, Any

from whorl.cli.command import command, own_flags, parser_of, wants_help
from whorl.cli.report import show_columns
from whorl.cli.status import INTERRUPTED, TERMINATED
from whorl.core.errors import ConfigError
from whorl.settings.schema import Count, Range


@dataclass(frozen=True)
class BenchFlags:
    """Flags of `whorl bench`."""

    parallel: Annotated[int, Range(0, 1000)] = 0
    """runs at the same time, each in a process with its share of the cores; 0: one per core"""
    algorithms: tuple[str, ...] = ()
    """compare these only, or others with the settings of their presets"""
    environments: tuple[str, ...] = ()
    """only on these environments of the suite"""
    seeds: tuple[int, ...] = ()
    """only with these seeds"""
    total_timesteps: Count = 0
    """steps of every run; 0: as the suite says"""
    folder: str = ""
    """folder of the benchmark; default: bench_SUITE in the folder runs"""
    report: bool = False
    """train nothing: tables and figures of the runs that have ended"""
    ray: str = ""
    """run on a Ray cluster: local starts one, auto joins this machine's, or an address"""
    json: bool = False
    """print the results as one JSON object, and nothing else"""


@command(
    "bench [SUITE|FILE|FOLDER] [--parallel N] [--algorithms NAME ...] [--seeds N ...] [--report]", BenchFlags
)
def bench(words: list[str]) -> int:
    """compare algorithms over environments and seeds; the same command continues it"""
    parser = parser_of("bench")
    asked, words = wants_help(words)
    if asked:
        from whorl.bench.suite import suites

        print(parser.format_help())
        print("suites (also listed by `whorl bench` without arguments):")
        show_columns(suites())
        return 0
    names, values = parser.read(words)
    own = own_flags(BenchFlags, values)
    if not names:
        from whorl.bench.suite import suites

        show_columns(suites())
        return 0
    if len(names) > 1:
        raise ConfigError(f"bench takes one suite, but got {' and '.join(map(repr, names))}")
    return _run(names[0], own)


def _run(name: str, own: BenchFlags) -> int:
    from whorl.bench.bench import Choice, load_bench
    from whorl.bench.figures import draw_all
    from whorl.bench.results import RESULTS, show, write_results
    from whorl.core.process import CTRL_C

    settings: dict[str, Any] = {"total_timesteps": own.total_timesteps} if own.total_timesteps else {}
    found = load_bench(name, Choice(own.algorithms, own.environments, own.seeds, settings), own.folder)
    if own.json:
        found.say = lambda text: None
    benched = found.results() if own.report else found.run(own.parallel, own.ray)
    if own.report and not benched.results:
        raise ConfigError(f"no run of {found.folder} has ended yet; leave --report out to train")
    written = [*write_results(benched), *draw_all(found, benched)]
    if own.json:
        print((benched.folder / RESULTS).read_text("utf-8"))
    else:
        show(benched)
        print(f"written: {' '.join(map(str, written))}")
    if benched.signal:
        if not own.json:
            print(f"continue: {shlex.join(['whorl', 'bench', str(found.folder)])}")
        return INTERRUPTED if benched.signal == CTRL_C else TERMINATED
    return 0
