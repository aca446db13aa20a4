"""The figures of a study: functions that take data and return a Matplotlib ``Figure``, without files or windows.

Every function takes ``theme`` (``LIGHT``, ``DARK``, or ``PAGE`` for a page that may be light or dark). Functions that
draw arms take ``arms``, the study's arms in its order, so that an arm has the same colour in all of them. The data come
from `fedping.analysis.curves`, `fedping.analysis.rounds`, `fedping.analysis.study` and `fedping.analysis.verdict`.
Numbers refer to the thesis.

- ``draw_loss``: the loss of every arm over the iterations (18)
- ``draw_smooth_loss``: this loss as the mean of the last five iterations (19)
- ``draw_round_traffic``: the pings of every iteration (20)
- ``draw_typed``: characters typed over the iterations, smoothed (23)
- ``draw_rank``: selected rank over the iterations, smoothed (24)
- ``draw_series``: any other metric over the iterations
- ``draw_update_quality``: distance of a subsample's mean update from the mean update of all pings (25)
- ``draw_sign_quality``: the same for the signs of the update (26)
- ``draw_loss_quality``: the same for the loss (27)
- ``draw_differences``: differences of means with their intervals
- ``draw_effects_over_time``: differences of means in parts of the time with their intervals
- ``draw_private_rounds``: a metric of the arms of a private line by round, with intervals
- ``draw_superiority``: probabilities of superiority with their intervals
- ``draw_hours``: pings by the hour or day of receipt
- ``titled``: a figure with a title above it, to stand alone
- ``save_figure``: a figure as a .png, .svg or .pdf file
- ``to_svg``: a figure as an element of a page
"""

from fedping.analysis.figures.canvas import DARK, LIGHT, PAGE, Theme, save_figure, titled, to_svg
from fedping.analysis.figures.drawings import (
    draw_differences,
    draw_effects_over_time,
    draw_hours,
    draw_loss,
    draw_loss_quality,
    draw_private_rounds,
    draw_rank,
    draw_round_traffic,
    draw_series,
    draw_sign_quality,
    draw_smooth_loss,
    draw_superiority,
    draw_typed,
    draw_update_quality,
)

__all__ = [
    "DARK",
    "LIGHT",
    "PAGE",
    "Theme",
    "draw_differences",
    "draw_effects_over_time",
    "draw_hours",
    "draw_loss",
    "draw_loss_quality",
    "draw_private_rounds",
    "draw_rank",
    "draw_round_traffic",
    "draw_series",
    "draw_sign_quality",
    "draw_smooth_loss",
    "draw_superiority",
    "draw_typed",
    "draw_update_quality",
    "save_figure",
    "titled",
    "to_svg",
]
