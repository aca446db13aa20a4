// @ts-check
/**
 * What a client can do, as a value: each entry point of the package has its own, so that a page loads no more than it uses.
 *
 * @import { OwnModel } from "../delivery/own_model.js"
 * @import { PrivateLine } from "../delivery/private_line.js"
 * @import { Environment } from "../delivery/environment.js"
 * @import { ForgivingStorage } from "../delivery/storage.js"
 * @import { ClientEnd, UploadLink } from "./links.js"
 * @import { Kept, Personal } from "./personal/personal.js"
 * @import { Privacy } from "./privacy/vectors.js"
 * @import { Arm, ModelSpec, Version } from "./study.js"
 *
 * @typedef {object} Parts
 * @property {string} entry The entry point's name.
 * @property {{ types: readonly string[], of: string }} pings The types of open pings, and what they are of, in a word.
 * @property {ModelSpec} product What ranks without a study.
 * @property {ReadonlyMap<string, ModelKind>} models
 * @property {ReadonlyMap<string, ClientEnd>} links
 * @property {(given: any) => boolean} [outcomes] Whether what a study publishes are outcomes, of an entry point that reports some.
 * @property {PersonalPart | null} personal
 * @property {PrivatePart | null} privacy
 *
 * @typedef {object} ModelKind
 * @property {(spec: any) => string | null} trouble Why this client cannot evaluate a model of this spec, in words that follow
 *   the line's name.
 * @property {(spec: ModelSpec) => ModelSpec} [completed] The spec with all weights one by one.
 *
 * @typedef {object} PersonalPart The store of a client's own model.
 * @property {(personal: any, spec: ModelSpec) => string | null} trouble
 * @property {(personal: Personal, spec: ModelSpec, held: Version, kept: Kept) => Float64Array} weights
 * @property {(settings: { storage: ForgivingStorage, prefix: string, draw: () => number, notice: (what: string) => void }) => OwnModel} open
 *
 * @typedef {object} PrivatePart What makes pings of private lines.
 * @property {(line: { upload: any, privacy: any, spec: ModelSpec }) => string | null} trouble
 * @property {(privacy: Privacy) => string[]} inWords
 * @property {(settings: { storage: ForgivingStorage, prefix: string, environment: Environment, most: number }) => PrivateLine} open
 *
 * @typedef {object} Role What a client is to do.
 * @property {Arm | null} arm Null for a client that is not enrolled: it ranks as the product does.
 * @property {ModelSpec} spec
 * @property {boolean} sign Only the signs of updates are learned.
 * @property {readonly UploadLink[]} upload What is done to an update before it is sent.
 * @property {Privacy | null} privacy Of a private line.
 * @property {Personal | null} personal How a model becomes the client's own, in a personal arm.
 */

export {};
