// @ts-check
/**
 * What Python computed, computed again: the same bits, in whatever runs this file.
 *
 * `checkParity` yields what it compared, and is used by the tests under node and by the page that a real browser opens.
 */

import {
  Backoff,
  MODELS,
  PageTable,
  bestFirst,
  decayed,
  descent,
  enrol,
  learned,
  pingOf,
  position,
  rankingLoss,
  ranked,
  readModel,
  readStudy,
  roleIn,
  sentUpdate,
  stagedFor,
  startWeights,
  storedScores,
} from "../fedping.js";
import { featuresTrouble, layoutOf } from "../features/layout.js";
import { lossOfList, updateOfList } from "../features/learning.js";
import { exp, log, log1p } from "../features/numbers.js";
import { orderOf, scoreOf, swapped } from "../features/ranking.js";
import { startOf } from "../features/start.js";
import { hashOf, valuesOf } from "../features/values.js";
import { descentOf } from "../study/learning.js";
import { keptPlaces } from "../study/encodings/mask.js";
import { fromHex, toHex } from "../study/bytes.js";
import { childKeys, draws as draws64, keyOf } from "../study/encodings/splitmix.js";
import { Chance } from "../study/privacy/chance.js";
import { privacyTrouble } from "../study/privacy/guarantee.js";
import { hasTurn, rotatingId } from "../study/privacy/ids.js";
import { personalTrouble, personalWeights, readKept, sends, trained } from "../study/personal/personal.js";
import { randomBasis } from "../study/personal/vector.js";
import { frameOf, localSigma, payloadOf, vectorOf } from "../study/privacy/vectors.js";
import { ageOf, clipped, columnsOf, outcomeId, outcomePing } from "../study/outcomes.js";
import { sha256Bytes } from "../study/sha256.js";
import { agreedTerms } from "../study/sharing/offer.js";
import { shard, shortest } from "../study/sharing/prio3.js";
import { SEALS, seal } from "../study/sharing/sealing.js";
import { infoOf, leaderShare, maskOf, sharedPayload } from "../study/sharing/shares.js";
import { helperSeeds, provenShare } from "../study/sharing/votes.js";
import { uploadTrouble } from "../study/upload.js";

/** The files of docs/conformance, each of which is read by its name. */
export const TOPICS = [
  "pages", "enrolment", "model", "scores", "updates", "pings", "uploads", "private", "shares", "proofs", "personal", "features",
  "retry", "outcomes"
];

/**
 * @typedef {{ name: string, got: unknown, expected: unknown }} Comparison
 */

/**
 * @param {any} vectors What the files say, by topic.
 * @returns {Generator<Comparison>}
 */
export function* checkParity(vectors) {
  const { now } = vectors.pages;
  const pages = vectors.pages.pages.map(pageOf);
  yield* scores(vectors.scores, pages, now);
  yield* searches(vectors.updates, pages, now);
  yield* startOfModels(vectors.model);
  yield* documents(vectors.model);
  yield* enrolment(vectors.enrolment);
  yield* waits(vectors.retry);
  yield* pings(vectors.pings, pages, now);
  yield* uploads(vectors.uploads);
  yield* privateVectors(vectors.private);
  yield* rotatingIds(vectors.private);
  yield* turns(vectors.private);
  yield* draws(vectors.private);
  yield* masks(vectors.shares);
  yield* proofs(vectors.proofs);
  yield* trainings(vectors.personal, pages, now);
  yield* outcomes(vectors.outcomes);
  yield* features(vectors.features);
}

/** @param {any} vectors */
function* outcomes({ study, clipped: values, ids, ages, lists, later }) {
  const named = (/** @type {string} */ name) => study.outcomes.find((/** @type {any} */ each) => each.name === name);
  for (const [i, { outcome, value, sent }] of values.entries()) {
    yield { name: `outcome ${i}, ${outcome}`, got: clipped(named(outcome), value) ?? null, expected: sent };
  }
  for (const [i, { choice, secret, column, id }] of ids.entries()) {
    yield { name: `id of outcome ${i}`, got: outcomeId(choice, column, secret ?? null), expected: id };
  }
  for (const [i, { chosen, at, age }] of ages.entries()) {
    yield { name: `age of outcome ${i}`, got: ageOf(chosen, at), expected: age };
  }
  for (const [i, { client, arm, version, learned: told, shown, observed, ping }] of lists.entries()) {
    const columns = columnsOf(study.outcomes, observed);
    const payload = { model_version: version, study_variation: arm, ...told, ...shown, ...columns };
    const got = { clientId: client, type: "list-update", payload };
    yield { name: `ping of list ${i}`, got: sorted(got), expected: sorted(ping) };
  }
  for (const [i, { client, at, column, value, secret, id, ping, ...of }] of later.entries()) {
    const outcome = named(column);
    const got = outcomePing(outcome, value, { ...of, clientId: client }, at);
    yield { name: `ping of outcome ${i}`, got: sorted(got), expected: sorted(ping) };
    yield { name: `id of outcome's ping ${i}`, got: outcomeId(of.choice, column, outcome.linked ? null : secret), expected: id };
  }
}

