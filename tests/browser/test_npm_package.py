"""The npm package: its contents, and its use in a project that installs it."""

import gzip
import json
import os
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import jsonschema
import pytest

import fedping
from fedping.protocol.json_schema import json_schema
from tests.browser.harness.available import needed, skip_for_want_of
from tests.browser.tools import BROWSER, node
from tests.conformance.vectors import read

pytestmark = pytest.mark.browser

PACK = BROWSER / "npm" / "pack.py"
TYPESCRIPT = runpy.run_path(str(PACK))["TYPESCRIPT"]

PROGRAM = """
import { readFileSync } from "node:fs";
import {
  Client, browserEnvironment, enrol, learned, memoryStorage, ranked, readModel, readStudy, roleIn,
} from "fedping";

const { pages, study: given, model } = JSON.parse(readFileSync(0, "utf8"));
const study = readStudy(given, given.name);
const arm = study.arms[0];
const role = roleIn(study, arm);
const shown = ranked(role, readModel(model, role.spec), pages, Date.now());
const { loss, update } = learned(shown, 1);

const answer = (url) => Response.json(url.endsWith("study.json") ? { ...given, arms: [{ ...arm, share: 1 }] } : model);
const environment = { ...browserEnvironment(), fetch: async (url) => answer(url) };
const settings = { ingest: "https://ingest.example", study: given.name, storage: memoryStorage() };
const client = new Client({ ...settings, environment });
await client.fetchModel();
const { ping } = client.compose(client.rank(pages), { chosen: 1 });
console.log(JSON.stringify({ arms: ["a", "b"].map((id) => enrol(study, id).name), loss, update, ping }));
process.exit();
"""

TYPED = """
import {
  Client, memoryStorage, enrol, ranked, learned, roleIn, readStudy, MODELS,
  type Arm, type Composed, type Page, type Ping, type PublicStudy, type Settings, type Shown,
} from "fedping";

interface Suggestion extends Page { url: string }

const settings: Settings = { ingest: "https://ingest.example", study: "demo", storage: memoryStorage() };
const client = new Client(settings);
const pages: Suggestion[] = [{ url: "https://example.org", visits: [{ time: 0, type: 1 }], visitCount: 1 }];
const shown: Shown = client.rank(pages, 10);
const scores: Float64Array = client.scores(pages);
const composed: Composed | null = client.compose(shown, { chosen: 0, charactersTyped: 3 });
const ping: Ping | undefined = composed?.ping;
const study: PublicStudy = readStudy(JSON.parse("{}"), "demo");
const arm: Arm | null = enrol(study, "client");
const { loss, update }: { loss: number; update: number[] | null } = learned(shown, 0);
const names: readonly string[] | undefined = MODELS.get("linear-15")?.weightNames;
const again: Shown = ranked(roleIn(study, arm), { version: 1, weights: [1] }, pages, 0);
console.log(scores.length, ping?.payload, loss, update, names, again.scores);

// @ts-expect-error A client without a storage.
new Client({ ingest: "https://ingest.example", study: "demo" });
// @ts-expect-error A choice by its name.
client.report(shown, { chosen: "first" });
// @ts-expect-error A function of the module's inside.
import { sha256 } from "fedping";
"""


SHOP = """
import { Ranker, memoryStorage, type Trouble } from "fedping/ranker";
import { links } from "fedping/links";
import { personal } from "fedping/personal";
import { privacy } from "fedping/private";

interface Product { sku: string; shop_score: number; price?: number }
type Shop = {
  item: { shop_score: number; price?: number };
  query: { device: "phone" | "desktop" };
  outcomes: { basket: boolean; paid: number };
};

const told: Trouble[] = [];
const shop = new Ranker<Shop>({
  ingest: "https://ingest.example", study: "shop", storage: memoryStorage(), consent: () => true,
  parts: { links, personal, privacy }, onTrouble: (trouble) => told.push(trouble),
});
const found: Product[] = [{ sku: "a", shop_score: 3 }];
const list = shop.rank(found, { device: "phone" }, 20);
const sku: string | undefined = list.items[0]?.sku;
list.seen(1);
const reported: boolean = list.choose(found[0]!, { basket: true });
list.outcome({ paid: 49.9 });
shop.displayed(found, { device: "desktop" }, (item) => item.sku === "a").choose(null);
shop.resume(JSON.stringify(list))?.outcome({ paid: 1 });
await shop.ready;
console.log(sku, reported, shop.trouble?.code === "unreachable", list.version);
await shop.forget();

// @ts-expect-error A list's items are no features of this shop.
shop.rank([{ sku: "a" }], { device: "phone" });
// @ts-expect-error A query's value that is not declared.
shop.rank(found, { device: "watch" });
// @ts-expect-error A query's column that is not declared.
shop.rank(found, { devise: "phone" });
// @ts-expect-error An outcome of another type.
list.choose(found[0]!, { basket: "yes" });
// @ts-expect-error An outcome that is not declared.
list.outcome({ payed: 49.9 });
// @ts-expect-error A choice by its place.
list.choose(0);
// @ts-expect-error No ingest.
new Ranker({ study: "shop" });
// @ts-expect-error A code that there is not.
told[0]?.code === "unknown";
"""

