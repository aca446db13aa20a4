"""`fedping schema`: the published definitions of what travels."""

from __future__ import annotations

import click

from protocol.json_schema import DOCUMENTS, arrow_schema_text, json_schema


@click.command()
@click.argument("document", type=click.Choice([*DOCUMENTS, "landed"]))
def schema(document: str) -> None:
    """Print the JSON Schema of a DOCUMENT, or, for `landed`, the Arrow schema of the Parquet files."""
    click.echo(arrow_schema_text() if document == "landed" else json_schema(document), nl=False)