/**
 * The JSON of an object with its keys in order.
 *
 * @param {any} value
 */
function sorted(value) {
  return JSON.stringify(value, (_, each) =>
    each && typeof each === "object" && !Array.isArray(each) ? Object.fromEntries(Object.entries(each).sort()) : each
  );
}

/** @param {any} vectors */
function* features({ functions, hashes, specs, values, lists, swaps }) {
  for (const [name, x, expected] of functions) {
    yield { name: `${name} of ${x}`, got: { exp, log, log1p }[/** @type {"exp" | "log" | "log1p"} */ (name)](x), expected };
  }
  const hashed = layoutOf({ features: [{ kind: "hashed", name: "b", buckets: 2 }], margin: 0, epsilon: 1 });
  for (const [name, text, expected] of hashes) {
    yield { name: `hash of ${text}`, got: hashOf(hashed, name, text), expected };
  }
  const layouts = specs.map((/** @type {any} */ { spec }) => layoutOf(spec));
  for (const [i, { spec, names, start }] of specs.entries()) {
    yield { name: `trouble of ${spec.name}`, got: featuresTrouble(spec), expected: null };
    yield { name: `number of weights of ${spec.name}`, got: layouts[i].m, expected: names.length };
    yield { name: `start of ${spec.name}`, got: startOf(spec), expected: start };
  }
  for (const [i, { spec, query, item, values: expected }] of values.entries()) {
    const [{ at, value }] = valuesOf(layouts[spec], query, [item]);
    yield { name: `values ${i}`, got: at.map((position, k) => [position, value[k]]), expected };
  }
  for (const [i, { spec, weights, query, items, chosen, seen, pinned, ...expected }] of lists.entries()) {
    const layout = layouts[spec];
    const list = { query, items, chosen, seen, pinned: new Set(pinned) };
    const got = valuesOf(layout, query, items).map((each) => scoreOf(layout, weights, each));
    yield { name: `scores of list ${i}`, got, expected: expected.scores };
    yield { name: `order of list ${i}`, got: orderOf(got, list.pinned), expected: expected.order };
    yield { name: `loss of list ${i}`, got: lossOfList(layout, weights, list), expected: expected.loss };
    const update = updateOfList(layout, weights, list).map((number) => number + 0);
    yield { name: `update of list ${i}`, got: update, expected: expected.update };
  }
  for (const [i, { ranked: order, pinned, explore, draws: drawn, shown }] of swaps.entries()) {
    yield { name: `swap ${i}`, got: swapped(order, new Set(pinned), explore, drawn), expected: shown };
  }
}

/**
 * What takes the browser's own cryptography, which makes its caller wait.
 *
 * @param {any} vectors
 * @returns {AsyncGenerator<Comparison>}
 */
export async function* checkSharing({ shares: { studies, offers, payloads } }) {
  const does = (/** @type {number} */ study) => SEALS.includes(studies[study].lines[0].privacy.shared.seal);
  for (const { study: place, what, offer, id, taken } of offers) {
    const study = studies[place];
    const got = await agreedTerms(study, { ...study.lines[0], offer }).catch((error) => error);
    const name = `an offer: ${what}`;
    if (!taken || !does(place)) {
      yield { name, got: got instanceof TypeError, expected: true };
    } else {
      yield { name, got: got.id && toHex(got.id), expected: id };
    }
  }
  for (const [i, { study: place, version, arm, document, vector, seed, ephemeral, info, payload }] of payloads.entries()) {
    if (!does(place)) {
      continue;
    }
    const study = studies[place];
    const { offer } = offers.find((/** @type {any} */ each) => each.study === place);
    const terms = /** @type {any} */ (await agreedTerms(study, { ...study.lines[0], offer }));
    const to = { study: study.name, line: "main", version, arm, document, numbers: vector.length, offer: terms.id };
    yield { name: `info ${i}`, got: new TextDecoder().decode(infoOf(to)), expected: info };
    const expected = Uint8Array.from(atob(payload), (letter) => letter.charCodeAt(0));
    const secret = fromHex(seed);
    const { metric } = terms;
    const leader = metric > 0 ? provenShare(vector, secret, { ...to, documentId: document, metric }) : leaderShare(vector, secret);
    const pair = await pairOf(fromHex(ephemeral), expected.slice(8 + leader.length).slice(0, 32));
    const sealed = await seal(terms.key, metric > 0 ? helperSeeds(secret) : secret, infoOf(to), { pair });
    const got = sharedPayload(terms.id, leader, sealed);
    yield { name: `payload of shares ${i}`, got: toHex(got), expected: toHex(expected) };
  }
}

