"""The settings of fedping's Spark applications, and the operator's options for spark-submit.

`benchmarks.spark_start` measures the time that these settings save.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.spark.installation import cache_folder, put_cached

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Java options for a JVM that runs for seconds: first compiler only, single-threaded collector, no statistics file.

The workers compute in Python, so the later gain by the second compiler doesn't matter.
"""

REDACTED = "(?i)secret|password|passwd|token|credential|signature|key"
"""Pattern of names and values of settings and variables that are hidden in event logs and on Spark's pages.

Spark's own pattern doesn't match keys of object stores, such as ``AZURE_STORAGE_ACCOUNT_KEY``.
"""

LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %d{HH:mm:ss} %p %c{1}: %m%n%ex
# That Hadoop's native library is not installed is true almost everywhere, and no one's concern here.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""
"""Log configuration: warnings and errors to stderr, without Spark's welcome banner."""


@dataclass(frozen=True)
class SparkSettings:
    """Settings for Spark's start. The operator's options for `spark-submit.sh` take precedence over them."""

    master: str | None = None
    """Master URL; None for the URL in `spark-defaults.conf` or `$MASTER`, else ``local[cpus]``."""
    cpus: int | None = None
    """Task slots of a local master; None for one per core."""
    app_name: str = "fedping"
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings, which take precedence over fedping's defaults."""
    packages: Sequence[str] = ()
    """Packages of fedping that executors need in addition to those of rounds."""
    driver_java_options: Sequence[str] = ()
    """Further options for the driver's JVM."""


@dataclass(frozen=True)
class Start:
    """The effective master URL, and the whole command line for spark-submit."""

    master: str
    arguments: list[str]


def plan(settings: SparkSettings, options: Sequence[str], spark_home: Path, archive: Path | None) -> Start:
    """Put fedping's settings before the operator's options, which take precedence because spark-submit uses the last.

    Args:
        settings: fedping's settings.
        options: the operator's options for spark-submit.
        spark_home: the folder of the Spark to run.
        archive: the class-data archive to use; None without an archive.
    """
    master = value_of(options, "--master", "spark.master", {}) or settings.master
    master = master or properties_of(options, os.environ, spark_home).get("spark.master") or os.environ.get("MASTER")
    master = master or f"local[{settings.cpus or '*'}]"
    conf = {"spark.app.name": settings.app_name, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    conf["spark.redaction.regex"] = REDACTED
    # Only saved tables would create this folder; keep it out of the current one.
    conf["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir(), "fedping-spark-warehouse"))
    conf["spark.driver.extraJavaOptions"] = _java_options(settings, options, spark_home, archive)
    if archive:
        conf["spark.driver.extraClassPath"] = class_path(spark_home)
    if is_local(master):
        conf["spark.sql.shuffle.partitions"] = "2"
    conf |= settings.conf
    ours = ["--master", master] + [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return Start(master, [*ours, *options])


def class_path(spark_home: Path) -> str:
    """Return the class path for which an archive is created. It must come first when the archive is used.

    Spark's own class path contains a file twice, so it never matches an archive.
    """
    return f"{spark_home}/jars/*"


def quoted(words: Sequence[str]) -> str:
    """Join JVM options so that Spark, which splits them at blanks outside double quotes, gets the same options."""
    return " ".join(f'"{word}"' if any(c.isspace() for c in word) else word for word in words)


def _java_options(settings: SparkSettings, options: Sequence[str], spark_home: Path, archive: Path | None) -> str:
    words = [*QUICK_START, *settings.driver_java_options]
    if archive:
        # No warning about a stale archive in every run: it costs time, but never correctness.
        words += [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    if not _has_log_settings(spark_home):
        logging = put_cached(cache_folder() / "spark" / "log4j2.properties", LOG4J.encode())
        words.append(f"-Dlog4j2.configurationFile={logging.as_uri()}")
    return quoted(words)


def _has_log_settings(spark_home: Path) -> bool:
    folder = Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf")
    return any(folder.glob("log4j2*.*"))


def submit_arguments(environment: Mapping[str, str]) -> list[str]:
    """Return the operator's options for spark-submit from ``PYSPARK_SUBMIT_ARGS``, without the last word."""
    words = words_of("PYSPARK_SUBMIT_ARGS", environment)
    return words[:-1] if words[-1:] == ["pyspark-shell"] else words


WITHOUT_VALUE = {"--supervise", "--verbose", "-v", "--help", "-h", "--version", "--usage-error"}
"""The options of spark-submit without a value. All other options have a value."""

PROPERTY = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[=:\s]\s*(.*)")
"""Pattern of a line in a Java properties file: a key, then blanks, ``=`` or ``:``, then the value."""


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into options of spark-submit and the remaining words.

    The options end at ``--``, or else at the first word that is neither an option nor an option's value.

    Raises:
        InvalidSettings: the last option lacks its value.
    """
    words = list(argv)
    at = 0
    while at < len(words) and words[at] != "--" and words[at].startswith("-"):
        if words[at] in WITHOUT_VALUE or _joined(words[at]):
            at += 1
        elif at + 1 < len(words) and words[at + 1] != "--":
            at += 2
        else:
            raise InvalidSettings(f"the spark-submit option {words[at]} lacks its value")
    return words[:at], words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:]


def value_of(options: Sequence[str], flag: str, key: str, properties: Mapping[str, str]) -> str | None:
    """Return spark-submit's value of a setting, from its flag, else ``--conf key=…``, else the properties file."""
    found = dict(properties).get(key)
    for name, value in option_pairs(options):
        if name in ("--conf", "-c") and value.partition("=")[0] == key:
            found = value.partition("=")[2]
    return next((value for name, value in reversed(list(option_pairs(options))) if name == flag), found)


def option_pairs(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of spark-submit with their values, "" for options without a value."""
    words = iter(options)
    for word in words:
        if word in WITHOUT_VALUE:
            yield word, ""
        elif _joined(word):
            yield word.partition("=")[0], word.partition("=")[2]
        else:
            yield word, next(words, "")


def properties_of(options: Sequence[str], environment: Mapping[str, str], spark_home: Path) -> dict[str, str]:
    """Return the settings in the properties file that spark-submit will read; empty without such a file."""
    conf_folder = Path(environment.get("SPARK_CONF_DIR") or spark_home / "conf")
    named = next((value for name, value in option_pairs(options) if name == "--properties-file"), None)
    path = Path(named) if named else conf_folder / "spark-defaults.conf"
    if not path.is_file():
        return {}
    lines = path.read_text(errors="replace").splitlines()
    return {found[1]: found[2].strip() for line in lines if (found := PROPERTY.match(line))}


def words_of(name: str, environment: Mapping[str, str]) -> list[str]:
    """Return the words in an environment variable, quoted as for a shell.

    Raises:
        InvalidSettings: a quote is not closed.
    """
    try:
        return shlex.split(environment.get(name, ""))
    except ValueError as error:
        raise InvalidSettings(f"can't parse the environment variable {name} ({error}); correct its quotes") from error


def is_local(master: str) -> bool:
    """Return whether a master URL runs all tasks in one JVM, so that code needn't be shipped."""
    return master == "local" or master.startswith("local[")


def _joined(word: str) -> bool:
    return word.startswith("--") and "=" in word
