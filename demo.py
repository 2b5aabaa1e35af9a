"""Two minutes from nothing to a flying quadrotor: train, evaluate, draw. Run by `make demo`."""

import argparse
from pathlib import Path

import whorl
from whorl.log.plot import plot_runs

SECONDS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    args = parser.parse_args()
    args.output.mkdir(exist_ok=True)
    result = whorl.train("Quadrotor-v0", "PPO", max_seconds=args.seconds)
    curve = plot_runs([result.run_dir], args.output / "learning_curve.png")
    flight = args.output / "flight.gif"
    found = whorl.evaluate(result.run_dir, episodes=20, video=flight)
    print(
        f"\nmean return {found.mean_return:.0f} ± {found.std:.0f} over 20 flights (hovering at the goal: about 900)"
    )
    print(f"run folder      {result.run_dir}")
    print(f"learning curve  {curve.resolve()}")
    print(f"flight          {flight.resolve()}")


if __name__ == "__main__":
    main()
