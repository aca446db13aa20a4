"""Runs the installed Firefox, without a window, through Mozilla's `marionette_driver`."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marionette_driver import By
from marionette_driver.errors import MarionetteException
from marionette_driver.keys import Keys
from marionette_driver.marionette import HTMLElement, Marionette

from tests.browser.harness.available import needed
from tests.browser.harness.waiting import LONGEST, wait_for

_PREFERENCES: dict[str, bool | int | str] = {
    "marionette.port": 0,  # any free one, written to the profile
    "security.notification_enable_delay": 0,  # prompts can be answered as soon as they appear
    "xpinstall.signatures.required": False,  # Firefox ESR respects this
    "extensions.autoDisableScopes": 0,
    "browser.urlbar.suggest.searches": False,
    "browser.urlbar.quicksuggest.enabled": False,
    # A missing proxy for all hosts but this machine, so that no name leads out of it.
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
}


@dataclass(frozen=True)
class Row:
    """A row below the address bar: its kind, its text, and the bar's content while it is selected."""

    kind: str
    title: str
    content: str


class Firefox:
    """A running browser: ``page`` is Marionette in the context of pages; :meth:`run` has browser privileges."""

    def __init__(self, session: Marionette, process: subprocess.Popen[bytes]) -> None:
        self.page = session
        self._process = process

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of an asynchronous function in the browser's window, and return its result."""
        body = f"const done = arguments[arguments.length - 1]; (async (...arguments) => {{ {script} }})(...arguments)"
        body += ".then(value => done([value]), error => done({failed: `${error}\\n${error.stack}`}));"
        with self.page.using_context("chrome"):
            answer = self.page.execute_async_script(body, script_args=arguments, sandbox="system", new_sandbox=True)
        assert isinstance(answer, list), answer["failed"]
        return answer[0]

    @contextlib.contextmanager
    def new_tab(self, *, private: bool = False) -> Iterator[None]:
        """Go to a new tab, or a new private window; closed at the end."""
        before = self.page.current_window_handle
        opened = self.page.open(type="window" if private else "tab", private=private)["handle"]
        self.page.switch_to_window(opened)
        try:
            yield
        finally:
            self.page.switch_to_window(opened)
            self.page.close()
            self.page.switch_to_window(before)

    def install(self, extension: Path, *, private: bool = False) -> str:
        """Install a packed extension permanently, as a user does, and return its address, ending in a slash.

        Args:
            extension: the packed file.
            private: allow it in private windows, as a user can.
        """
        script = """
            const modules = ["AddonManager", "ExtensionPermissions", "FileUtils"];
            const [{ AddonManager }, { ExtensionPermissions }, { FileUtils }] = modules.map(
                name => ChromeUtils.importESModule(`resource://gre/modules/${name}.sys.mjs`));
            const install = await AddonManager.getInstallForFile(new FileUtils.File(arguments[0]));
            const addon = await install.install();
            if (arguments[1]) {
                const private_ = { permissions: ["internal:privateBrowsingAllowed"], origins: [] };
                await ExtensionPermissions.add(addon.id, private_);
                await addon.reload();
            }
            return addon.id;
        """
        return self.address_of(self.run(script, str(extension), private))

    def address_of(self, extension: str) -> str:
        """Return the address of an installed extension as soon as it runs."""
        script = """
            const policy = WebExtensionPolicy.getByID(arguments[0]);
            await policy?.readyPromise;
            return policy?.active ? policy.getURL("") : null;
        """
        return str(wait_for(lambda: self.run(script, extension), f"the extension {extension}"))

    def type(self, text: str, *, into: HTMLElement | None = None) -> None:
        """Type into the address bar (or another field), key by key."""
        with self.page.using_context("chrome"):
            bar = into or self.page.find_element(By.ID, "urlbar-input")
            bar.send_keys(text)

    def key(self, key: str) -> None:
        """Press a key of :class:`marionette_driver.keys.Keys` in the address bar."""
        self.type(key)

    def clear(self) -> None:
        """Clear the address bar, like Ctrl+A and the delete key."""
        self.type(Keys.CONTROL + "a")
        self.type(Keys.DELETE)

    def bar(self) -> str:
        """Return the address bar's content."""
        return str(self.run("return gURLBar.value;"))

    def rows(self) -> list[Row]:
        """Return the shown rows, once the browser has queried all providers."""
        script = """
            await gURLBar.lastQueryContextPromise;
            const rows = gURLBar.view.isOpen ? [...gURLBar.view.panel.querySelectorAll(".urlbarView-row")] : [];
            return rows.filter(row => row.result && row.checkVisibility()).map(({ result }) =>
                [result.providerName, result.payload.title ?? "", result.payload.content ?? result.payload.url ?? ""]);
        """
        return [Row(*row) for row in self.run(script)]

    def kill(self) -> None:
        """End the browser like a crash, so that it writes nothing more."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(LONGEST)

    def quit(self) -> None:
        """Quit the browser normally."""
        # Marionette's own function works only for a browser that it started itself.
        with contextlib.suppress(MarionetteException, OSError):
            self.run("Services.tm.dispatchToMainThread(() => Services.startup.quit(Services.startup.eForceQuit));")


@contextlib.contextmanager
def running_firefox(profile: Path, home: Path, **preferences: bool | int | str) -> Iterator[Firefox]:
    """Run Firefox on a profile, created if missing; end it when the context exits.

    Args:
        profile: the folder, which is kept; another start with it continues the same browser.
        home: a folder that replaces the user's home, so that nothing there is read.
        preferences: more of `about:config`, with `__` for a dot.
    """
    path = needed("firefox")
    profile.mkdir(parents=True, exist_ok=True)
    told = profile / "MarionetteActivePort"
    told.unlink(missing_ok=True)
    given = _PREFERENCES | {name.replace("__", "."): value for name, value in preferences.items()}
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in given.items()]
    (profile / "user.js").write_text("".join(lines))
    process = subprocess.Popen(
        [path, "--headless", "--no-remote", "--marionette", "--remote-allow-system-access", "--profile", str(profile)],
        env={**os.environ, "HOME": str(home), "MOZ_HEADLESS_WIDTH": "1280", "MOZ_HEADLESS_HEIGHT": "800"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        firefox = Firefox(_session(told, process), process)
        try:
            yield firefox
        finally:
            firefox.quit()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LONGEST)


def _session(told: Path, process: subprocess.Popen[bytes]) -> Marionette:
    def port() -> str:
        assert process.poll() is None, "Firefox ended at its start"
        return told.read_text().strip() if told.exists() else ""

    session = Marionette(host="127.0.0.1", port=int(wait_for(port, "Firefox's Marionette port")))
    session.start_session(timeout=LONGEST)
    session.timeout.script = session.timeout.page_load = LONGEST
    return session
