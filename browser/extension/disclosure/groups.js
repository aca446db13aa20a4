// @ts-check
/**
 * The disclosures of messages, shared with the demo page. In the packed folder, the imported file replaces this one.
 */

export * from "../../disclosure/groups.js";
