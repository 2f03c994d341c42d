"""`antiphon plan`: the processes that `serve` would start, and every value that somebody has set.

In: a pipeline and settings. Out: two tables. Does not know: how processes are started.
"""

import click
from rich.console import Console
from rich.table import Table

from antiphon.cli.options import deployment_options, make_deployment, pipeline_argument
from antiphon.config.pipeline import EdgeSpec
from antiphon.config.resolve import Deployment
from antiphon.ids import replica_id


@click.command("plan")
@pipeline_argument
@deployment_options
def command(pipeline: str, deploy_file: str, assignments: tuple[str, ...]) -> None:
    """Show the process table of PIPELINE and who set which value."""
    deployment = make_deployment(pipeline, deploy_file, assignments)
    console = Console()
    console.print(process_table(deployment))
    if deployment.settings:
        console.print(settings_table(deployment))


def process_table(deployment: Deployment) -> Table:
    """One row per process: device, what it hears, what it says."""
    table = Table("process", "device", "hears", "says", title=f"Processes of {deployment.pipeline.name}")
    config = deployment.config
    table.add_row("orchestrator", "-", "control: api-servers, replicas", "control: api-servers, replicas")
    for index in range(config.server.api_servers):
        entries = ", ".join(sorted({stage for task in deployment.pipeline.tasks for stage in task.entries.values()}))
        table.add_row(
            f"api-server/{index}",
            "-",
            f"HTTP on {config.server.host}:{config.server.port}; client lane",
            f"input to {entries}",
        )
    for stage in deployment.pipeline.stages:
        deploy = config.stages[stage.name]
        hears = [_hears(deployment, edge) for edge in deployment.pipeline.edges if edge.consumer == stage.name]
        entered = [task.name for task in deployment.pipeline.tasks if stage.name in task.entries.values()]
        hears += [f"client input ({', '.join(entered)})"] if entered else []
        says = [f"{', '.join(edge.keys)} -> {edge.consumer}" for edge in deployment.pipeline.out_edges(stage.name)]
        says += [f"{kind} -> client" for kind in sorted(stage.client_kinds)]
        for index in range(deploy.replicas):
            device = f"{deploy.device}, {deployment.stage_spec(stage.name).threads} threads"
            table.add_row(replica_id(stage.name, index), device, "\n".join(hears), "\n".join(says))
    return table


def _hears(deployment: Deployment, edge: EdgeSpec) -> str:
    plan = deployment.chunk_plan(edge)
    chunks = "one chunk" if plan.is_whole else f"chunks of {plan.first_rows}+, then {plan.rows}+ rows"
    start_when = deployment.in_edge_rules(edge.consumer)[edge.name].start_when
    return f"{', '.join(edge.keys)} <- {edge.producer} ({chunks}; starts at {start_when.replace('_', ' ')})"


def settings_table(deployment: Deployment) -> Table:
    """Every value that is not the default, and who set it; a later row wins."""
    table = Table("setting", "value", "set by", title="Set values (all others are defaults)")
    for setting in deployment.settings:
        table.add_row(setting.path, str(setting.value), setting.source)
    return table
