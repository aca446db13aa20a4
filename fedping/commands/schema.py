"""`fedping schema`: the published schemas of messages and files."""

from __future__ import annotations

import click

from fedping.protocol.json_schema import DOCUMENTS, LANDED, schema_text


@click.command()
@click.argument("document", type=click.Choice([*DOCUMENTS, *LANDED]))
def schema(document: str) -> None:
    """Print the JSON Schema of a DOCUMENT, or, for `landed` and `landed-model`, the Arrow schema of Parquet files."""
    click.echo(schema_text(document), nl=False)