/**
 * A key pair of X25519, of its bytes.
 *
 * @param {Uint8Array} secret @param {Uint8Array} known
 * @returns {Promise<CryptoKeyPair>}
 */
export async function pairOf(secret, known) {
  const inBase64 = (/** @type {Uint8Array} */ bytes) =>
    btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const jwk = { kty: "OKP", crv: "X25519", x: inBase64(known) };
  const { subtle } = crypto;
  const privateKey = await subtle.importKey("jwk", { ...jwk, d: inBase64(secret) }, "X25519", false, ["deriveBits"]);
  return { privateKey, publicKey: await subtle.importKey("jwk", jwk, "X25519", true, []) };
}

/** @param {any} vectors */
function* proofs({ cases }) {
  for (const [i, { bits, nonce, rand, context, ...expected }] of cases.entries()) {
    const shares = shard(shortest(bits.length), bits, fromHex(nonce), fromHex(rand), new TextEncoder().encode(context));
    for (const [name, share] of Object.entries(shares)) {
      yield { name: `${name} of proof ${i}`, got: toHex(share), expected: expected[name] };
    }
  }
}

/** @param {any} vectors */
function* masks({ masks: cases }) {
  for (const { seed, words } of cases) {
    const made = new BigUint64Array(maskOf(fromHex(seed), words.length).buffer);
    const got = Array.from(made, (word) => word.toString(16).padStart(16, "0"));
    yield { name: `mask of ${words.length} words`, got, expected: words };
  }
}

/**
 * Whether two values are the same to the last bit, the sign of zero included.
 *
 * @param {any} one
 * @param {any} other
 * @returns {boolean}
 */
export function same(one, other) {
  if (typeof one !== "object" || one === null || other === null || typeof other !== "object") {
    return Object.is(one, other);
  }
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => key in other && same(one[key], other[key]));
}

/** @param {any} page */
export function pageOf(page) {
  const visits = page.visits.map((/** @type {number[]} */ [time, type, originType, onward]) => ({
    time,
    type,
    originType,
    onward,
  }));
  return { ...page, visits };
}

/** @param {any} vectors @param {any[]} pages @param {number} now */
function* scores(vectors, pages, now) {
  const table = PageTable.of(pages, now);
  for (const [i, { model, weights, scores: expected }] of vectors.scores.entries()) {
    const got = Array.from(modelNamed(model).scores(weights, table));
    yield { name: `scores ${i}, of ${model}`, got, expected };
  }
  for (const { scores: fresh, stored } of vectors.stored) {
    const got = Array.from(storedScores(Float64Array.from(fresh), table));
    yield { name: "stored scores", got, expected: stored };
  }
  for (const [score, expected] of vectors.decayed) {
    yield { name: `${score} a day later`, got: decayed(score), expected };
  }
}

/** @param {any} vectors @param {any[]} pages @param {number} now */
function* searches(vectors, pages, now) {
  for (const [i, search] of vectors.searches.entries()) {
    const { model: name, weights, margin, epsilon, chosen } = search;
    const table = PageTable.of(search.pages.map((/** @type {number} */ row) => pages[row]), now);
    const model = modelNamed(name);
    const lossAt = (/** @type {ArrayLike<number>} */ w) => rankingLoss(model.scores(w, table), chosen, margin);
    yield { name: `loss of search ${i}`, got: lossAt(weights), expected: search.loss };
    yield { name: `order of search ${i}`, got: bestFirst(model.scores(weights, table)), expected: search.order };
    yield { name: `update of search ${i}`, got: descent(lossAt, weights, epsilon), expected: search.update };
  }
}

/** @param {any} vectors */
function* startOfModels({ start: specs }) {
  for (const { weights, start } of specs) {
    const spec = { model: "", weights, margin: 0, epsilon: 1 };
    yield { name: "start weights", got: startWeights(spec), expected: start };
  }
}

