"""What `whorl eval --log` leaves in the folder of a run: evaluations.csv, and scalars and pictures for TensorBoard."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from whorl.core.errors import WhorlError
from whorl.log.writers import TensorBoard
from whorl.run.evaluate import Evaluation

COLUMNS = ("steps", "policy", "seed", "episode", "return", "length", "success")
"""of evaluations.csv, which has one line per episode"""


def log_evaluation(
    folder: Path, found: Evaluation, steps: int, which: Mapping[str, str | int], pictures: Path | None = None
) -> None:
    """Add the episodes to `folder`/evaluations.csv, and means over them to TensorBoard (`folder`/eval) at `steps`.

    Args:
        which: the columns `policy` and `seed`.
        pictures: a folder of .png files, which TensorBoard shows too.
    """
    path = folder / "evaluations.csv"
    try:
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS)
            if new:
                table.writeheader()
            # Episodes that were cut report no success: then it is not known which of them the others belong to.
            known = len(found.successes) == len(found.returns)
            for number, (total, length) in enumerate(zip(found.returns, found.lengths)):
                success = int(found.successes[number]) if known else ""
                episode = {"episode": number + 1, "return": total, "length": length, "success": success}
                table.writerow({"steps": steps, **which, **episode})
    except OSError as error:
        raise WhorlError(f"{path} can't be written: {error}") from None
    board = TensorBoard(folder / "eval")
    board.write({"steps": steps, **found.metrics()})
    for picture in sorted(pictures.glob("*.png")) if pictures is not None else ():
        board.picture(f"evaluation/{picture.stem}", np.asarray(Image.open(picture)), steps)
    board.close()
