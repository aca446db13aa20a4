"""`fedping power`: how many users a study needs, to show an effect and to train a model (thesis 7.4)."""

from __future__ import annotations

import click

from fedping.commands.power.effect import effect
from fedping.commands.power.train import train


@click.group()
def power() -> None:
    """How many users a study needs: to show an effect, and to train a model."""


power.add_command(effect)
power.add_command(train)