/** @param {any} vectors */
function* documents({ line, documents: given }) {
  for (const { what, document, taken } of given) {
    const expected = taken ? { version: document.iteration, weights: document.model } : null;
    yield { name: `a model document: ${what}`, got: versionIn(document, line.spec), expected };
  }
}

/** @param {any} document @param {import("../study/study.js").ModelSpec} spec */
function versionIn(document, spec) {
  try {
    return readModel(document, spec);
  } catch (error) {
    if (error instanceof TypeError) {
      return null;
    }
    throw error;
  }
}

/** @param {any} vectors */
function* enrolment(vectors) {
  for (const [study, client, expected] of vectors.positions) {
    yield { name: `position of ${client} in ${study}`, got: position(study, client), expected };
  }
  for (const { study, line, staged, clients } of vectors.staged) {
    for (const [client, expected] of clients) {
      const name = `whether ${client} gets version ${staged.iteration} first`;
      yield { name, got: stagedFor(study, line, staged, client), expected };
    }
  }
  for (const { study, clients } of vectors.studies) {
    const read = readStudy(study, study.name);
    for (const [client, expected] of clients) {
      yield { name: `arm of ${client}`, got: enrol(read, client)?.name ?? null, expected };
    }
  }
}

/** @param {any} vectors */
function* waits(vectors) {
  for (const { settings, failures, uniform, retryAfter, wait } of vectors.waits) {
    const got = new Backoff(settings).wait(failures, uniform, retryAfter);
    yield { name: `wait after ${failures} failures`, got, expected: wait };
  }
}

/** @param {any} vectors @param {any[]} pages @param {number} now */
function* pings({ study: given, model, cases }, pages, now) {
  const study = readStudy(given, given.name);
  for (const [i, { arm: name, client, pages: rows, chosen, observed, ping: expected }] of cases.entries()) {
    const arm = /** @type {any} */ (study.arms.find((each) => each.name === name));
    const role = roleIn(study, arm);
    const held = arm.line ? readModel(model, role.spec) : { version: -1, weights: startWeights(role.spec) };
    const shown = ranked(role, held, rows.map((/** @type {number} */ row) => pages[row]), now);
    const place = chosen < 0 ? -1 : shown.pages.indexOf(pages[rows[chosen]]);
    const { loss, update } = learned(shown, place);
    const sent = update && sentUpdate(role.upload, update);
    const what = { arm: name, version: held.version, scores: shown.scores, loss, update: sent };
    const got = pingOf(client, what, { ...observed, chosen: place }, expected.payload.study_addon_version);
    yield { name: `ping ${i} of arm ${name}`, got: JSON.parse(JSON.stringify(got)), expected };
  }
}

/** @param {any} vectors */
function* uploads({ draws: keys, masks, uploads: cases, random }) {
  for (const { seed, draws: drawn, children } of keys) {
    yield { name: `draws of ${seed}`, got: inHex(draws64(keyOf(seed), drawn.length)), expected: drawn };
    yield { name: `children of ${seed}`, got: inHex(childKeys(keyOf(seed), children.length)), expected: children };
  }
  for (const { seed, weights, keep, places } of masks) {
    yield { name: `mask of ${seed}`, got: keptPlaces(seed, keep, weights), expected: places };
  }
  for (const [i, { upload, update, sent: expected }] of cases.entries()) {
    yield { name: `upload ${i} of ${upload.at(-1)?.link}`, got: sentUpdate(upload, update), expected };
  }
  for (const [i, { upload, update, seed, uniforms, sent: expected }] of random.entries()) {
    const given = { seed: () => seed, uniforms: () => Float64Array.from(uniforms) };
    yield { name: `upload ${i} at random of ${upload.at(-1)?.link}`, got: sentUpdate(upload, update, given), expected };
    yield { name: `trouble ${i} of ${upload.at(-1)?.link}`, got: uploadTrouble(upload), expected: null };
  }
}

/** @param {import("../study/encodings/splitmix.js").Words} words */
function inHex({ high, low }) {
  const digits = (/** @type {number} */ half) => half.toString(16).padStart(8, "0");
  return Array.from(high, (half, k) => digits(half) + digits(low[k]));
}

