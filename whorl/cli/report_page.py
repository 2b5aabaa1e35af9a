"""`whorl report`: the page of some runs as one file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from whorl.cli.command import command, own_flags, parser_of, wants_help
from whorl.core.errors import ConfigError
from whorl.settings.schema import Range


@dataclass(frozen=True)
class ReportFlags:
    """Flags of `whorl report`."""

    output: str = ""
    """.html file to write; default: report.html, in the folder of a single run"""
    statistic: Literal["mean", "iqm", "median"] = "mean"
    """what is drawn of several seeds; iqm: the interquartile mean"""
    band: Literal["ci", "std", "none"] = "ci"
    """band around it: a bootstrapped 95% confidence interval, or the standard deviation"""
    smooth: Annotated[int, Range(-1, 10**6)] = -1
    """smooth over about this many rows of metrics; 0: not at all; -1: automatic, little"""


@command("report RUN [RUN ...] [--output FILE.html]", ReportFlags)
def report(words: list[str]) -> int:
    """write curves, settings, videos and maps of runs into one HTML file that works offline"""
    parser = parser_of("report")
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    names, values = parser.read(words)
    own: ReportFlags = own_flags(ReportFlags, values)
    if not names:
        raise ConfigError("name at least one run: whorl report RUN [RUN ...]")
    from whorl.box.names import find_folders
    from whorl.log.groups import Style
    from whorl.page.report import write_report

    folders = find_folders(names)
    default = (folders[0] if len(folders) == 1 else Path()) / "report.html"
    style = Style(statistic=own.statistic, band=own.band, smooth=own.smooth)
    print(write_report(folders, Path(own.output) if own.output else default, style))
    return 0
