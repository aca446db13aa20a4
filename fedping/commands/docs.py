"""`fedping docs`: the pages of the docs, printed in a terminal or opened in a browser."""

from __future__ import annotations

import click


@click.command()
@click.argument("page", required=False)
@click.option("--path", "only_path", is_flag=True, help="Print the path of the page's Markdown file.")
@click.option("--open", "in_browser", is_flag=True, help="Open the built page in a browser, and print its address.")
def docs(page: str | None, only_path: bool, in_browser: bool) -> None:
    """Print a page of the docs; without PAGE, list all of them.

    PAGE is a name from the list, such as `operators`, or a path from a message, such as `docs/operators.md`. With a
    heading, such as `operators#nginx`, only its section is printed. A released wheel includes the pages for --open; in
    a checkout, `make docs` builds them.
    """
    from fedping.documentation import page_of, present_anchor, section
    from fedping.protocol.errors import InvalidSettings

    if only_path and in_browser:
        raise InvalidSettings("use either --path or --open, not both")
    if page is None and not in_browser:
        if only_path:
            raise InvalidSettings("--path needs a PAGE, such as 'operators'")
        _list()
        return
    name, _, anchor = (page or "").partition("#")
    found = page_of(name) if name else None
    if found is not None and anchor:
        anchor = present_anchor(found, anchor)
    if in_browser:
        _open(found.address if found else "docs/index.html", anchor)
    elif found is None:
        raise InvalidSettings(f"'{(page or '')[:80]}' has no page before the #; give one, such as 'operators#nginx'")
    elif only_path:
        click.echo(found.path.resolve())
    else:
        text = found.path.read_text("utf-8")
        click.echo_via_pager((section(text, anchor) if anchor else text).removesuffix("\n"))


def _list() -> None:
    from fedping.documentation import pages

    group, known = "", pages()
    width = max(len(page.name) for page in known)
    for page in known:
        if page.group != group:
            click.echo(f"{chr(10) if group else ''}{page.group}")
            group = page.group
        click.echo(f"  {page.name:{width}}  {page.title}")
    click.echo("\nPrint a page with 'fedping docs PAGE', a section with 'fedping docs PAGE#HEADING'.")


def _open(address: str, anchor: str) -> None:
    import webbrowser

    from fedping.documentation import built_site
    from fedping.protocol.errors import FedpingError

    site = built_site()
    if site is None:
        raise FedpingError(
            "--open: this installation has no built pages. Run 'make docs' in a checkout, or remove --open."
        )
    if not (site / address).is_file():
        raise FedpingError(f"--open: the built site lacks {address}. Run 'make docs' again.")
    whole = (site / address).as_uri() + (f"#{anchor}" if anchor else "")
    click.echo(whole)
    webbrowser.open(whole)