/** @param {any} vectors */
function* privateVectors({ vectors: cases }) {
  for (const [i, { privacy, weights, update, loss, top, seed, sigma, vector, payload }] of cases.entries()) {
    const spec = /** @type {any} */ ({ weights });
    const frame = frameOf(privacy, spec);
    const got = vectorOf(privacy, frame, update, loss, top, new Chance(bytesOf(seed)));
    yield { name: `vector ${i}`, got, expected: vector };
    yield { name: `payload ${i}`, got: btoa(String.fromCharCode(...payloadOf(got))), expected: payload };
    yield { name: `trouble ${i}`, got: privacyTrouble(privacy, spec), expected: null };
    if (privacy.local?.mechanism === "gaussian") {
      yield { name: `sigma ${i}`, got: localSigma(privacy, frame), expected: sigma };
    }
  }
}

/** @param {any} vectors */
function* rotatingIds({ ids }) {
  for (const { study, secret, line, version, arm: name, id: expected } of ids) {
    const key = Uint8Array.from({ length: 32 }, (_, i) => Number.parseInt(secret.slice(2 * i, 2 * i + 2), 16));
    const arm = { ...study.arms.find((/** @type {any} */ each) => each.name === name), line };
    yield { name: `id for version ${version}`, got: rotatingId(study, key, arm, version), expected };
  }
}

/** @param {any} vectors */
function* turns({ turns: cases }) {
  for (const { study, secret, line, version, contributions, rounds, turn: expected } of cases) {
    const key = Uint8Array.from({ length: 32 }, (_, i) => Number.parseInt(secret.slice(2 * i, 2 * i + 2), 16));
    const privacy = /** @type {any} */ ({ contributions, central: { rounds } });
    yield { name: `turn of version ${version}`, got: hasTurn(study, key, line, version, privacy), expected };
  }
}

/** @param {any} vectors */
function* draws({ draws: cases }) {
  for (const { what, argument, drawn: expected } of cases) {
    const chance = new Chance(bytesOf(`${what} ${what === "is_true" ? argument.toFixed(1) : argument}`));
    const one = {
      below: () => Number(chance.below(BigInt(argument))),
      is_true: () => chance.isTrue(argument),
      discrete_gaussian: () => chance.discreteGaussian(argument),
    }[/** @type {"below"} */ (what)];
    yield { name: `${what}(${argument})`, got: expected.map(one), expected };
  }
}

/** @param {any} vectors @param {any[]} pages @param {number} now */
function* trainings({ specs, trainings: cases, bases }, pages, now) {
  for (const [i, given] of cases.entries()) {
    const { personal, version, weights, pages: rows, chosen, before, applied, order, scores, loss, update, after } = given;
    const spec = specs[given.spec];
    const held = { version, weights };
    const arm = { name: "a", share: 1, line: "main", applies: true, submits: true, decays: false, personal: true };
    const role = { arm, spec, sign: false, upload: [], privacy: null, personal };
    const some = rows.map((/** @type {number} */ row) => pages[row]);
    const shown = ranked(role, held, some, now, some.length, before);
    const place = chosen < 0 ? -1 : shown.pages.indexOf(some[chosen]);
    const name = `training ${i} by ${personal.by}`;
    yield { name: `${name}: trouble`, got: personalTrouble(personal, spec), expected: null };
    yield { name: `${name}: what is kept`, got: readKept(personal, spec, before), expected: before };
    yield { name: `${name}: weights`, got: Array.from(personalWeights(personal, spec, held, before)), expected: applied };
    yield { name: `${name}: order`, got: shown.pages.map((page) => some.indexOf(page)), expected: order };
    const told = learned(shown, place, sends(personal, held, before));
    yield { name: `${name}: what is told`, got: told, expected: { scores, loss, update } };
    const got = trained(personal, spec, held, before, descentOf(shown, place));
    yield { name: `${name}: after`, got, expected: after };
  }
  for (const { rows, size, seed, basis } of bases) {
    yield { name: `basis of ${seed}`, got: Array.from(randomBasis(rows, size, seed)), expected: basis };
  }
}

/**
 * Random bytes that everybody can make: SHA-256 of "seed/0", then of "seed/1", and so on.
 *
 * @param {string} seed
 */
function bytesOf(seed) {
  /** @type {number[]} */
  const left = [];
  let block = 0;
  return (/** @type {number} */ count) => {
    while (left.length < count) {
      left.push(...sha256Bytes(new TextEncoder().encode(`${seed}/${block}`)));
      block += 1;
    }
    return Uint8Array.from(left.splice(0, count));
  };
}

/** @param {string} name */
function modelNamed(name) {
  return /** @type {import("../models/ranking_model.js").RankingModel} */ (MODELS.get(name));
}