FORM = """
import { Predictor, memoryStorage, type Prediction } from "fedping/predictor";

const storage = memoryStorage();
const of = { ingest: "https://i.example", study: "form", storage };
const form = new Predictor({ ...of, labels: ["a", "b"], fields: ["x", "y"] });
const found: Prediction<"a" | "b" | string> | null = form.predict({ x: 1, y: 2 });
form.learn([1, 2], "a");
const price = new Predictor({ ingest: "https://i.example", study: "price", storage });
const value: number | undefined = price.predict([1, 2])?.value;
price.learn([1, 2], 3.5);
console.log(found?.label, value);

const typed = new Predictor<"a" | "b", "x" | "y">({ ...of, labels: ["a", "b"], fields: ["x", "y"] });
// @ts-expect-error A label that is none.
typed.learn({ x: 1, y: 2 }, "c");
// @ts-expect-error A field that is missing.
typed.predict({ x: 1 });
// @ts-expect-error A text for a number.
price.learn([1, 2], "3.5");
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needed("node")
    needed("npm")
    if run(["npx", "--yes", "--package", TYPESCRIPT, "--", "tsc", "--version"], BROWSER).returncode:
        skip_for_want_of("TypeScript, which npm could not fetch")
    made = run([sys.executable, str(PACK), str(tmp_path_factory.mktemp("npm"))], BROWSER)
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


@pytest.fixture(scope="module")
def project(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a new project with the package installed without a network, because it has no dependencies."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "package.json").write_text('{"name": "somebody", "private": true, "type": "module"}')
    installed = run(["npm", "install", "--offline", "--no-audit", "--no-fund", str(package)], folder)
    assert installed.returncode == 0, installed.stderr
    assert [path.name for path in (folder / "node_modules").iterdir() if path.name[0] != "."] == ["fedping"]
    return folder


def run(command: list[str], cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    quiet = {**os.environ, "npm_config_update_notifier": "false"}
    return subprocess.run(command, cwd=cwd, env=quiet, input=given, capture_output=True, text=True, timeout=200)


def test_it_has_the_module_its_types_and_nothing_else(package: Path) -> None:
    described = json.loads((BROWSER / "package.json").read_text())
    with tarfile.open(package) as packed:
        names = {member.name.removeprefix("package/") for member in packed.getmembers()}
    folders = ("delivery", "features", "models", "predicting", "product", "study")
    modules = {path.relative_to(BROWSER).as_posix() for folder in folders for path in (BROWSER / folder).rglob("*.js")}
    modules |= {path.name for path in BROWSER.glob("*.js")}
    types = {name.removesuffix(".js") + ".d.ts" for name in modules}
    whole = {f"{name}.min.js" for name in runpy.run_path(str(PACK))["ENTRIES"]}
    assert names == {*modules, *types, *whole, "package.json", "README.md", "LICENSE"}
    assert package.name == f"fedping-{described['version']}.tgz"
    assert not list(BROWSER.rglob("*.d.ts")), "the module itself stays as it is"


SIZES = {"predictor": 13_312, "ranker": 18_900}
"""Maximum size of an entry point bundled into one file, minified and gzipped, in bytes."""


@pytest.mark.parametrize("entry", SIZES)
def test_an_entry_point_in_one_file_is_small_and_needs_nothing_else(package: Path, project: Path, entry: str) -> None:
    with tarfile.open(package) as packed:
        member = packed.extractfile(f"package/{entry}.min.js")
        assert member is not None
        code = member.read()
    assert len(gzip.compress(code, 9)) <= SIZES[entry]
    assert b"eval(" not in code
    assert b"Function(" not in code
    name = entry.capitalize()
    (project / "one.js").write_text(
        f'import {{ {name} as Whole }} from "fedping/{entry}"; import {{ {name} }} from "fedping/{entry}.min.js";'
        f"console.log({name} !== Whole, typeof {name}.prototype.start);"
    )
    ended = run([node(), "one.js"], project)
    assert ended.stdout == "true function\n", ended.stderr


def test_a_project_ranks_learns_and_makes_a_ping_by_it(project: Path) -> None:
    (project / "main.js").write_text(PROGRAM)
    vectors, pages = read("pings"), read("pages")["pages"][:12]
    visits = [[dict(zip(("time", "type", "originType", "onward"), v, strict=True)) for v in p["visits"]] for p in pages]
    pages = [{**page, "visits": seen} for page, seen in zip(pages, visits, strict=True)]
    ended = run([node(), "main.js"], project, json.dumps({**vectors, "pages": pages}))
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert set(told["arms"]) <= {arm["name"] for arm in vectors["study"]["arms"]}
    assert told["loss"] > 0
    assert len(told["update"]) == 22
    assert any(told["update"])
    assert told["ping"]["payload"]["update"] == told["update"]
    jsonschema.Draft202012Validator(json.loads(json_schema("ping"))).validate(told["ping"])


@pytest.mark.parametrize("program", [TYPED, SHOP, FORM], ids=["pages", "shop", "form"])
@pytest.mark.parametrize("resolution", [("NodeNext", "NodeNext"), ("ESNext", "Bundler")])
def test_its_types_fit_what_a_project_in_typescript_writes(
    project: Path, resolution: tuple[str, str], program: str
) -> None:
    (project / "main.ts").write_text(program)
    module, how = resolution
    options = ["--noEmit", "--strict", "--module", module, "--moduleResolution", how, "--target", "ES2022"]
    told = run(["npx", "--yes", "--package", TYPESCRIPT, "--", "tsc", *options, "main.ts"], project)
    assert told.returncode == 0, told.stdout


def test_its_version_is_that_of_the_python_package() -> None:
    assert json.loads((BROWSER / "package.json").read_text())["version"] == fedping.__version__
