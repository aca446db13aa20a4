"""The next version of a line: the aggregation of a round's landed files, and the step computed from it.

Rounds and recomputation share these two functions, so a recomputed version has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from fedping.model_store.version import FORMAT, ClientSketch, Lineage, Version
from fedping.protocol.digest import digest_of
from fedping.protocol.landing import Landing
from fedping.protocol.spec import published
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import state_to_document
from fedping.server_jobs.round.aggregate import RoundAggregate, ShardPartial, combined, in_order
from fedping.server_jobs.round.clipping import first_bound, has_to_measure
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.guard import looks_at_new_clients, watched
from fedping.server_jobs.round.influence import needs_influence
from fedping.server_jobs.round.manifest import Manifest, work_on
from fedping.server_jobs.round.new_clients import estimated, no_clients, salt_for, with_more
from fedping.server_jobs.round.ping_filter import key_of_lots
from fedping.server_jobs.round.plan import Rules, rules_for
from fedping.server_jobs.round.step import apply_step, next_clip_bound, state_of


def aggregate_pings(
    landing: Landing,
    study: Study,
    parent: Version,
    manifest: Manifest,
    engine: Engine,
    recorded: Lineage | None = None,
) -> RoundAggregate:
    """Return the aggregate of the pings in a manifest.

    Updates are read twice if they are clipped and the bound isn't known from an earlier round.

    Args:
        landing: the landing folder.
        study: the study.
        parent: the version of the pings.
        manifest: the landed files.
        engine: computes the partials.
        recorded: the lineage of a version to be recomputed, whose format determines which figures are computed; None
            in a round.
    """
    line, key = study.line(parent.line), key_of_lots(parent.digest, manifest.inputs)
    bound = next_clip_bound(line, state_of(line, parent))
    # A version without this count comes from a program that had no limit on the number of pings.
    bounded = recorded is None or "over_capacity" in recorded.counts
    rules = replace(rules_for(study, line.name, parent.iteration, key=key), bounded=bounded, bound=bound)
    sees, knows = needs_influence(line), looks_at_new_clients(line.guard)
    if recorded is not None:
        aggregate = recorded.aggregate
        sees, knows = aggregate is not None and aggregate.influence is not None, recorded.known is not None
        rules = replace(rules, shards=recorded.shards)
    known = parent.lineage.known
    rules = replace(rules, sees=sees, salt=_salt(known, key) if knows else b"")

    def partials(rules: Rules) -> Iterator[ShardPartial]:
        return in_order(engine.partials(work_on(landing, manifest.inputs, rules, manifest.before)), rules.shards)

    if has_to_measure(line, bound):
        norms = (partial.total for partial in partials(replace(rules, measures=True, sees=False, salt=b"")))
        rules = replace(rules, bound=first_bound(line, norms))
    whole = combined(partials(rules), rules)
    if recorded is not None and (recorded.aggregate is None or recorded.aggregate.capped is None):
        whole = replace(whole, updates=structs.replace(whole.updates, capped=None))
    if whole.registers is None:
        return whole
    sketch = with_more(known or no_clients(rules.salt), whole.registers)
    influence = whole.updates.influence
    if known is not None and influence is not None:
        influence = structs.replace(influence, new_clients=round(estimated(sketch) - estimated(known)))
    return replace(whole, updates=structs.replace(whole.updates, influence=influence), known=sketch)


def _salt(known: ClientSketch | None, key: bytes) -> bytes:
    return bytes.fromhex(known.salt) if known is not None else salt_for(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Facts about the computation of a version that can't be derived from the pings.

    Attributes:
        created: the version's creation time, ISO 8601 in UTC.
        code_version: the program's version.
        settings: the number of the settings' entry in the study's history.
    """

    created: str
    code_version: str
    settings: int = 0


def next_version(
    study: Study, parent: Version, aggregate: RoundAggregate, manifest: Manifest, provenance: Provenance
) -> Version:
    """Return the next version, computed from a round's aggregate."""
    line = study.line(parent.line)
    key = key_of_lots(parent.digest, manifest.inputs)
    stepped, state = apply_step(line, np.array(parent.weights), state_of(line, parent), aggregate.total, key)
    weights = tuple(stepped.tolist())
    return Version(
        format=FORMAT,
        study=study.name,
        line=line.name,
        iteration=parent.iteration + 1,
        parent=parent.iteration,
        parent_digest=parent.digest,
        created=provenance.created,
        spec_digest=line.spec.digest,
        names=line.spec.document_names,
        model=published(line.spec, weights),
        weights=weights,
        state=state_to_document(state),
        lineage=Lineage(
            origin="round",
            code_version=provenance.code_version,
            config_digest=digest_of(line),
            inputs=manifest.inputs,
            counts={**aggregate.counts, "stale": manifest.stale, "future": manifest.future},
            ages=aggregate.ages,
            arms=aggregate.arms,
            aggregate=aggregate.updates,
            window_end_ms=manifest.window_end_ms,
            guard=watched(line.guard, study, parent, aggregate.updates, aggregate.arms, stepped),
            known=aggregate.known,
            settings=provenance.settings,
            shards=study.shards,
        ),
    )
