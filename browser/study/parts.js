// @ts-check
/**
 * The abilities of a client, as a value. Each entry point of the package has its own, so that a page loads only what it
 * uses.
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
 * @property {{ types: readonly string[], of: string }} pings The types of non-private pings, and a word for their
 *   content.
 * @property {ModelSpec} product The spec that ranks without a study.
 * @property {ReadonlyMap<string, ModelKind>} models
 * @property {ReadonlyMap<string, ClientEnd>} links
 * @property {(given: any) => boolean} [outcomes] Whether a study's published outcomes are valid; absent in entry points
 *   that report none.
 * @property {PersonalPart | null} personal
 * @property {PrivatePart | null} privacy
 *
 * @typedef {object} ModelKind
 * @property {(spec: any) => string | null} trouble Returns the reason why this client can't evaluate a model of this
 *   spec, in words that follow the line's name.
 * @property {(spec: ModelSpec) => ModelSpec} [completed] Returns the spec with all weights as single ones.
 *
 * @typedef {object} PersonalPart The part for personal models.
 * @property {(personal: any, spec: ModelSpec) => string | null} trouble
 * @property {(personal: Personal, spec: ModelSpec, held: Version, kept: Kept) => Float64Array} weights
 * @property {(settings: { storage: ForgivingStorage, prefix: string, draw: () => number, notice: (what: string) => void }) => OwnModel} open
 * @typedef {object} PrivatePart The part that makes pings of private lines.
 * @property {(line: { upload: any, privacy: any, spec: ModelSpec }) => string | null} trouble
 * @property {(privacy: Privacy) => string[]} inWords
 * @property {(settings: { storage: ForgivingStorage, prefix: string, environment: Environment, most: number }) => PrivateLine} open
 * @typedef {object} Role A client's task in a study.
 * @property {Arm | null} arm Null for a client that is not enrolled: it ranks as the product does.
 * @property {ModelSpec} spec
 * @property {boolean} sign Whether updates consist only of signs.
 * @property {readonly UploadLink[]} upload The links that are applied to an update before it is sent.
 * @property {Privacy | null} privacy The privacy settings of a private line; else null.
 * @property {Personal | null} personal The personalization settings of a personal arm; else null.
 */

export {};
