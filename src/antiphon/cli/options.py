"""The options that every command with a deployment takes.

In: --deploy FILE, --set path=value. Out: a Deployment. Does not know: what the command does with it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from antiphon.config.resolve import Deployment, Setting, parse_settings, resolve
from antiphon.models.registry import load_pipeline

F = TypeVar("F", bound=Callable[..., Any])

pipeline_argument = click.argument("pipeline", default="voice")


def deployment_options(function: F) -> F:
    """Add --deploy and --set."""
    deploy = click.option("--deploy", "deploy_file", default="", metavar="FILE", help="Deploy file (YAML).")
    setting = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="PATH=VALUE",
        help="One setting, e.g. stages.talker.replicas=2. Repeatable.",
    )
    return deploy(setting(function))


def make_deployment(
    pipeline: str, deploy_file: str, assignments: tuple[str, ...], flags: tuple[Setting, ...] = ()
) -> Deployment:
    """Resolve what the user gave; command-line flags win over --set, --set over the deploy file."""
    settings = (*parse_settings(assignments), *flags)
    return resolve(pipeline, load_pipeline(pipeline), deploy_file=deploy_file, settings=settings)
