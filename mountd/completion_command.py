"""`topicfs completion`: what makes a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

_SHELLS: Final = ("bash", "zsh", "fish")
_ASKED: Final = "_TOPICFS_COMPLETE"
"""The variable through which a shell asks for completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Write what makes a shell complete commands and options, for its start-up file.

    \b
    bash  echo 'eval "$(topicfs completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(topicfs completion zsh)"' >> ~/.zshrc
    fish  topicfs completion fish > ~/.config/fish/completions/topicfs.fish"""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "topicfs", _ASKED).source())
