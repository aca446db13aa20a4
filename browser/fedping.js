// @ts-check
/**
 * The browser's side of fedping: one module without dependencies.
 *
 *     import { Client, webStorage } from "./fedping.js";
 *
 * The shared core (models, loss, update, enrolment) computes the same bits as this project's Python: it uses no
 * transcendental functions, sums in plain loops, and rounds by floor(x + 0.5).
 */

/**
 * @typedef {import("./client.js").Composed} Composed
 * @typedef {import("./client.js").Settings} Settings
 * @typedef {import("./client.js").Staying} Staying
 * @typedef {import("./delivery/environment.js").Environment} Environment
 * @typedef {import("./delivery/storage.js").ClientStorage} ClientStorage
 * @typedef {import("./models/pages.js").Page} Page
 * @typedef {import("./models/pages.js").Visit} Visit
 * @typedef {import("./models/ranking_model.js").RankingModel} RankingModel
 * @typedef {import("./study/parts.js").Role} Role
 * @typedef {import("./study/learning.js").Shown} Shown
 * @typedef {import("./study/ping.js").Observed} Observed
 * @typedef {import("./study/ping.js").Ping} Ping
 * @typedef {import("./study/study.js").Arm} Arm
 * @typedef {import("./study/study.js").ModelSpec} ModelSpec
 * @typedef {import("./study/study.js").PublicStudy} PublicStudy
 * @typedef {import("./study/study.js").Staged} Staged
 * @typedef {import("./study/study.js").Version} Version
 * @typedef {import("./study/links.js").ClientEnd} ClientEnd
 * @typedef {import("./study/links.js").EncodedUpdate} EncodedUpdate
 * @typedef {import("./study/links.js").UploadLink} UploadLink
 */

export { Client } from "./client.js";
export { Backoff } from "./delivery/backoff.js";
export { browserEnvironment, uniform, uuid } from "./delivery/environment.js";
export { KEEPALIVE_BYTES } from "./delivery/sender.js";
export { extensionStorage, memoryStorage, webStorage } from "./delivery/storage.js";
export { decayed, storedScores } from "./models/decay.js";
export { FRECENCY_NAMES, FRECENCY_START, frecency2018 } from "./models/frecency.js";
export { LINEAR_15_NAMES, linear15 } from "./models/linear.js";
export { NOTHING_CHOSEN, bestFirst, rankingLoss } from "./models/loss.js";
export { MAX_SAMPLED, Onward, PageTable, VisitType } from "./models/pages.js";
export { MODELS } from "./models/ranking_model.js";
export { descent } from "./models/update.js";
export { enrol, position, stagedFor } from "./study/enrolment.js";
export { learned, ranked, roleIn, scoresFor } from "./study/learning.js";
export { CLIENT_VERSION, PING_TYPE, PING_VERSION, PRIVATE_TYPE, pingOf } from "./study/ping.js";
export { personalTrouble } from "./study/personal/personal.js";
export { guaranteeInWords, privacyTrouble } from "./study/privacy/guarantee.js";
export { PRODUCT_SPEC, readStudy } from "./study/pages.js";
export { NO_VERSION, readModel, stagedIn, startWeights } from "./study/study.js";
export { registerLink, sentUpdate } from "./study/upload.js";
